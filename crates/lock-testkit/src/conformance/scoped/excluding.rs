//! One body at a time.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use distributed_lock::{Attempt, Contention, Locker, LockerExt, ScopedLockerExt};

use super::{Occupied, VALUE, expect_contended, expect_free};
use crate::conformance::{
    bench::{Bench, LONG},
    case::{Outcome, broken, cases, check},
};

cases! { Scoped:
    contended_try_does_not_run_the_body,
    key_of_a_body_is_refused_to_its_own_locker_as_held_here,
    bodies_under_distinct_keys_run_side_by_side,
    crowd_of_bodies_runs_one_at_a_time,
    session_lock_keeps_bodies_out,
    body_keeps_session_locks_out,
}

async fn contended_try_does_not_run_the_body(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    let (run, hold) = Occupied::of(bench, &ours).await?;
    let why = expect_contended(bench, &theirs, "beside another").await?;
    check!(why == Contention::Held, "the reason is {why:?}, not Held");
    check!(hold.ensure_valid().is_ok(), "the body lost its key by somebody else's try");
    match run.leave(bench).await? {
        Ok(Attempt::Acquired(VALUE)) => Ok(()),
        other => Err(broken!("a run that somebody else tried to get past: {other:?}")),
    }
}

async fn key_of_a_body_is_refused_to_its_own_locker_as_held_here(bench: &Bench) -> Outcome {
    let locker = bench.scoped().await?;
    let (_run, _hold) = Occupied::of(bench, &locker).await?;
    let why = expect_contended(bench, &locker, "beside another of its own locker").await?;
    check!(why == Contention::HeldHere, "the reason is {why:?}, not HeldHere");
    Ok(())
}

async fn bodies_under_distinct_keys_run_side_by_side(bench: &Bench) -> Outcome {
    let locker = bench.scoped().await?;
    let (_run, _hold) = Occupied::of(bench, &locker).await?;
    let other = locker.try_with_lock(bench.key_named("-other"), async |_| VALUE).await?;
    check!(!other.is_contended(), "a body was refused its key because another was held");
    Ok(())
}

async fn crowd_of_bodies_runs_one_at_a_time(bench: &Bench) -> Outcome {
    const CROWD: usize = 8;
    let lockers = [bench.scoped().await?, bench.scoped().await?];
    let inside = Arc::new(AtomicUsize::new(0));
    let crowd: Vec<_> = (0..CROWD)
        .map(|n| {
            let (locker, key, inside) = (Arc::clone(&lockers[n % 2]), bench.key().clone(), Arc::clone(&inside));
            tokio::spawn(async move { locker.with_lock(&key, async |_| count(&inside).await).await })
        })
        .collect();
    for one in crowd {
        let most = bench.soon("a turn for everybody in the crowd", one).await?;
        let most = most.map_err(|failed| broken!("a turn panicked: {failed}"))??;
        check!(most == 1, "{most} bodies ran at once");
    }
    Ok(())
}

/// How many were inside during this turn.
async fn count(inside: &AtomicUsize) -> usize {
    let mut most = inside.fetch_add(1, Ordering::SeqCst) + 1;
    for _ in 0..3 {
        tokio::task::yield_now().await;
        most = most.max(inside.load(Ordering::SeqCst));
    }
    inside.fetch_sub(1, Ordering::SeqCst);
    most
}

async fn session_lock_keeps_bodies_out(bench: &Bench) -> Outcome {
    let scoped = bench.scoped().await?;
    let locker: Arc<dyn Locker> = bench.locker().await?;
    let guard = bench.take(&locker, LONG).await?;
    expect_contended(bench, &scoped, "beside a session lock").await?;
    check!(guard.ensure_valid().is_ok(), "a session lock was lost by the try of a body");
    let _how_it_ended = guard.release().await?;
    expect_free(bench, &scoped, "after a session lock was released").await
}

async fn body_keeps_session_locks_out(bench: &Bench) -> Outcome {
    let scoped = bench.scoped().await?;
    let locker: Arc<dyn Locker> = bench.locker().await?;
    let (run, hold) = Occupied::of(bench, &scoped).await?;
    let tried = locker.try_acquire(bench.key(), LONG).await?;
    check!(tried.is_contended(), "a session lock was given beside a body");
    check!(hold.ensure_valid().is_ok(), "a body lost its key by the try of a session lock");
    let _ended = run.leave(bench).await?;
    bench.expect_free(&locker, "after a body ended").await?;
    Ok(())
}
