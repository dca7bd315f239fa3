//! How runs end.

use std::{future::pending, time::Duration};

use distributed_lock::{
    Backend, Clock, Error, ErrorKind, LossCause, MemoryLocker, TokioClock,
    lease::{CancelReason, LeaseConfig, LeaseExit, LeaseState, Stall, Term},
};

use crate::support::{GRACE, Log, MS, TTL, Weaker, bounded, is_free, over, replica, secs, since};

#[tokio::test(start_paused = true)]
async fn ok_finishes_err_fails_a_panic_is_reported_and_the_lease_is_free_after_each() {
    let store = MemoryLocker::new();
    let runner = replica(&store);
    assert!(matches!(bounded(runner.run("job", async |_| Ok::<_, ()>(7))).await.unwrap(), LeaseExit::Finished(7)));
    assert!(is_free(&store, "job").await);
    assert!(matches!(bounded(runner.run("job", async |_| Err::<(), _>("no"))).await.unwrap(), LeaseExit::Failed("no")));
    assert!(is_free(&store, "job").await);
    let boom = |_: Term| async { if true { panic!("boom") } else { Ok::<(), ()>(()) } };
    let exit = bounded(runner.run("job", boom)).await.unwrap();
    assert!(matches!(exit, LeaseExit::Panicked(text) if text == "boom"));
    assert!(is_free(&store, "job").await);
}

#[tokio::test(start_paused = true)]
async fn a_panic_before_the_first_await_while_draining_and_in_the_drop_is_reported_too() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in the drop");
        }
    }
    let store = MemoryLocker::new();
    let runner = replica(&store);
    let at_once = |_: Term| -> std::future::Ready<Result<(), ()>> { panic!("{}", "at once") };
    let exit = bounded(runner.run("job", at_once)).await.unwrap();
    assert!(matches!(exit, LeaseExit::Panicked(text) if text == "at once"));
    let draining = async |term: Term| {
        runner.stop("job");
        term.cancelled().await;
        if true { panic!("draining") } else { Ok::<(), ()>(()) }
    };
    let exit = bounded(runner.run("job", draining)).await.unwrap();
    assert!(matches!(exit, LeaseExit::Panicked(text) if text == "draining"));
    let dropped = async |_: Term| {
        let _bomb = Bomb;
        runner.stop("job");
        pending::<Result<(), ()>>().await
    };
    let exit = bounded(runner.run("job", dropped)).await.unwrap();
    assert!(matches!(exit, LeaseExit::Panicked(text) if text == "in the drop"));
    assert!(is_free(&store, "job").await);
}

