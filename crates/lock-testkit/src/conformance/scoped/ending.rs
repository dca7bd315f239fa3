//! How a run ends, and that its key is free then.

use std::{
    future::pending,
    panic::resume_unwind,
    sync::{Arc, Mutex, PoisonError},
};

use distributed_lock::{Hold, ScopedLockerExt};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{Occupied, expect_contended, expect_free};
use crate::conformance::{
    bench::Bench,
    case::{Outcome, broken, cases, check},
};

cases! { Scoped:
    key_is_free_after_its_body,
    key_is_free_after_a_body_that_failed,
    panic_of_a_body_reaches_the_caller_and_the_key_is_free,
    panic_of_a_tried_body_reaches_the_caller_and_the_key_is_free,
    cancelled_run_drops_its_body_and_frees_the_key,
    key_is_not_free_before_the_body_of_a_cancelled_run_is_gone,
    hold_of_an_ended_run_is_over,
}

async fn key_is_free_after_its_body(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    for locker in [&ours, &theirs, &ours] {
        locker.with_lock(bench.key(), async |_| ()).await?;
        // A run that was answered has released: nothing is left to wait for.
        let next = theirs.try_with_lock(bench.key(), async |_| ()).await?;
        check!(!next.is_contended(), "the key was not free after its body");
    }
    Ok(())
}

async fn key_is_free_after_a_body_that_failed(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    let _failed = ours.with_lock(bench.key(), async |_| Err::<(), _>("the work failed")).await?;
    let next = theirs.try_with_lock(bench.key(), async |_| ()).await?;
    check!(!next.is_contended(), "the key was not free after a body that failed");
    Ok(())
}

/// Panics without a word on the error stream.
async fn fail(_hold: Hold) {
    resume_unwind(Box::new("on purpose"))
}

async fn panic_of_a_body_reaches_the_caller_and_the_key_is_free(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    let (locker, key) = (Arc::clone(&ours), bench.key().clone());
    expect_panic(bench, tokio::spawn(async move { drop(locker.with_lock(&key, fail).await) })).await?;
    expect_free(bench, &theirs, "after its body panicked").await
}

async fn panic_of_a_tried_body_reaches_the_caller_and_the_key_is_free(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    let (locker, key) = (Arc::clone(&ours), bench.key().clone());
    expect_panic(bench, tokio::spawn(async move { drop(locker.try_with_lock(&key, fail).await) })).await?;
    expect_free(bench, &theirs, "after its body panicked").await
}

async fn expect_panic(bench: &Bench, run: JoinHandle<()>) -> Outcome {
    match bench.soon("the end of a run whose body panics", run).await? {
        Ok(()) => Err(broken!("the panic of a body did not reach the caller")),
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => {
                let same = panic.downcast_ref::<&str>() == Some(&"on purpose");
                check!(same, "another panic than that of the body reached the caller");
                Ok(())
            }
            Err(_) => Err(broken!("a run whose body panics was cancelled")),
        },
    }
}

async fn cancelled_run_drops_its_body_and_frees_the_key(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    let (run, hold) = Occupied::of(bench, &ours).await?;
    expect_contended(bench, &theirs, "beside another").await?;
    run.cancel().await;
    check!(hold.ensure_valid().is_err(), "the hold of a cancelled run says that it is valid");
    expect_free(bench, &theirs, "after its run was cancelled").await
}

async fn key_is_not_free_before_the_body_of_a_cancelled_run_is_gone(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    let seen = Arc::new(Mutex::new(None));
    let (locker, key, witness) = (Arc::clone(&ours), bench.key().clone(), Arc::clone(&seen));
    let (report, started) = oneshot::channel();
    let run = tokio::spawn(async move {
        let body = async move |hold| {
            let _witness = Witness { hold, seen: witness };
            let _ = report.send(());
            pending::<()>().await
        };
        drop(locker.with_lock(&key, body).await);
    });
    let begun = bench.soon("the start of a body", started).await?;
    check!(begun.is_ok(), "a run ended without starting its body");
    run.abort();
    let joined = bench.soon("the end of a cancelled run", run).await?;
    check!(joined.is_err_and(|failed| failed.is_cancelled()), "a run could not be cancelled");
    let seen = *seen.lock().unwrap_or_else(PoisonError::into_inner);
    match seen {
        Some(true) => expect_free(bench, &theirs, "after its run was cancelled").await,
        Some(false) => Err(broken!("the lock was given up while the body of a cancelled run was still there")),
        None => Err(broken!("the body of a cancelled run was not dropped with it")),
    }
}

/// Looks, when it is dropped with the body that owns it, whether the body still had its lock.
struct Witness {
    hold: Hold,
    seen: Arc<Mutex<Option<bool>>>,
}

impl Drop for Witness {
    fn drop(&mut self) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.hold.ensure_valid().is_ok());
    }
}

async fn hold_of_an_ended_run_is_over(bench: &Bench) -> Outcome {
    let locker = bench.scoped().await?;
    let (run, hold) = Occupied::of(bench, &locker).await?;
    let told = hold.lost();
    let _ended = run.leave(bench).await?;
    check!(hold.ensure_valid().is_err(), "the hold of a run that ended says that it is valid");
    bench.not_yet("the end of a run was told as a loss", told).await
}
