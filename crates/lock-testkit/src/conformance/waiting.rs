//! Waiting acquires and their budgets.

use std::time::Duration;

use distributed_lock::{Attempt, Contention, ErrorKind, LockerExt, Wait};
use tokio::time::{Instant, sleep};

use super::{
    bench::{Bench, LONG},
    case::{Outcome, broken, cases, check},
};

cases! { Locker:
    waiter_gets_the_released_key,
    waiter_gets_the_key_of_a_dropped_guard,
    wait_of_zero_is_a_try,
    sub_millisecond_wait_ends_and_is_no_wait_for_ever,
    huge_wait_waits_and_gets_the_key,
    wait_ends_with_its_budget_and_says_so,
    budget_counts_from_the_call_however_often_the_holder_renews,
    elapsed_wait_leaves_the_queue,
    dropped_waiter_leaves_the_queue,
    wait_for_a_key_of_the_same_task_is_a_deadlock,
    waiters_of_different_keys_do_not_hold_each_other_up,
}

async fn waiter_gets_the_released_key(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    for locker in [&theirs, &ours] {
        let guard = bench.take_soon(&ours, "before a waiter comes").await?;
        let waiter = bench.waiter(locker, Wait::Forever)?;
        bench
            .not_yet("a wait for a held key ended", async {
                while waiter.is_waiting() {
                    sleep(Duration::from_millis(10)).await
                }
            })
            .await?;
        check!(guard.ensure_valid().is_ok(), "the holder lost it to a waiter");
        let _how_it_ended = guard.release().await?;
        let next = waiter.guard(bench).await?;
        check!(next.ensure_valid().is_ok(), "the waiter's hold was over from the start");
        bench.freed(&ours, bench.key(), next).await?;
    }
    Ok(())
}

async fn waiter_gets_the_key_of_a_dropped_guard(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let guard = bench.take(&ours, LONG).await?;
    let waiter = bench.waiter(&theirs, Wait::Forever)?;
    sleep(Duration::from_millis(50)).await;
    check!(waiter.is_waiting(), "a wait for a held key ended");
    drop(guard);
    let next = waiter.guard(bench).await?;
    check!(next.ensure_valid().is_ok(), "the waiter's hold was over from the start");
    Ok(())
}

async fn wait_of_zero_is_a_try(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let _guard = match ours.acquire_within(bench.key(), LONG, Duration::ZERO).await? {
        Attempt::Acquired(guard) => guard,
        Attempt::Contended(why) => return Err(broken!("a wait of zero for a free key was contended: {why}")),
    };
    let started = Instant::now();
    match bench.waiter(&theirs, Wait::UpTo(Duration::ZERO))?.answer(bench).await? {
        Ok(Attempt::Contended(Contention::Held)) => {}
        other => return Err(broken!("a wait of zero for a held key says {other:?}, not Held")),
    }
    check!(started.elapsed() <= bench.slack(), "a wait of zero took {:?}", started.elapsed());
    Ok(())
}

async fn sub_millisecond_wait_ends_and_is_no_wait_for_ever(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let _guard = bench.take(&ours, LONG).await?;
    // So that the budget is for the key and not for a connection.
    theirs.ping().await?;
    for short in [Duration::from_nanos(1), Duration::from_micros(999)] {
        let started = Instant::now();
        match bench.waiter(&theirs, Wait::UpTo(short))?.answer(bench).await? {
            Ok(Attempt::Contended(Contention::WaitElapsed)) => {}
            other => return Err(broken!("a wait of {short:?} says {other:?}, not WaitElapsed")),
        }
        check!(started.elapsed() >= short, "a wait of {short:?} ended after {:?}", started.elapsed());
        check!(started.elapsed() <= short + bench.slack(), "a wait of {short:?} took {:?}", started.elapsed());
    }
    Ok(())
}

async fn huge_wait_waits_and_gets_the_key(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    for huge in [Duration::MAX, Duration::from_millis(u64::MAX), Duration::from_secs(u64::from(u32::MAX))] {
        let guard = bench.take_soon(&ours, "before a waiter comes").await?;
        let waiter = bench.waiter(&theirs, Wait::UpTo(huge))?;
        sleep(Duration::from_millis(100)).await;
        check!(waiter.is_waiting(), "a wait of {huge:?} ended at once: {:?}", waiter.answer(bench).await?);
        let _how_it_ended = guard.release().await?;
        let next = waiter.guard(bench).await?;
        bench.freed(&theirs, bench.key(), next).await?;
    }
    Ok(())
}

