//! What the body sees, and what becomes of its value.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use distributed_lock::{
    Attempt, Contention, ErrorKind, Fencing, FencingStrength, Hold, LossCause, ScopedLockerExt, ScopedOptions, Wait,
};
use tokio::time::{Instant, sleep};

use super::{Occupied, VALUE, expect_contended, past};
use crate::conformance::{
    bench::{Bench, PATIENCE, needs},
    case::{Outcome, broken, cases, check},
};

cases! { Scoped:
    body_runs_once_and_its_value_comes_back,
    body_that_fails_is_a_value_and_no_failure_of_the_lock,
    value_that_looks_like_contention_is_a_value,
    body_sees_a_valid_hold_of_its_key,
    body_outlives_the_ttl_and_keeps_others_out,
    body_is_told_of_a_loss_and_runs_on_and_its_value_comes_back_with_it,
    body_that_waits_for_its_own_key_gets_a_deadlock,
    body_can_run_another_under_another_key,
    fenced_body_sees_a_token_or_is_refused_as_unsupported,
    body_without_fencing_sees_no_token,
    tokens_of_bodies_increase,
}

async fn body_runs_once_and_its_value_comes_back(bench: &Bench) -> Outcome {
    let locker = bench.scoped().await?;
    let runs = AtomicU32::new(0);
    let body = async |_| {
        sleep(Duration::from_millis(10)).await;
        runs.fetch_add(1, Ordering::SeqCst) + 41
    };
    match bench.soon("the end of a run", locker.with_lock(bench.key(), body)).await? {
        Ok(41) => {}
        other => return Err(broken!("a body that returned 41: {other:?}")),
    }
    match bench.soon("the end of a run", locker.try_with_lock(bench.key(), async |_| "value")).await? {
        Ok(Attempt::Acquired("value")) => {}
        other => return Err(broken!("a tried body that returned \"value\": {other:?}")),
    }
    let runs = runs.load(Ordering::SeqCst);
    check!(runs == 1, "the body ran {runs} times");
    Ok(())
}

async fn body_that_fails_is_a_value_and_no_failure_of_the_lock(bench: &Bench) -> Outcome {
    let locker = bench.scoped().await?;
    match locker.with_lock(bench.key(), async |_| Err::<(), _>("the work failed")).await {
        Ok(Err("the work failed")) => Ok(()),
        other => Err(broken!("a body that failed: {other:?}")),
    }
}

async fn value_that_looks_like_contention_is_a_value(bench: &Bench) -> Outcome {
    let locker = bench.scoped().await?;
    let body = async |_| Err::<(), _>(Contention::Held);
    match locker.try_with_lock(bench.key(), body).await {
        Ok(Attempt::Acquired(Err(Contention::Held))) => Ok(()),
        other => Err(broken!("a body that returned contention of its own: {other:?}")),
    }
}

async fn body_sees_a_valid_hold_of_its_key(bench: &Bench) -> Outcome {
    let locker = bench.scoped().await?;
    let body = async |hold: Hold| (hold.key().clone(), hold.ensure_valid(), hold.remaining());
    let (key, valid, left) = locker.with_lock(bench.key(), body).await?;
    check!(key == *bench.key(), "the hold of {:?} says it is of {key:?}", bench.key());
    check!(valid.is_ok(), "the hold was over from the start: {valid:?}");
    check!(left.is_none_or(|left| !left.is_zero()), "nothing was left of the hold from the start");
    Ok(())
}

async fn body_outlives_the_ttl_and_keeps_others_out(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    let (run, hold) = Occupied::of(bench, &ours).await?;
    let (started, long) = (Instant::now(), past(bench, &hold));
    while started.elapsed() < long {
        expect_contended(bench, &theirs, "beside another").await?;
        check!(hold.ensure_valid().is_ok(), "the hold ended under its body, {:?} in", started.elapsed());
        sleep(long / 20).await;
    }
    match run.leave(bench).await? {
        Ok(Attempt::Acquired(VALUE)) => Ok(()),
        other => Err(broken!("a body that ran for {long:?}: {other:?}")),
    }
}

