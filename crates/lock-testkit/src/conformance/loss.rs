//! The store takes a key away behind its holder's back.

use std::time::Duration;

use distributed_lock::{ErrorKind, LockerExt, LossCause, Release, Wait};

use super::{
    bench::{Bench, LONG, PATIENCE},
    case::{Outcome, broken, cases, check},
};

cases! { Locker:
    loss_is_told_to_the_holder,
    lost_hold_says_so_when_asked,
    release_of_a_lost_hold_says_lost,
    key_of_a_lost_hold_goes_to_a_waiter,
    loss_of_one_key_leaves_the_others_alone,
    held_and_released_hold_is_never_told_of_a_loss,
}

async fn loss_is_told_to_the_holder(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let guard = bench.take(&locker, LONG).await?;
    let told = guard.lost();
    bench.lose().await?;
    let limit = bench.within(locker.guarantees().detection);
    let Ok(loss) = tokio::time::timeout(limit, told).await else {
        return Err(broken!("the holder was not told of a loss within {limit:?}"));
    };
    let plausible = matches!(loss.cause(), LossCause::NotOurs | LossCause::SessionEnded | LossCause::HeartbeatTimeout);
    check!(plausible, "the cause of a loss is {:?}", loss.cause());
    Ok(())
}

async fn lost_hold_says_so_when_asked(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let guard = bench.take(&locker, LONG).await?;
    check!(guard.ensure_valid().is_ok(), "a fresh hold is not valid");
    bench.lose().await?;
    let _told = bench.soon("the holder is told of a loss", guard.lost()).await?;
    match guard.ensure_valid() {
        Err(error) if error.kind() == ErrorKind::Lost => {}
        other => return Err(broken!("a lost hold says {other:?}")),
    }
    let left = guard.remaining();
    check!(left == Some(Duration::ZERO), "a lost hold has {left:?} left");
    Ok(())
}

async fn release_of_a_lost_hold_says_lost(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let guard = bench.take(&ours, LONG).await?;
    bench.lose().await?;
    let next = bench.take_within(&theirs, PATIENCE, "after it was taken from its holder").await?;
    match guard.release().await {
        Ok(Release::Lost(_)) => {}
        other => return Err(broken!("the release of a lost hold says {other:?}")),
    }
    check!(next.ensure_valid().is_ok(), "the next holder lost it to an earlier holder's release");
    Ok(())
}

async fn key_of_a_lost_hold_goes_to_a_waiter(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let _guard = bench.take(&ours, LONG).await?;
    let waiter = bench.waiter(&theirs, Wait::Forever)?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    check!(waiter.is_waiting(), "a wait for a held key ended");
    bench.lose().await?;
    let next = waiter.guard(bench).await?;
    check!(next.ensure_valid().is_ok(), "the waiter's hold was over from the start");
    Ok(())
}

async fn loss_of_one_key_leaves_the_others_alone(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let lost = bench.take(&ours, LONG).await?;
    let other = ours.try_acquire(bench.key_named("-other"), LONG).await?.acquired();
    let Some(other) = other else { return Err(broken!("a free key was not given")) };
    bench.lose().await?;
    let _told = bench.soon("the holder is told of a loss", lost.lost()).await?;
    check!(other.ensure_valid().is_ok(), "the loss of one key ended the hold of another");
    let tried = theirs.try_acquire(bench.key_named("-other"), LONG).await?;
    check!(tried.is_contended(), "the loss of one key gave another away");
    Ok(())
}

async fn held_and_released_hold_is_never_told_of_a_loss(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let guard = bench.take(&locker, LONG).await?;
    let told = guard.lost();
    bench.not_yet("the holder was told of a loss although it holds", guard.lost()).await?;
    check!(guard.ensure_valid().is_ok(), "a hold ended by itself");
    let _how_it_ended = guard.release().await?;
    bench.not_yet("a release was told as a loss", told).await
}