async fn wait_ends_with_its_budget_and_says_so(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let _guard = bench.take(&ours, LONG).await?;
    let budget = Duration::from_millis(300);
    let started = Instant::now();
    match bench.waiter(&theirs, Wait::UpTo(budget))?.answer(bench).await? {
        Ok(Attempt::Contended(Contention::WaitElapsed)) => {}
        other => return Err(broken!("a wait that is used up says {other:?}, not WaitElapsed")),
    }
    let took = started.elapsed();
    check!(took >= budget, "a wait of {budget:?} ended after {took:?}");
    check!(took <= budget + bench.slack(), "a wait of {budget:?} took {took:?}");
    Ok(())
}

async fn budget_counts_from_the_call_however_often_the_holder_renews(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let mut guard = bench.take(&ours, LONG).await?;
    let budget = Duration::from_millis(300);
    let started = Instant::now();
    let waiter = bench.waiter(&theirs, Wait::UpTo(budget))?;
    // Each renewal moves the end that the first in the queue looks out for.
    while waiter.is_waiting() && started.elapsed() <= budget + bench.slack() {
        sleep(Duration::from_millis(25)).await;
        guard.renew(LONG).await?;
    }
    check!(!waiter.is_waiting(), "a wait of {budget:?} still went on after {:?}", started.elapsed());
    match waiter.answer(bench).await? {
        Ok(Attempt::Contended(Contention::WaitElapsed)) => Ok(()),
        other => Err(broken!("a wait that is used up says {other:?}, not WaitElapsed")),
    }
}

async fn elapsed_wait_leaves_the_queue(bench: &Bench) -> Outcome {
    let (ours, theirs, third) = (bench.locker().await?, bench.locker().await?, bench.locker().await?);
    let guard = bench.take(&ours, LONG).await?;
    let elapsed = bench.waiter(&theirs, Wait::UpTo(Duration::from_millis(50)))?.answer(bench).await?;
    check!(matches!(elapsed, Ok(Attempt::Contended(_))), "a wait for a held key says {elapsed:?}");
    let _how_it_ended = guard.release().await?;
    bench.expect_free(&third, "after a wait for it was used up").await?;
    Ok(())
}

async fn dropped_waiter_leaves_the_queue(bench: &Bench) -> Outcome {
    let (ours, theirs, third) = (bench.locker().await?, bench.locker().await?, bench.locker().await?);
    let guard = bench.take(&ours, LONG).await?;
    let waiter = bench.waiter(&theirs, Wait::Forever)?;
    sleep(Duration::from_millis(100)).await;
    waiter.cancel().await;
    let _how_it_ended = guard.release().await?;
    bench.expect_free(&third, "after a waiter for it was dropped").await?;
    Ok(())
}

async fn wait_for_a_key_of_the_same_task_is_a_deadlock(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let mut guard = bench.take(&locker, LONG).await?;
    let ran = guard.run(Duration::ZERO, async {
        let waited = locker.acquire(bench.key(), LONG);
        let waited = bench.soon("a wait for a key of the same task ends", waited).await?;
        match waited {
            Err(error) if error.kind() == ErrorKind::Deadlock => {}
            other => return Err(broken!("a wait for a key of the same task says {other:?}")),
        }
        // A try is an ordinary try.
        let why = bench.expect_contended(&locker, "of the same task").await?;
        check!(why == Contention::HeldHere, "a try for a key of the same task says {why:?}");
        Ok(())
    });
    match ran.await? {
        distributed_lock::Ran::Done(found) => found,
        lost => Err(broken!("the hold ended meanwhile: {lost:?}")),
    }
}

async fn waiters_of_different_keys_do_not_hold_each_other_up(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let _guard = bench.take(&ours, LONG).await?;
    let _waiter = bench.waiter(&theirs, Wait::Forever)?;
    sleep(Duration::from_millis(50)).await;
    let other = theirs.acquire(bench.key_named("-other"), LONG);
    let other = bench.soon("an acquire of a free key while the same locker waits for another", other).await?;
    check!(other.is_ok(), "a free key was not given while the same locker waits for another: {other:?}");
    Ok(())
}
