//! How the lease is asked for.

use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use distributed_lock::{
    Capabilities, Clock, Error, ErrorKind, Fairness, LockerExt, LossCause, MemoryLocker, TokioClock,
    lease::{CancelReason, LeaseConfig, LeaseExit, LeaseRunner, LeaseState, Term},
};

use crate::support::{GRACE, Log, MS, RETRY, TTL, UNCONFIRMED, Weaker, bounded, over, replica, secs, since};

const TOP: Duration = Duration::from_secs(6);

#[tokio::test(start_paused = true)]
async fn a_long_job_is_renewed_and_a_queued_standby_takes_over_the_moment_it_ends() {
    let store = MemoryLocker::new();
    let (a, b) = (replica(&store), replica(&store));
    let start = TokioClock.now();
    let lead = async |term: Term| {
        let token = term.fencing_token().unwrap();
        tokio::time::sleep(TTL * 10).await;
        term.ensure_valid().map(|()| token)
    };
    let exits = bounded(async { tokio::try_join!(a.run("job", lead), b.run("job", lead)) }).await.unwrap();
    let (LeaseExit::Finished(first), LeaseExit::Finished(second)) = exits else { panic!("both finish") };
    assert!(first < second);
    assert_eq!(since(start), TTL * 20);
}

#[tokio::test(start_paused = true)]
async fn where_waiters_are_woken_in_any_order_a_standby_waits_and_takes_over_the_moment_the_job_ends() {
    let store = MemoryLocker::new();
    let change = |can: &mut Capabilities| (can.fairness, can.wakes) = (Fairness::Unordered, true);
    let [a, b] = [(); 2].map(|()| over(Weaker::new(store.peer(), change), LeaseConfig::new()));
    let start = TokioClock.now();
    let lead = async |_term: Term| {
        tokio::time::sleep(TTL).await;
        Ok::<_, ()>(())
    };
    let exits = bounded(async { tokio::try_join!(a.run("job", lead), b.run("job", lead)) }).await.unwrap();
    assert!(matches!(exits, (LeaseExit::Finished(()), LeaseExit::Finished(()))));
    assert_eq!(since(start), TTL * 2);
}

#[tokio::test(start_paused = true)]
async fn many_jobs_run_through_one_runner_at_a_time() {
    let runner = replica(&MemoryLocker::new());
    let start = TokioClock.now();
    let runs = (0..50).map(|n| {
        let runner = runner.clone();
        tokio::spawn(async move {
            let job = |_| async move {
                tokio::time::sleep(secs(60)).await;
                Ok::<_, ()>(n)
            };
            runner.run(format!("job {n}"), job).await.unwrap()
        })
    });
    for (n, run) in runs.collect::<Vec<_>>().into_iter().enumerate() {
        assert!(matches!(bounded(run).await.unwrap(), LeaseExit::Finished(m) if m == n));
    }
    assert_eq!(since(start), secs(60));
}