async fn body_is_told_of_a_loss_and_runs_on_and_its_value_comes_back_with_it(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    let (mut run, hold) = Occupied::of(bench, &ours).await?;
    bench.lose().await?;
    let loss = bench.soon("a body is told of the loss of its lock", hold.lost()).await?;
    check!(loss.cause() != LossCause::Released, "the cause of the loss is {:?}", loss.cause());
    check!(hold.ensure_valid().is_err(), "a lost hold says that it is valid");
    // Somebody else may run now, while the first body still does.
    let other = theirs.with_lock_within(bench.key(), PATIENCE, async |_| ());
    check!(!other.await?.is_contended(), "the lost key was not free for others");
    check!(!run.running.is_finished(), "the body was not left to its end after the loss");
    check!(run.has_started(), "the body was started again");
    match run.leave(bench).await? {
        Err(failed) if failed.error.kind() == ErrorKind::Lost && failed.value == Some(VALUE) => Ok(()),
        other => Err(broken!("a body that ended after a loss: {other:?}")),
    }
}

async fn body_that_waits_for_its_own_key_gets_a_deadlock(bench: &Bench) -> Outcome {
    let locker = bench.scoped().await?;
    let nested = locker.with_lock(bench.key(), async |_| {
        bench.soon("a nested wait for the same key ends", locker.with_lock(bench.key(), async |_| ())).await
    });
    match nested.await?? {
        Err(failed) if failed.error.kind() == ErrorKind::Deadlock && failed.value.is_none() => {}
        other => return Err(broken!("a nested wait for the same key says {other:?}")),
    }
    // A try is an ordinary try.
    let tried = locker.with_lock(bench.key(), async |_| locker.try_with_lock(bench.key(), async |_| ()).await);
    match tried.await? {
        Ok(Attempt::Contended(Contention::HeldHere)) => Ok(()),
        other => Err(broken!("a nested try for the same key says {other:?}")),
    }
}

async fn body_can_run_another_under_another_key(bench: &Bench) -> Outcome {
    let locker = bench.scoped().await?;
    let other = bench.key_named("-other");
    let nested = locker.with_lock(bench.key(), async |_| {
        bench.soon("a nested run under another key", locker.with_lock(&other, async |_| VALUE)).await
    });
    match nested.await?? {
        Ok(VALUE) => Ok(()),
        other => Err(broken!("a nested run under another key: {other:?}")),
    }
}

async fn fenced_body_sees_a_token_or_is_refused_as_unsupported(bench: &Bench) -> Outcome {
    let locker = bench.scoped().await?;
    let options = ScopedOptions::new(Wait::Never).with_fencing(Fencing::On);
    let able = locker.capabilities().fencing != FencingStrength::Absent;
    let body = async |hold: Hold| hold.fencing_token();
    match (able, locker.with_lock_opts(bench.key(), options, body).await) {
        (true, Ok(Attempt::Acquired(Some(_)))) => Ok(()),
        (false, Err(failed)) if failed.error.kind() == ErrorKind::Unsupported => Ok(()),
        (able, other) => Err(broken!("a fenced run of a locker that says {able} to tokens: {other:?}")),
    }
}

async fn body_without_fencing_sees_no_token(bench: &Bench) -> Outcome {
    let locker = bench.scoped().await?;
    let options = ScopedOptions::new(Wait::Never).with_fencing(Fencing::Off);
    let body = async |hold: Hold| hold.fencing_token();
    match locker.with_lock_opts(bench.key(), options, body).await? {
        Attempt::Acquired(None) => Ok(()),
        other => Err(broken!("a run without fencing: {other:?}")),
    }
}

async fn tokens_of_bodies_increase(bench: &Bench) -> Outcome {
    let lockers = [bench.scoped().await?, bench.scoped().await?];
    needs(lockers[0].capabilities().fencing != FencingStrength::Absent, "it mints no tokens")?;
    let options = ScopedOptions::new(Wait::UpTo(PATIENCE)).with_fencing(Fencing::On);
    let mut last = None;
    for round in 0..6 {
        let body = async |hold: Hold| hold.fencing_token();
        let run = lockers[round % 2].with_lock_opts(bench.key(), options.clone(), body).await?;
        let Attempt::Acquired(token) = run else { return Err(broken!("a free key was refused: {run:?}")) };
        check!(last < token, "token {token:?} came after {last:?}");
        last = token;
    }
    Ok(())
}
