//! Orders against starting terms, on several threads and in real time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use distributed_lock::{
    ErrorKind, MemoryLocker,
    lease::{LeaseConfig, LeaseExit, LeaseRunner, LeaseState, Term},
};

use crate::support::{is_free, over, replica, secs};

/// How many jobs of one name run.
#[derive(Clone, Default)]
struct Alone(Arc<AtomicU32>);

struct Inside(Alone);

impl Alone {
    fn enter(&self) -> Inside {
        assert_eq!(self.0.fetch_add(1, Ordering::SeqCst), 0, "two jobs of one name at a time");
        Inside(self.clone())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A job that ends when told, or by itself after some turns of the runtime.
async fn job(term: Term, alone: Alone, turns: u32) -> Result<u32, ()> {
    let _inside = alone.enter();
    for _ in 0..turns {
        if term.cancel_reason().is_some() {
            return Err(());
        }
        tokio::task::yield_now().await;
    }
    let ever = if turns % 2 == 0 { secs(0) } else { secs(1_000) };
    tokio::select! {
        _why = term.cancelled() => Err(()),
        () = tokio::time::sleep(ever) => Ok(turns),
    }
}

fn spawn(
    runner: &LeaseRunner,
    alone: &Alone,
    turns: u32,
) -> tokio::task::JoinHandle<distributed_lock::Result<LeaseExit<u32, ()>>> {
    let (runner, alone) = (runner.clone(), alone.clone());
    tokio::spawn(async move { runner.run("job", |term| job(term, alone.clone(), turns)).await })
}

async fn in_time<F: Future>(round: u64, what: &str, future: F) -> F::Output {
    tokio::time::timeout(secs(20), future).await.unwrap_or_else(|_| panic!("round {round}: {what} never ended"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn orders_and_starting_terms_in_every_order_end_every_run_and_never_give_two_jobs() {
    for round in 0..lock_testkit::requirement::rounds(200) {
        let store = MemoryLocker::new();
        let (a, b, alone) = (replica(&store), replica(&store), Alone::default());
        let turns = u32::try_from(round % 7).unwrap();
        let runs = [spawn(&a, &alone, turns), spawn(&b, &alone, turns + 1)];
        let orders: Vec<_> = (0..4)
            .map(|n| {
                let (a, b) = (a.clone(), b.clone());
                tokio::spawn(async move {
                    for step in 0..(round + n) % 5 {
                        tokio::task::yield_now().await;
                        let runner = if step % 2 == 0 { &a } else { &b };
                        match n {
                            0 => runner.step_down("job"),
                            1 => runner.take_over("job").unwrap(),
                            2 => runner.health().is_ok(),
                            _ => step == 3 && runner.stop("job"),
                        };
                    }
                })
            })
            .collect();
        for order in orders {
            in_time(round, "an order", order).await.unwrap();
        }
        let closed = in_time(round, "close", async { tokio::join!(a.close(), b.close()) }).await;
        closed.0.and(closed.1).unwrap();
        for run in runs {
            // A panic, as of two jobs at a time, is an exit.
            match in_time(round, "a run", run).await.unwrap() {
                Ok(LeaseExit::Finished(_) | LeaseExit::Failed(()) | LeaseExit::Stopped(_) | LeaseExit::Closed(_)) => {}
                Err(late) if late.kind() == ErrorKind::Closed => {}
                other => panic!("round {round}: {other:?}"),
            }
        }
        assert!(is_free(&store, "job").await, "round {round}");
        assert!(matches!(a.watch("job").unwrap().state(), LeaseState::Idle));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stop_seen_by_nobody_but_a_run_that_was_there_is_never_lost() {
    for round in 0..lock_testkit::requirement::rounds(200) {
        let store = MemoryLocker::new();
        let runner = over(store.peer(), LeaseConfig::new().with_grace(Duration::ZERO));
        let run = spawn(&runner, &Alone::default(), 1);
        let stop = {
            let runner = runner.clone();
            tokio::spawn(async move {
                while !runner.stop("job") {
                    tokio::task::yield_now().await;
                }
            })
        };
        in_time(round, "the stop", stop).await.unwrap();
        let exit = in_time(round, "the run", run).await.unwrap().unwrap();
        assert!(matches!(exit, LeaseExit::Stopped(_)), "round {round}: {exit:?}");
        assert!(is_free(&store, "job").await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_starts_while_the_runner_closes_is_ended_or_refused() {
    for round in 0..lock_testkit::requirement::rounds(200) {
        let store = MemoryLocker::new();
        let (runner, alone) = (replica(&store), Alone::default());
        let run = {
            let (runner, alone) = (runner.clone(), alone.clone());
            tokio::spawn(async move { runner.run("job", |term| job(term, alone.clone(), 1)).await })
        };
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        in_time(round, "close", runner.close()).await.unwrap();
        assert_eq!(alone.0.load(Ordering::SeqCst), 0, "round {round}: a job runs on after close");
        match in_time(round, "the run", run).await.unwrap() {
            Ok(exit) => assert!(matches!(exit, LeaseExit::Closed(_)), "round {round}: {exit:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Closed),
        }
        assert!(is_free(&store, "job").await);
    }
}
