//! What can be seen from outside.

use std::future::pending;

use distributed_lock::{
    Clock, ErrorKind, LossCause, MemoryLocker, TokioClock,
    lease::{CancelReason, JobOutcome, LeaseConfig, LeaseEvent, LeaseExit, LeaseState, Term},
};

use crate::support::{GRACE, JumpingClock, Log, TTL, bounded, over, replica, secs, since};

#[tokio::test(start_paused = true)]
async fn the_state_goes_from_idle_over_standby_leading_and_draining_to_idle() {
    let store = MemoryLocker::new();
    let runner = replica(&store);
    let mut watch = runner.watch("job").unwrap();
    assert!(matches!(watch.state(), LeaseState::Idle));
    let other = store.hold("job").unwrap();
    let run = tokio::spawn({
        let runner = runner.clone();
        async move { runner.run("job", async |_| pending::<Result<(), ()>>().await).await }
    });
    let follow = async {
        let mut seen = Vec::new();
        seen.push(watch.changed().await.unwrap());
        tokio::time::sleep(secs(1)).await;
        drop(other);
        seen.push(watch.changed().await.unwrap());
        tokio::time::sleep(secs(60)).await;
        seen.push(watch.state());
        runner.stop("job");
        seen.push(watch.changed().await.unwrap());
        tokio::time::sleep(secs(2)).await;
        store.lose("job", LossCause::SessionEnded).unwrap();
        seen.push(watch.changed().await.unwrap());
        seen.push(watch.changed().await.unwrap());
        seen
    };
    let seen = bounded(follow).await;
    let shown: Vec<_> = seen.iter().map(ToString::to_string).collect();
    // The holds of the later two have ended, so their age still counts.
    assert_eq!(shown[0], "standby");
    assert!(matches!(&seen[2], LeaseState::Leading(hold) if hold.fencing_token().is_some()));
    assert!(matches!(&seen[3], LeaseState::Draining(_, CancelReason::Stopped)));
    assert!(matches!(&seen[4], LeaseState::Lost(_, loss) if loss.cause() == LossCause::SessionEnded));
    assert_eq!(shown[3..], ["draining: the name was stopped", "lost: the session that owned it ended", "idle"]);
    assert!(matches!(bounded(run).await.unwrap().unwrap(), LeaseExit::Stopped(Some(_))));
    drop(runner);
    assert!(bounded(watch.changed()).await.is_none(), "the runner is gone");
}

#[tokio::test(start_paused = true)]
async fn health_is_bad_exactly_while_a_job_runs_whose_lease_cannot_be_proven() {
    let clock = JumpingClock::default();
    let store = MemoryLocker::with_clock(clock.clone());
    let runner = replica(&store);
    let watch = runner.watch("job").unwrap();
    assert!(runner.health().is_ok() && watch.health().is_ok());
    let (mut terms, log) = (0, Log::default());
    let job = |term: Term| {
        terms += 1;
        let (first, runner, watch, clock) = (terms == 1, runner.clone(), watch.clone(), clock.clone());
        async move {
            assert!(runner.health().is_ok() && watch.health().is_ok());
            if first {
                // Before anything was polled again: no timer fired, and still it is bad.
                clock.jump(TTL * 2);
                assert_eq!(runner.health().unwrap_err().kind(), ErrorKind::Lost);
                term.cancelled().await;
                assert_eq!(watch.health().unwrap_err().kind(), ErrorKind::Lost);
            }
            Ok::<_, ()>(())
        }
    };
    let ends = log.clone();
    let exit = bounded(runner.run_with("job", job, |_| ends.add("ended"))).await.unwrap();
    assert!(matches!(exit, LeaseExit::Finished(())));
    assert_eq!(log.lines(), ["ended"]);
    assert!(runner.health().is_ok());
}

#[tokio::test(start_paused = true)]
async fn health_is_bad_at_the_detection_bound_though_the_deadline_is_still_to_come() {
    let store = MemoryLocker::new();
    let locker = std::sync::Arc::new(store.peer());
    let runner = distributed_lock::lease::LeaseRunner::new(locker.clone(), LeaseConfig::new()).unwrap();
    let run = runner.run("job", async |term: Term| {
        locker.delay(secs(1_000));
        term.cancelled().await;
        let bad = runner.health().is_err() && term.ensure_valid().is_ok();
        locker.delay(secs(0));
        runner.stop("job");
        Ok::<_, ()>(bad)
    });
    let exit = bounded(run).await.unwrap();
    assert!(matches!(exit, LeaseExit::Stopped(Some(end)) if end.result == Some(Ok(true))));
}

#[tokio::test(start_paused = true)]
async fn hooks_hear_of_the_end_of_a_term_with_its_outcome_overrun_and_release() {
    let log = Log::default();
    let ends = log.clone();
    let config = LeaseConfig::new().with_hook(move |event| {
        if let LeaseEvent::TermEnded { outcome, overrun, release, loss, .. } = event {
            ends.add(format!(
                "{outcome:?}, lost {}, overrun {overrun:?}, released {}",
                loss.is_some(),
                release.is_ok()
            ));
        }
    });
    let store = MemoryLocker::new();
    let runner = over(store.peer(), config);
    let mut terms = 0;
    let job = |_| {
        terms += 1;
        let (n, store) = (terms, store.peer());
        async move {
            match n {
                1 => {
                    store.lose("job", LossCause::SessionEnded).unwrap();
                    pending().await
                }
                _ => Err::<(), _>("no"),
            }
        }
    };
    assert!(matches!(bounded(runner.run("job", job)).await.unwrap(), LeaseExit::Failed("no")));
    assert_eq!(
        log.lines(),
        [
            format!("{:?}, lost true, overrun {GRACE:?}, released true", JobOutcome::Dropped),
            format!("{:?}, lost false, overrun 0ns, released true", JobOutcome::Err),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_ends_the_run_after_its_job_and_its_lease() {
    let config = LeaseConfig::new().with_hook(|event| {
        assert!(!matches!(event, LeaseEvent::Draining { .. }), "the hook's own");
    });
    let (store, log, start) = (MemoryLocker::new(), Log::default(), TokioClock.now());
    let runner = over(store.peer(), config);
    let run = tokio::spawn({
        let (runner, log) = (runner.clone(), log.clone());
        async move {
            let job = async |_| {
                let _dropped = log.on_drop(start);
                pending::<Result<(), ()>>().await
            };
            runner.run("job", job).await
        }
    });
    runner.watch("job").unwrap().wait_for(|state| matches!(state, LeaseState::Leading(_))).await;
    runner.stop("job");
    assert!(bounded(run).await.unwrap_err().is_panic());
    assert_eq!(log.lines(), [format!("dropped after {:?}", since(start))]);
    assert!(store.hold("job").is_ok() && matches!(runner.watch("job").unwrap().state(), LeaseState::Idle));
}
