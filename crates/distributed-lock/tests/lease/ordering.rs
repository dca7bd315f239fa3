//! Tell, grace, drop, release, and only then contend again.

use std::{future::pending, time::Duration};

use distributed_lock::{
    Clock, LockerExt, LossCause, MemoryLocker, TokioClock,
    lease::{CancelReason, LeaseConfig, LeaseExit, LeaseRunner, Term, TermEnd},
};

use crate::support::{
    GRACE, HEARTBEAT, JumpingClock, Log, MS, TTL, UNCONFIRMED, bounded, is_free, over, replica, secs, since,
};

/// Runs a job whose first term is this and whose second finishes the run; the ends of the terms between.
async fn two_terms<T>(runner: &LeaseRunner, first: impl AsyncFn(Term) -> T) -> Vec<TermEnd<Option<T>, ()>> {
    let mut ends = Vec::new();
    let mut number = 0;
    let job = |term: Term| {
        number += 1;
        let (number, first) = (number, &first);
        async move { Ok(if number == 1 { Some(first(term).await) } else { None }) }
    };
    let exit = bounded(runner.run_with("job", job, |end| ends.push(end))).await.unwrap();
    assert!(matches!(exit, LeaseExit::Finished(None)));
    ends
}

#[tokio::test(start_paused = true)]
async fn on_a_loss_the_job_is_told_has_its_grace_is_dropped_and_only_then_is_the_lease_contended_for() {
    let store = MemoryLocker::new();
    let log = Log::default();
    let runner = over(store.peer(), log.hooked(LeaseConfig::new()));
    let start = TokioClock.now();
    let ends = two_terms(&runner, async |term| {
        let _dropped = log.on_drop(start);
        tokio::time::sleep(secs(6)).await;
        store.lose("job", LossCause::SessionEnded).unwrap();
        let reason = term.cancelled().await;
        assert!(matches!(reason, CancelReason::Lost(loss) if loss.cause() == LossCause::SessionEnded));
        log.add(format!("told after {:?}", since(start)));
        pending::<()>().await
    })
    .await;
    assert_eq!(
        log.lines(),
        [
            r#""job" stands by"#,
            r#""job" leads"#,
            r#""job" drains"#,
            "told after 6s",
            "dropped after 11s",
            r#""job" ended its term"#,
            r#""job" leads"#,
            r#""job" ended its term"#,
        ]
    );
    let [end] = &ends[..] else { panic!("{ends:?}") };
    assert!(end.result.is_none() && end.overrun == GRACE, "{end:?}");
    assert_eq!(end.loss.as_ref().unwrap().cause(), LossCause::SessionEnded);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_follows_a_loss_goes_to_the_hook_and_so_does_one_that_did_not_see_it() {
    let store = MemoryLocker::new();
    let ends = two_terms(&replica(&store), async |term| {
        store.lose("job", LossCause::NotOurs).unwrap();
        term.cancelled().await;
        tokio::time::sleep(secs(2)).await;
        "told"
    })
    .await;
    assert!(matches!(ends[0].result, Some(Ok(Some("told")))) && ends[0].overrun == secs(2) && ends[0].reason.is_some());

    // It returns in the very poll in which the lease is lost.
    let ends = two_terms(&replica(&store), async |_| {
        store.lose("job", LossCause::NotOurs).unwrap();
        "not told"
    })
    .await;
    assert!(matches!(ends[0].result, Some(Ok(Some("not told")))) && ends[0].reason.is_none() && ends[0].loss.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_step_down_drains_releases_and_gives_its_value_to_the_hook() {
    let store = MemoryLocker::new();
    let runner = replica(&store);
    let ends = two_terms(&runner, async |term| {
        tokio::time::sleep(TTL * 10).await;
        term.ensure_valid().unwrap();
        assert!(runner.step_down("job"));
        assert!(matches!(term.cancelled().await, CancelReason::StepDown));
        term.hold().cancelled().await; // who follows the hold only is told as well
        assert!(!is_free(&store, "job").await, "released after the job");
        "so far"
    })
    .await;
    assert!(matches!(ends[0].result, Some(Ok(Some("so far")))) && ends[0].loss.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_deaf_job_is_dropped_a_grace_after_it_was_told_while_the_lease_is_still_held() {
    struct Probe(MemoryLocker, Log);
    impl Drop for Probe {
        fn drop(&mut self) {
            self.1.add(if self.0.hold("job").is_err() { "dropped while held" } else { "dropped after the release" });
        }
    }
    let store = MemoryLocker::new();
    let (runner, log) = (replica(&store), Log::default());
    let start = TokioClock.now();
    let run = runner.run("job", async |_| {
        let _probe = Probe(store.peer(), log.clone());
        runner.stop("job");
        pending::<Result<(), ()>>().await
    });
    assert!(matches!(bounded(run).await.unwrap(), LeaseExit::Stopped(Some(_))));
    assert_eq!((log.lines(), since(start)), (vec!["dropped while held".to_owned()], GRACE));
}

#[tokio::test(start_paused = true)]
async fn a_drain_longer_than_a_renewal_does_not_become_a_loss() {
    let store = MemoryLocker::new();
    let config = LeaseConfig::new().with_ttl(secs(40)).with_grace(secs(20));
    let runner = over(store.peer(), config);
    let run = runner.run("job", async |term: Term| {
        let before = term.remaining().unwrap();
        runner.stop("job");
        tokio::time::sleep(secs(20) - MS).await;
        term.ensure_valid().unwrap();
        Ok::<_, ()>(term.remaining().unwrap() + secs(6) > before)
    });
    let LeaseExit::Stopped(Some(end)) = bounded(run).await.unwrap() else { panic!("stopped") };
    assert!(matches!(end.result, Some(Ok(true))), "renewed while it drained: {end:?}");
}

/// Renewals that get no answer: the last confirmed one was sent after one heartbeat.
#[tokio::test(start_paused = true)]
async fn without_a_confirmed_renewal_the_job_is_told_at_the_detection_bound_counted_from_the_send() {
    for failing in [false, true] {
        let store = MemoryLocker::new();
        let locker = std::sync::Arc::new(store.peer());
        let runner = LeaseRunner::new(locker.clone(), LeaseConfig::new()).unwrap();
        let (log, start) = (Log::default(), TokioClock.now());
        let ends = two_terms(&runner, async |term| {
            let _dropped = log.on_drop(start);
            // Its answer comes two seconds after its send.
            locker.delay(secs(2));
            tokio::time::sleep(HEARTBEAT + secs(1)).await;
            match failing {
                true => (0..50).for_each(|_| locker.fail_next(distributed_lock::ErrorKind::Unavailable)),
                false => locker.delay(secs(1_000)),
            }
            if failing {
                tokio::time::sleep(secs(1)).await;
                locker.delay(Duration::ZERO);
            }
            let reason = term.cancelled().await;
            assert!(matches!(reason, CancelReason::Lost(loss) if loss.cause() == LossCause::HeartbeatTimeout));
            log.add(format!("told after {:?}", since(start)));
            term.ensure_valid().unwrap(); // there is a deadline, and it has not passed
            locker.delay(Duration::ZERO);
            pending::<()>().await
        })
        .await;
        // The one in flight took the first failure with it where they fail at once.
        let proof = if failing { secs(0) } else { HEARTBEAT };
        let told = proof + UNCONFIRMED;
        assert_eq!(log.lines(), [format!("told after {told:?}"), format!("dropped after {:?}", told + GRACE)]);
        assert!(ends[0].loss.is_none() && ends[0].overrun.is_zero(), "dropped in time: {ends:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_take_nearly_as_long_as_they_may_are_no_loss() {
    let store = MemoryLocker::new();
    let locker = std::sync::Arc::new(store.peer());
    // With a deadline for the job's progress, which wakes the run in the middle of renewals.
    let config = LeaseConfig::new().with_progress_deadline(secs(4));
    let runner = LeaseRunner::new(locker.clone(), config).unwrap();
    let job = async |term: &Term| {
        for _ in 0..10 {
            // One slow answer, then prompt ones.
            locker.delay(secs(6));
            tokio::time::sleep(HEARTBEAT + secs(1)).await;
            locker.delay(Duration::ZERO);
            tokio::time::sleep(secs(10)).await;
        }
        // And slow ones all the time: tau is 6.5 s.
        locker.delay(MS * 6_490);
        tokio::select! {
            reason = term.cancelled() => Err(reason),
            () = tokio::time::sleep(secs(600)) => Ok(()),
        }
    };
    let run = runner.run("job", async |term: Term| {
        tokio::select! {
            ended = job(&term) => ended,
            () = async { loop { term.progress(); tokio::time::sleep(secs(1)).await } } => unreachable!(),
        }
    });
    let exit = bounded(run).await.unwrap();
    assert!(matches!(exit, LeaseExit::Finished(())), "{exit:?}");
}

/// After a suspend of 20 of the 23 seconds, 3 are left until the store lets somebody else in.
#[tokio::test(start_paused = true)]
async fn the_grace_is_cut_at_the_deadline_only_where_the_store_may_count_us_as_the_holder() {
    for (cause, given) in
        [(LossCause::HeartbeatTimeout, secs(3)), (LossCause::SessionEnded, secs(3)), (LossCause::NotOurs, GRACE)]
    {
        let clock = JumpingClock::default();
        let store = MemoryLocker::with_clock(clock.clone());
        let (log, start) = (Log::default(), TokioClock.now());
        two_terms(&replica(&store), async |_| {
            let _dropped = log.on_drop(start);
            clock.jump(secs(20));
            store.lose("job", cause).unwrap();
            pending::<()>().await
        })
        .await;
        assert_eq!(log.lines(), [format!("dropped after {given:?}")], "{cause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_wakes_up_after_a_suspend_past_its_deadline_is_dropped_and_never_polled_again() {
    let clock = JumpingClock::default();
    let store = MemoryLocker::with_clock(clock.clone());
    let (log, start) = (Log::default(), TokioClock.now());
    let ends = two_terms(&replica(&store), async |_| {
        let _dropped = log.on_drop(start);
        clock.jump(secs(30));
        tokio::time::sleep(secs(1)).await;
        log.add("polled, while somebody else may work");
        pending::<()>().await
    })
    .await;
    assert_eq!(log.lines(), ["dropped after 1s"]);
    assert!(matches!(&ends[0].reason, Some(CancelReason::Lost(_))));
    assert_eq!(ends[0].overrun, secs(8), "a second of running and seven of suspend");
}

#[tokio::test(start_paused = true)]
async fn the_near_deadline_notice_comes_where_renewals_fail_and_not_while_they_do_not() {
    let store = MemoryLocker::new();
    let locker = std::sync::Arc::new(store.peer());
    let runner = LeaseRunner::new(locker.clone(), LeaseConfig::new()).unwrap();
    let start = TokioClock.now();
    let run = runner.run("job", async |term: Term| {
        let notice = term.near_deadline(secs(17));
        assert!(tokio::time::timeout(secs(100), notice).await.is_err(), "renewed every 2.875 s");
        locker.delay(secs(1_000));
        let began = since(start);
        term.near_deadline(secs(17)).await;
        let after = since(start) - began;
        locker.delay(Duration::ZERO);
        Ok::<_, ()>((after, term.remaining()))
    });
    let LeaseExit::Finished((after, left)) = bounded(run).await.unwrap() else { panic!("finished") };
    assert!(after > secs(3) && after <= secs(6) && left == Some(secs(17)), "{after:?} {left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_the_lease_lost_is_a_loss_and_the_value_goes_to_the_hook() {
    let store = MemoryLocker::new();
    let locker = std::sync::Arc::new(store.peer());
    let runner = LeaseRunner::new(locker.clone(), LeaseConfig::new()).unwrap();
    let ends = two_terms(&runner, async |term| {
        // The release reaches the store four seconds after it is sent; by then somebody took the lease away.
        locker.delay(secs(4));
        tokio::time::sleep(HEARTBEAT - MS).await;
        let store = store.peer();
        tokio::spawn(async move {
            tokio::time::sleep(secs(1)).await;
            store.lose("job", LossCause::SessionEnded).unwrap();
        });
        let locker = locker.clone();
        tokio::spawn(async move {
            tokio::time::sleep(secs(2)).await;
            locker.delay(Duration::ZERO); // for what comes after it
        });
        term.ensure_valid().unwrap();
        "thought that it led"
    })
    .await;
    assert!(matches!(ends[0].result, Some(Ok(Some("thought that it led")))) && ends[0].loss.is_some(), "{ends:?}");
    assert!(ends[0].reason.is_none());
}

#[tokio::test(start_paused = true)]
async fn terms_that_are_lost_at_once_do_not_follow_each_other_faster_than_attempts() {
    let store = MemoryLocker::new();
    let runner = replica(&store);
    let start = TokioClock.now();
    let mut starts = Vec::new();
    let job = |term: Term| {
        starts.push(since(start));
        let (store, last) = (store.peer(), starts.len() == 4);
        async move {
            if !last {
                store.lose("job", LossCause::NotOurs).unwrap();
                term.cancelled().await;
            }
            Ok::<_, ()>(())
        }
    };
    assert!(matches!(bounded(runner.run("job", job)).await.unwrap(), LeaseExit::Finished(())));
    assert_eq!(starts, [secs(0), secs(5), secs(10), secs(15)]);
    assert!(store.try_acquire("job", TTL).await.unwrap().acquired().is_some());
}
