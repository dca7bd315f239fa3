//! Runs that wait for their key.

use std::{collections::VecDeque, time::Duration};

use distributed_lock::{Attempt, Contention, Fairness, Wait};
use tokio::time::{Instant, sleep};

use super::{Occupied, VALUE, expect_free};
use crate::conformance::{
    bench::{Bench, needs},
    case::{Outcome, broken, cases, check},
};

cases! { Scoped:
    waiting_body_starts_after_the_other_ended_and_not_before,
    run_with_a_limit_ends_with_its_budget_and_does_not_run_the_body,
    run_with_a_limit_of_zero_is_a_try,
    run_with_a_sub_millisecond_limit_ends,
    run_with_a_huge_limit_waits_and_gets_the_key,
    dropped_waiting_run_leaves_the_queue,
    waiting_bodies_run_in_the_order_they_came,
}

async fn waiting_body_starts_after_the_other_ended_and_not_before(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    for locker in [&theirs, &ours] {
        let (run, hold) = Occupied::of(bench, &ours).await?;
        let mut waiting = Occupied::start(bench, locker, Wait::Forever);
        sleep(Duration::from_millis(250)).await;
        check!(!waiting.has_started(), "a body started beside another");
        check!(hold.ensure_valid().is_ok(), "a body lost its key to a waiter");
        let _ended = run.leave(bench).await?;
        let next = waiting.hold(bench).await?;
        check!(next.ensure_valid().is_ok(), "the hold of a body that waited was over from the start");
        match waiting.leave(bench).await? {
            Ok(Attempt::Acquired(VALUE)) => {}
            other => return Err(broken!("a body that waited: {other:?}")),
        }
    }
    Ok(())
}

async fn elapses(bench: &Bench, wait: Duration, expected: Contention) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    let (_run, _hold) = Occupied::of(bench, &ours).await?;
    // So that the budget is for the key and not for a connection.
    theirs.ping().await?;
    let started = Instant::now();
    let mut waiting = Occupied::start(bench, &theirs, Wait::UpTo(wait));
    while !waiting.running.is_finished() && started.elapsed() <= wait + bench.slack() {
        sleep(Duration::from_millis(1)).await;
    }
    let took = started.elapsed();
    check!(!waiting.has_started() || waiting.running.is_finished(), "a body started beside another");
    check!(waiting.running.is_finished(), "a run with a limit of {wait:?} still waits after {took:?}");
    check!(took >= wait, "a run with a limit of {wait:?} ended after {took:?}");
    match waiting.answer(bench).await? {
        Ok(Attempt::Contended(why)) if why == expected => Ok(()),
        other => Err(broken!("a run with a limit of {wait:?} says {other:?}, not {expected:?}")),
    }
}

async fn run_with_a_limit_ends_with_its_budget_and_does_not_run_the_body(bench: &Bench) -> Outcome {
    elapses(bench, Duration::from_millis(300), Contention::WaitElapsed).await
}

async fn run_with_a_limit_of_zero_is_a_try(bench: &Bench) -> Outcome {
    elapses(bench, Duration::ZERO, Contention::Held).await
}

async fn run_with_a_sub_millisecond_limit_ends(bench: &Bench) -> Outcome {
    elapses(bench, Duration::from_nanos(1), Contention::WaitElapsed).await
}

async fn run_with_a_huge_limit_waits_and_gets_the_key(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    for huge in [Duration::MAX, Duration::from_millis(u64::MAX)] {
        let (run, _hold) = Occupied::of(bench, &ours).await?;
        let mut waiting = Occupied::start(bench, &theirs, Wait::UpTo(huge));
        sleep(Duration::from_millis(100)).await;
        check!(
            !waiting.running.is_finished(),
            "a run with a limit of {huge:?} ended: {:?}",
            waiting.answer(bench).await?
        );
        let _ended = run.leave(bench).await?;
        waiting.hold(bench).await?;
        let _ended = waiting.leave(bench).await?;
    }
    Ok(())
}

async fn dropped_waiting_run_leaves_the_queue(bench: &Bench) -> Outcome {
    let (ours, theirs, third) = (bench.scoped().await?, bench.scoped().await?, bench.scoped().await?);
    let (run, _hold) = Occupied::of(bench, &ours).await?;
    let waiting = Occupied::start(bench, &theirs, Wait::Forever);
    sleep(Duration::from_millis(100)).await;
    waiting.cancel().await;
    let _ended = run.leave(bench).await?;
    expect_free(bench, &third, "after a run that waited for it was dropped").await
}

async fn waiting_bodies_run_in_the_order_they_came(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    needs(ours.capabilities().fairness == Fairness::Fifo, "it promises no order")?;
    let (mut running, _hold) = Occupied::of(bench, &ours).await?;
    let mut queue = VecDeque::new();
    for place in 1..=4 {
        queue.push_back(Occupied::start(bench, if place % 2 == 0 { &ours } else { &theirs }, Wait::Forever));
        bench.queued(place).await?;
    }
    for place in 1..=4 {
        let _ended = running.leave(bench).await?;
        let Some(mut first) = queue.pop_front() else { return Err(broken!("the queue is shorter than it was made")) };
        first.hold(bench).await?;
        check!(!queue.iter_mut().any(Occupied::has_started), "somebody got the key before run {place}");
        running = first;
    }
    Ok(())
}
