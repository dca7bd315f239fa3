//! The end of a locker, and whether its store answers.

use std::time::Duration;

use distributed_lock::{Attempt, ErrorKind, LockerExt, LossCause, Release, Wait};
use tokio::time::sleep;

use super::{
    bench::{Bench, LONG, PATIENCE},
    case::{Outcome, broken, cases, check},
};

cases! { Locker:
    close_tells_holders_that_it_was_closed,
    close_frees_the_keys_of_its_locker,
    close_ends_waiters_as_closed,
    closed_locker_refuses_every_later_call,
    close_can_be_repeated,
    close_leaves_other_lockers_alone,
    guard_of_a_closed_locker_leaves_the_next_holder_alone,
    ping_answers_while_a_key_is_held_and_waited_for,
}

async fn close_tells_holders_that_it_was_closed(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let guard = bench.take(&locker, LONG).await?;
    let told = guard.lost();
    locker.close().await?;
    let loss = bench.soon("a holder is told that its locker was closed", told).await?;
    check!(loss.cause() == LossCause::Closed, "the cause is {:?}, not Closed", loss.cause());
    check!(guard.ensure_valid().is_err(), "a hold of a closed locker is valid");
    Ok(())
}

async fn close_frees_the_keys_of_its_locker(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let _guard = bench.take(&ours, LONG).await?;
    let _other = ours.try_acquire(bench.key_named("-other"), LONG).await?;
    ours.close().await?;
    bench.expect_free(&theirs, "after its locker was closed").await?;
    let other = theirs.acquire_within(bench.key_named("-other"), LONG, bench.slack()).await?;
    check!(!other.is_contended(), "the second key of a closed locker was not free");
    Ok(())
}

async fn close_ends_waiters_as_closed(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let guard = bench.take(&ours, LONG).await?;
    let waiters = [bench.waiter(&theirs, Wait::Forever)?, bench.waiter(&theirs, Wait::UpTo(LONG))?];
    sleep(Duration::from_millis(100)).await;
    theirs.close().await?;
    for waiter in waiters {
        match waiter.answer(bench).await? {
            Err(error) if error.kind() == ErrorKind::Closed => {}
            other => return Err(broken!("a waiter of a closed locker got {other:?}")),
        }
    }
    check!(guard.ensure_valid().is_ok(), "the holder lost it when the locker of its waiters was closed");
    Ok(())
}

async fn closed_locker_refuses_every_later_call(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    ours.close().await?;
    for wait in [Wait::Never, Wait::UpTo(PATIENCE / 2), Wait::Forever] {
        match bench.waiter(&ours, wait)?.answer(bench).await? {
            Err(error) if error.kind() == ErrorKind::Closed => {}
            other => return Err(broken!("an acquire of a closed locker says {other:?}, {wait:?}")),
        }
    }
    match ours.ping().await {
        Err(error) if error.kind() == ErrorKind::Closed => {}
        other => return Err(broken!("a ping of a closed locker says {other:?}")),
    }
    bench.expect_free(&theirs, "after a closed locker refused it").await?;
    Ok(())
}

async fn close_can_be_repeated(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let _guard = bench.take(&locker, LONG).await?;
    locker.close().await?;
    for _ in 0..2 {
        let again = bench.soon("a second close ends", locker.close()).await?;
        check!(again.is_ok(), "a second close says {again:?}");
    }
    Ok(())
}

async fn close_leaves_other_lockers_alone(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let guard = bench.take(&theirs, LONG).await?;
    ours.close().await?;
    check!(guard.ensure_valid().is_ok(), "a holder lost its key because another locker was closed");
    bench.expect_contended(&theirs, "after another locker was closed").await?;
    match guard.release().await {
        Ok(Release::Released) => {}
        other => return Err(broken!("a release after another locker was closed says {other:?}")),
    }
    match theirs.acquire_within(bench.key(), LONG, bench.slack()).await {
        Ok(Attempt::Acquired(_)) => Ok(()),
        other => Err(broken!("an acquire after another locker was closed says {other:?}")),
    }
}

async fn guard_of_a_closed_locker_leaves_the_next_holder_alone(bench: &Bench) -> Outcome {
    let (ours, theirs, third) = (bench.locker().await?, bench.locker().await?, bench.locker().await?);
    let guard = bench.take(&ours, LONG).await?;
    ours.close().await?;
    let next = bench.take_soon(&theirs, "after its locker was closed").await?;
    match guard.release().await {
        Ok(Release::Lost(_)) => {}
        Err(error) if error.kind() == ErrorKind::Closed => {}
        other => return Err(broken!("a release after close says {other:?}")),
    }
    check!(next.ensure_valid().is_ok(), "the next holder lost it to the release of a closed locker's guard");
    bench.expect_contended(&third, "after the release of a closed locker's guard").await?;
    Ok(())
}

async fn ping_answers_while_a_key_is_held_and_waited_for(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let _guard = bench.take(&ours, LONG).await?;
    let _waiter = bench.waiter(&theirs, Wait::Forever)?;
    sleep(Duration::from_millis(50)).await;
    for locker in [&ours, &theirs] {
        let ping = bench.soon("a ping while a key is held and waited for", locker.ping()).await?;
        check!(ping.is_ok(), "a ping while a key is held says {ping:?}");
    }
    Ok(())
}