#[tokio::test(start_paused = true)]
async fn where_the_store_does_not_queue_it_tries_every_retry_interval_and_up_to_a_fifth_later() {
    let store = MemoryLocker::new();
    let tries = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&tries);
    let mut locker = Weaker::polling(store.peer());
    locker.on_attempt(move || {
        seen.lock().unwrap().push(TokioClock.now());
        None
    });
    let runner = over(locker, LeaseConfig::new());
    let other = store.hold("job").unwrap();
    let free_later = async {
        tokio::time::sleep(secs(300)).await;
        drop(other);
    };
    let run = runner.run("job", async |_| Ok::<_, ()>(()));
    let (exit, ()) = bounded(async { tokio::join!(run, free_later) }).await;
    assert!(matches!(exit.unwrap(), LeaseExit::Finished(())));
    let tries = tries.lock().unwrap();
    let pauses: Vec<_> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // Timers are in whole milliseconds.
    assert!(pauses.iter().all(|pause| *pause >= RETRY && *pause <= TOP + MS), "{pauses:?}");
    assert!(pauses.iter().any(|pause| *pause > RETRY + MS * 50), "no jitter: {pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn failures_are_retried_said_and_the_first_connection_is_no_exception() {
    let store = MemoryLocker::new();
    let locker = Arc::new(store.peer());
    let kinds = [
        ErrorKind::Unavailable,
        ErrorKind::Indeterminate,
        ErrorKind::LimitReached,
        ErrorKind::Other,
        // What a failover and a changed password look like, to one that was served before.
        ErrorKind::Misconfigured,
        ErrorKind::Denied,
    ];
    kinds.into_iter().for_each(|kind| locker.fail_next(kind));
    let log = Log::default();
    let runner = LeaseRunner::new(locker, log.hooked(LeaseConfig::new())).unwrap();
    let start = TokioClock.now();
    let run = runner.run("job", async |_| Ok::<_, ()>(since(start)));
    let LeaseExit::Finished(waited) = bounded(run).await.unwrap() else { panic!("finished") };
    assert!(waited >= RETRY * 6 && waited <= (TOP + MS) * 6, "{waited:?}");
    let failures = log.lines().iter().filter(|line| line.as_str() == r#""job""#).count();
    assert_eq!(failures, 6, "{:?}", log.lines());
}

#[tokio::test(start_paused = true)]
async fn kinds_that_asking_again_does_not_change_end_the_run() {
    for kind in [
        ErrorKind::Closed,
        ErrorKind::InvalidInput,
        ErrorKind::Unsupported,
        ErrorKind::Misconfigured,
        ErrorKind::Denied,
    ] {
        let (store, log) = (MemoryLocker::new(), Log::default());
        store.fail_next(kind);
        let runner = over(store, log.hooked(LeaseConfig::new()));
        let failed = bounded(runner.run("job", async |_| Ok::<_, ()>(()))).await.unwrap_err();
        assert_eq!(failed.kind(), kind);
        assert_eq!(log.lines(), [r#""job" stands by"#, r#""job""#], "the failure was said");
        // The name is free again.
        assert!(matches!(
            bounded(runner.run("job", async |_| Ok::<_, ()>(()))).await.unwrap(),
            LeaseExit::Finished(())
        ));
    }
    let runner = replica(&MemoryLocker::new());
    assert_eq!(runner.run("", async |_| Ok::<_, ()>(())).await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test(start_paused = true)]
async fn an_error_that_says_when_to_try_again_is_heeded_if_that_is_later() {
    for (hint, least, most) in [(secs(60), secs(60), secs(60)), (secs(1), RETRY, TOP + MS)] {
        let failed = Mutex::new(false);
        let fail = move || {
            let first = !std::mem::replace(&mut *failed.lock().unwrap(), true);
            first.then(|| Error::new(ErrorKind::CircuitOpen, "the breaker is open").with_retry_after(hint))
        };
        let runner = over(Weaker::failing(MemoryLocker::new(), fail), LeaseConfig::new());
        let start = TokioClock.now();
        let run = runner.run("job", async |_| Ok::<_, ()>(since(start)));
        let LeaseExit::Finished(waited) = bounded(run).await.unwrap() else { panic!("finished") };
        assert!(waited >= least && waited <= most, "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grace_that_the_grant_does_not_allow_ends_the_run_and_frees_the_lease() {
    let store = MemoryLocker::new();
    let locker = Weaker::new(store.peer(), |_| {}).with_max_grace(secs(4));
    let runner = over(locker, LeaseConfig::new());
    let failed = bounded(runner.run("job", async |_| Ok::<_, ()>(()))).await.unwrap_err();
    let why = std::error::Error::source(&failed).unwrap().to_string();
    assert_eq!(why, "invalid grace (5s): this locker allows at most 4s for a ttl of 23s; use a longer ttl");
    assert!(store.hold("job").is_ok());
}

/// A leader that says what happens to it.
fn lead(
    name: &'static str,
    log: &Log,
) -> impl FnMut(Term) -> distributed_lock::backend::BoxFuture<'static, Result<(), ()>> {
    let log = log.clone();
    move |term: Term| {
        let log = log.clone();
        Box::pin(async move {
            log.add(format!("{name} leads"));
            let reason = term.cancelled().await;
            tokio::time::sleep(secs(1)).await;
            log.add(format!("{name} ends"));
            match reason {
                CancelReason::StepDown | CancelReason::Closed => Ok(()),
                other => panic!("{other}"),
            }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_asks_for_a_hand_over_and_gets_it_without_overlap() {
    let store = MemoryLocker::new();
    let (a, b, log) = (replica(&store), replica(&store), Log::default());
    let script = async {
        tokio::time::sleep(secs(1)).await;
        assert!(b.take_over("job").unwrap());
        tokio::time::sleep(secs(2)).await;
        assert!(b.step_down("job"));
        tokio::time::sleep(secs(2)).await;
        let (a, b) = tokio::join!(a.close(), b.close());
        a.and(b).unwrap();
    };
    let (a_exit, b_exit, ()) =
        bounded(async { tokio::join!(a.run("job", lead("a", &log)), b.run("job", lead("b", &log)), script) }).await;
    assert_eq!(log.lines(), ["a leads", "a ends", "b leads", "b ends", "a leads", "a ends"]);
    assert!(matches!((a_exit.unwrap(), b_exit.unwrap()), (LeaseExit::Closed(Some(_)), LeaseExit::Closed(None))));
}

#[tokio::test(start_paused = true)]
async fn where_the_store_does_not_queue_a_step_down_lets_every_standby_try_first() {
    for _ in 0..20 {
        let store = MemoryLocker::new();
        let config = LeaseConfig::new();
        let (a, b) = (over(Weaker::polling(store.peer()), config.clone()), over(Weaker::polling(store.peer()), config));
        let log = Log::default();
        let script = async {
            tokio::time::sleep(secs(1)).await;
            assert!(a.step_down("job"));
            tokio::time::sleep(secs(60)).await;
            let (a, b) = tokio::join!(a.close(), b.close());
            a.and(b).unwrap();
        };
        let (a_exit, b_exit, ()) =
            bounded(async { tokio::join!(a.run("job", lead("a", &log)), b.run("job", lead("b", &log)), script) }).await;
        assert_eq!(log.lines(), ["a leads", "a ends", "b leads", "b ends"]);
        assert!(a_exit.is_ok() && b_exit.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_locker_that_cannot_pass_on_a_request_says_so() {
    let runner = over(Weaker::new(MemoryLocker::new(), |can| can.step_down = false), LeaseConfig::new());
    assert_eq!(runner.take_over("job").unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn a_takeover_delay_is_observed_after_every_grant_and_renewed_meanwhile() {
    let store = MemoryLocker::new();
    let delay = secs(60);
    let (log, start) = (Log::default(), TokioClock.now());
    let runner = over(store.peer(), log.hooked(LeaseConfig::new().with_takeover_delay(delay)));
    let starts = Mutex::new(Vec::new());
    let job = async |term: Term| {
        starts.lock().unwrap().push(since(start));
        term.ensure_valid().map(|()| term.remaining().unwrap() > secs(15))
    };
    assert!(matches!(bounded(runner.run("job", job)).await.unwrap(), LeaseExit::Finished(true)));
    assert!(matches!(bounded(runner.run("job", job)).await.unwrap(), LeaseExit::Finished(true)));
    assert_eq!(*starts.lock().unwrap(), [delay, delay * 2]);
    let round =
        [r#""job" stands by"#, r#""job" waits out the takeover delay"#, r#""job" leads"#, r#""job" ended its term"#];
    assert_eq!(log.lines(), [round, round].concat());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_stopped_or_asked_for_in_its_takeover_delay_starts_no_job() {
    let store = MemoryLocker::new();
    let runner = over(store.peer(), LeaseConfig::new().with_takeover_delay(secs(60)));
    let start = TokioClock.now();
    let script = async {
        tokio::time::sleep(secs(59)).await;
        assert!(matches!(runner.watch("job").unwrap().state(), LeaseState::TakingOver(_)));
        store.lose("job", LossCause::SessionEnded).unwrap();
        tokio::time::sleep(secs(59)).await;
        // Given back to somebody who waits.
        let other = {
            let asking = store.acquire("job", TTL);
            let step_down = async { runner.step_down("job") };
            tokio::join!(asking, step_down).0.unwrap()
        };
        other.release().await.unwrap().exclusive().unwrap();
        tokio::time::sleep(secs(59)).await;
        runner.stop("job");
    };
    let run = runner.run("job", async |_| Ok::<_, ()>(()));
    let (exit, ()) = bounded(async { tokio::join!(run, script) }).await;
    assert!(matches!(exit.unwrap(), LeaseExit::Stopped(None)));
    assert_eq!(since(start), secs(59 * 3));
    assert!(store.hold("job").is_ok());
}

#[tokio::test(start_paused = true)]
async fn without_a_confirmed_renewal_the_takeover_delay_ends_in_standing_by() {
    let store = MemoryLocker::new();
    let locker = Arc::new(store.peer());
    let runner = LeaseRunner::new(locker.clone(), LeaseConfig::new().with_takeover_delay(secs(60))).unwrap();
    let start = TokioClock.now();
    let script = async {
        let mut watch = runner.watch("job").unwrap();
        watch.wait_for(|state| matches!(state, LeaseState::TakingOver(_))).await;
        locker.delay(secs(1_000));
        watch.wait_for(|state| matches!(state, LeaseState::Standby)).await;
        // The release got no answer either.
        assert_eq!(since(start), UNCONFIRMED + Duration::from_millis(6_500));
        runner.stop("job");
    };
    let run = runner.run("job", async |_| pending::<Result<(), ()>>().await);
    let (exit, ()) = bounded(async { tokio::join!(run, script) }).await;
    assert!(matches!(exit.unwrap(), LeaseExit::Stopped(None)));
    assert!(since(start) < TTL + GRACE);
}