#[tokio::test(start_paused = true)]
async fn the_same_name_twice_is_refused_and_free_again_afterwards() {
    let runner = replica(&MemoryLocker::new());
    let again = runner.clone();
    let outer = runner.run("job", async |_| {
        let refused = again.run("job", async |_| Ok::<(), ()>(())).await.unwrap_err();
        Ok::<_, Error>((refused.kind(), refused.to_string()))
    });
    let LeaseExit::Finished((kind, message)) = bounded(outer).await.unwrap() else { panic!("finished") };
    assert_eq!(kind, ErrorKind::AlreadyRunning);
    assert_eq!(message, r#"a job of this name already runs in this runner (lock "job")"#);
    assert!(matches!(bounded(runner.run("job", async |_| Ok::<(), ()>(()))).await.unwrap(), LeaseExit::Finished(())));
}

#[tokio::test(start_paused = true)]
async fn a_run_inside_a_job_of_the_same_lease_is_a_deadlock() {
    let store = MemoryLocker::new();
    let locker = std::sync::Arc::new(store.peer());
    let runner = || distributed_lock::lease::LeaseRunner::new(locker.clone(), LeaseConfig::new()).unwrap();
    let (outer, inner) = (runner(), runner());
    let nested = outer.run("job", async |_| inner.run("job", async |_| Ok::<(), ()>(())).await.map(drop));
    let LeaseExit::Failed(error) = bounded(nested).await.unwrap() else { panic!("failed") };
    assert_eq!(error.kind(), ErrorKind::Deadlock);
}

#[tokio::test(start_paused = true)]
async fn stop_keeps_the_jobs_own_result_also_an_error() {
    let store = MemoryLocker::new();
    let runner = replica(&store);
    let run = runner.run("job", async |term: Term| {
        assert!(runner.stop("job"));
        assert!(matches!(term.cancelled().await, CancelReason::Stopped));
        tokio::time::sleep(secs(1)).await;
        Err::<(), _>("half done")
    });
    let LeaseExit::Stopped(Some(end)) = bounded(run).await.unwrap() else { panic!("stopped") };
    assert_eq!(end.result, Some(Err("half done")));
    assert!(matches!(end.reason, Some(CancelReason::Stopped)) && end.loss.is_none() && end.overrun.is_zero());
    assert!(end.fencing_token.is_some());
    assert!(is_free(&store, "job").await);
    assert!(!runner.stop("job") && !runner.step_down("job") && !runner.take_over("job").unwrap(), "no run, no order");
    assert!(!runner.stop(""), "no such name");
}

#[tokio::test(start_paused = true)]
async fn a_standby_is_stopped_at_once() {
    let store = MemoryLocker::new();
    let runner = replica(&store);
    let _other = store.hold("job").unwrap();
    let start = TokioClock.now();
    let stop = async {
        tokio::time::sleep(secs(1)).await;
        assert!(runner.stop("job"));
    };
    let (exit, ()) = bounded(async { tokio::join!(runner.run("job", async |_| Ok::<(), ()>(())), stop) }).await;
    assert!(matches!(exit.unwrap(), LeaseExit::Stopped(None)));
    assert_eq!(since(start), secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_comes_while_the_job_drains_for_a_loss_ends_the_run_and_keeps_value_and_loss() {
    let store = MemoryLocker::new();
    let runner = replica(&store);
    let run = runner.run("job", async |term: Term| {
        store.lose("job", LossCause::SessionEnded).unwrap();
        assert!(matches!(term.cancelled().await, CancelReason::Lost(_)));
        runner.stop("job");
        tokio::time::sleep(secs(2)).await;
        Ok::<_, ()>("late")
    });
    let LeaseExit::Stopped(Some(end)) = bounded(run).await.unwrap() else { panic!("stopped") };
    assert_eq!((end.result, end.overrun), (Some(Ok("late")), secs(2)));
    assert_eq!(end.loss.unwrap().cause(), LossCause::SessionEnded);
}

#[tokio::test(start_paused = true)]
async fn close_ends_leaders_standbys_and_later_runs_and_returns_when_the_leases_are_free() {
    let store = MemoryLocker::new();
    let runner = replica(&store);
    let _other = store.hold("held elsewhere").unwrap();
    let start = TokioClock.now();
    let closer = async {
        tokio::time::sleep(secs(1)).await;
        runner.close().await.unwrap();
        assert_eq!(since(start), secs(1) + GRACE, "the grace of a deaf job, and not more");
        assert!(is_free(&store, "deaf").await && is_free(&store, "polite").await);
    };
    let (deaf, polite, standby, ()) = bounded(async {
        tokio::join!(
            runner.run("deaf", async |_| pending::<Result<(), ()>>().await),
            runner.run("polite", async |term: Term| Err::<(), _>(term.cancelled().await)),
            runner.run("held elsewhere", async |_| Ok::<(), ()>(())),
            closer,
        )
    })
    .await;
    assert!(matches!(deaf.unwrap(), LeaseExit::Closed(Some(end)) if end.result.is_none()));
    let LeaseExit::Closed(Some(polite)) = polite.unwrap() else { panic!("closed") };
    assert!(matches!(polite.result, Some(Err(CancelReason::Closed))));
    assert!(matches!(standby.unwrap(), LeaseExit::Closed(None)));
    assert_eq!(runner.run("job", async |_| Ok::<(), ()>(())).await.unwrap_err().kind(), ErrorKind::Closed);
    runner.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn close_is_bounded_by_the_drain_budget_though_releases_hang_and_runs_are_not_polled() {
    let store = MemoryLocker::new();
    let runner = over(Weaker::with_hanging_releases(store.peer()), LeaseConfig::new());
    let start = TokioClock.now();
    let deaf = runner.run("job", async |_| pending::<Result<(), ()>>().await);
    let close = async {
        let mut watch = runner.watch("job").unwrap();
        watch.wait_for(|state| matches!(state, LeaseState::Leading(_))).await;
        runner.close().await
    };
    let (exit, closed) = bounded(async { tokio::join!(deaf, close) }).await;
    assert!(matches!(exit.unwrap(), LeaseExit::Closed(_)) && closed.is_ok());
    assert_eq!(since(start), GRACE + Duration::from_millis(6_500), "grace + what a release may take");
    assert!(is_free(&store, "job").await, "freed by the drop");

    let (runner, start) = (replica(&store), TokioClock.now());
    let mut never_polled_again = Box::pin(runner.run("job", async |_| pending::<Result<(), ()>>().await));
    assert!(futures_poll(&mut never_polled_again).is_none());
    let failed = bounded(runner.close()).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Indeterminate);
    assert_eq!(since(start), GRACE + Duration::from_millis(6_600));
    assert!(!is_free(&store, "job").await);
}

fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(future).poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_overstays_its_longest_term_is_told_dropped_and_stalled() {
    let store = MemoryLocker::new();
    let runner = over(store.peer(), LeaseConfig::new().with_max_term(secs(60)));
    let (log, start) = (Log::default(), TokioClock.now());
    let run = runner.run("job", async |term: Term| {
        let _dropped = log.on_drop(start);
        assert!(matches!(term.cancelled().await, CancelReason::Stalled(Stall::MaxTerm)));
        log.add(format!("told after {:?}", since(start)));
        pending::<Result<(), ()>>().await
    });
    let LeaseExit::Stalled(Stall::MaxTerm, end) = bounded(run).await.unwrap() else { panic!("stalled") };
    assert!(end.result.is_none() && end.loss.is_none(), "held to the end");
    assert_eq!(log.lines(), ["told after 60s", "dropped after 65s"]);
    assert!(is_free(&store, "job").await);
}

#[tokio::test(start_paused = true)]
async fn progress_keeps_a_job_from_stalling_and_its_value_is_kept_when_it_stalls() {
    let runner = over(MemoryLocker::new(), LeaseConfig::new().with_progress_deadline(secs(10)));
    let start = TokioClock.now();
    let run = runner.run("job", async |term: Term| {
        for _ in 0..20 {
            tokio::time::sleep(secs(10) - MS).await;
            term.progress();
        }
        let reason = term.cancelled().await;
        Ok::<_, ()>((since(start), reason.to_string()))
    });
    let LeaseExit::Stalled(Stall::Progress, end) = bounded(run).await.unwrap() else { panic!("stalled") };
    let told = (secs(10) - MS) * 20 + secs(10);
    assert_eq!(end.result, Some(Ok((told, "the job showed no progress in time".to_owned()))));
}

#[tokio::test(start_paused = true)]
async fn a_run_can_be_spawned_and_a_closed_locker_ends_it() {
    let locker = std::sync::Arc::new(MemoryLocker::new());
    let runner = distributed_lock::lease::LeaseRunner::new(locker.clone(), LeaseConfig::new()).unwrap();
    let run = tokio::spawn(async move {
        runner.run("job", |term: Term| async move { Err::<(), _>(term.cancelled().await) }).await
    });
    tokio::time::sleep(secs(1)).await;
    locker.close().await.unwrap();
    assert_eq!(bounded(run).await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_drops_the_job_frees_the_lease_and_the_name_in_this_order() {
    struct Probe(MemoryLocker, distributed_lock::lease::LeaseRunner, Log);
    impl Drop for Probe {
        fn drop(&mut self) {
            let held = self.0.hold("job").is_err();
            let watched = self.1.watch("job").unwrap().state();
            self.2.add(format!("held: {held}, name in use: {}", !matches!(watched, LeaseState::Idle)));
        }
    }
    let store = MemoryLocker::new();
    let (runner, log) = (replica(&store), Log::default());
    let run = runner.run("job", async |_| {
        let _probe = Probe(store.peer(), runner.clone(), log.clone());
        pending::<Result<(), ()>>().await
    });
    assert!(tokio::time::timeout(TTL * 3, run).await.is_err());
    assert_eq!(log.lines(), ["held: true, name in use: true"]);
    assert!(is_free(&store, "job").await);
    assert!(matches!(runner.watch("job").unwrap().state(), LeaseState::Idle));
    assert!(matches!(bounded(runner.run("job", async |_| Ok::<_, ()>(1))).await.unwrap(), LeaseExit::Finished(1)));
}
