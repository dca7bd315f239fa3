//! The order of waiters, where one is promised.

use distributed_lock::{AcquireOptions, Error, Fairness, Ttl, Wait};

use super::{
    bench::{Bench, LONG, needs},
    case::{Outcome, broken, cases, check},
};

cases! { Locker:
    waiters_are_served_in_the_order_they_came,
    try_does_not_get_past_a_waiter,
    place_of_a_dropped_waiter_goes_to_the_next,
    step_down_request_of_a_waiter_reaches_the_holder,
}

async fn waiters_are_served_in_the_order_they_came(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    needs(ours.capabilities().fairness == Fairness::Fifo, "it promises no order")?;
    let mut holder = bench.take(&ours, LONG).await?;
    let mut queue = std::collections::VecDeque::new();
    for place in 1..=4 {
        queue.push_back(bench.waiter(if place % 2 == 0 { &ours } else { &theirs }, Wait::Forever)?);
        bench.queued(place).await?;
    }
    for place in 1..=4 {
        let _how_it_ended = holder.release().await?;
        let Some(first) = queue.pop_front() else { return Err(broken!("the queue is shorter than it was made")) };
        holder = first.guard(bench).await?;
        check!(queue.iter().all(super::bench::Waiter::is_waiting), "somebody got the key before waiter {place}");
    }
    Ok(())
}

async fn try_does_not_get_past_a_waiter(bench: &Bench) -> Outcome {
    let (ours, theirs, third) = (bench.locker().await?, bench.locker().await?, bench.locker().await?);
    needs(ours.capabilities().fairness == Fairness::Fifo, "it promises no order")?;
    let guard = bench.take(&ours, LONG).await?;
    let waiter = bench.waiter(&theirs, Wait::Forever)?;
    bench.queued(1).await?;
    let _how_it_ended = guard.release().await?;
    bench.expect_contended(&third, "while somebody had waited for it longer").await?;
    let _next = waiter.guard(bench).await?;
    Ok(())
}

async fn place_of_a_dropped_waiter_goes_to_the_next(bench: &Bench) -> Outcome {
    let (ours, theirs, third) = (bench.locker().await?, bench.locker().await?, bench.locker().await?);
    needs(ours.capabilities().fairness == Fairness::Fifo, "it promises no order")?;
    let guard = bench.take(&ours, LONG).await?;
    let first = bench.waiter(&theirs, Wait::Forever)?;
    bench.queued(1).await?;
    let second = bench.waiter(&third, Wait::Forever)?;
    bench.queued(2).await?;
    first.cancel().await;
    check!(second.is_waiting(), "a waiter got a key that is held");
    let _how_it_ended = guard.release().await?;
    let next = second.guard(bench).await?;
    check!(next.ensure_valid().is_ok(), "the waiter's hold was over from the start");
    Ok(())
}

async fn step_down_request_of_a_waiter_reaches_the_holder(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    needs(ours.capabilities().step_down, "it passes no step-down requests on")?;
    let guard = bench.take(&ours, LONG).await?;
    let asked = guard.hold().step_down_requested();
    let _polite = bench.waiter(&theirs, Wait::Forever)?;
    bench
        .not_yet("the holder was asked to step down by a waiter who did not", guard.hold().step_down_requested())
        .await?;
    let options = AcquireOptions::new(Ttl::new(LONG).map_err(Error::from)?).with_wait(Wait::Forever);
    let _waiter = bench.waiter_with(&theirs, options.with_step_down_request());
    bench.soon("the holder is asked to step down", asked).await?;
    check!(guard.ensure_valid().is_ok(), "a step-down request took the key away");
    Ok(())
}
