//! The end of a hold that nobody renews.

use std::time::Duration;

use distributed_lock::{Attempt, ErrorKind, Locker, LockerExt, LossCause, Release, Ttl, Wait};
use tokio::time::{Instant, sleep};

use super::{
    bench::{Bench, LONG, PATIENCE, needs},
    case::{Outcome, broken, cases, check},
};

cases! { Locker:
    fresh_hold_counts_down_from_its_ttl,
    key_is_free_by_the_end_of_its_ttl_and_not_before_the_holder_was_told,
    waiter_gets_the_key_at_the_end_of_the_ttl,
    holder_is_told_of_the_end_of_its_ttl,
    release_after_the_ttl_says_lapsed_or_lost,
    guard_that_outlived_its_ttl_leaves_the_next_holder_alone,
    ttl_below_the_minimum_is_refused_naming_value_and_rule,
    smallest_ttl_is_taken,
    longest_ttl_is_taken_or_refused_as_invalid,
    hold_without_ttl_stays_until_it_is_released,
}

async fn fresh_hold_counts_down_from_its_ttl(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let sent = Instant::now();
    let guard = bench.take(&locker, LONG).await?;
    let Some(left) = guard.remaining() else { return Err(broken!("a hold with a TTL has no deadline")) };
    check!(left <= LONG, "{left:?} are left of a TTL of {LONG:?}");
    check!(left + sent.elapsed() >= LONG / 2, "only {left:?} are left of a TTL of {LONG:?}");
    sleep(Duration::from_millis(100)).await;
    let later = guard.remaining().unwrap_or(Duration::MAX);
    check!(later + Duration::from_millis(99) <= left, "100 ms later {later:?} were left, {left:?} before");
    Ok(())
}

async fn key_is_free_by_the_end_of_its_ttl_and_not_before_the_holder_was_told(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let ttl = bench.short(&*ours);
    let asked = Instant::now();
    let guard = bench.take(&ours, ttl).await?;
    let granted = Instant::now();
    loop {
        let tried = theirs.try_acquire(bench.key(), LONG).await?;
        let held_on = guard.ensure_valid().is_ok();
        if !tried.is_contended() {
            check!(
                !held_on,
                "the key was given away while the first holder could still prove it, {:?} in",
                asked.elapsed()
            );
            check!(
                tells_early(&*ours) || asked.elapsed() >= ttl,
                "the key was free after {:?} of a TTL of {ttl:?}",
                asked.elapsed()
            );
            return Ok(());
        }
        let late = granted.elapsed().saturating_sub(ttl);
        check!(late <= bench.slack(), "the key is still taken {late:?} after the end of its TTL");
        sleep(Duration::from_millis(20)).await;
    }
}

fn tells_early(locker: &dyn Locker) -> bool {
    locker.capabilities().early_notice
}

async fn waiter_gets_the_key_at_the_end_of_the_ttl(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let ttl = bench.short(&*ours);
    let guard = bench.take(&ours, ttl).await?;
    let granted = Instant::now();
    let next = bench.waiter(&theirs, Wait::Forever)?.guard(bench).await?;
    check!(guard.ensure_valid().is_err(), "a waiter got the key while its holder could still prove it");
    let late = granted.elapsed().saturating_sub(ttl);
    check!(late <= bench.slack(), "the waiter got the key {late:?} after the end of the TTL");
    check!(next.ensure_valid().is_ok(), "the waiter's hold was over from the start");
    Ok(())
}

async fn holder_is_told_of_the_end_of_its_ttl(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let ttl = bench.short(&*locker);
    let asked = Instant::now();
    let guard = bench.take(&locker, ttl).await?;
    let granted = Instant::now();
    let loss = bench.soon("the holder is told of the end of its TTL", guard.lost()).await?;
    let (told, early) = (granted.elapsed(), asked.elapsed() < ttl);
    check!(loss.cause() == LossCause::DeadlinePassed, "the cause is {:?}, not DeadlinePassed", loss.cause());
    check!(told <= ttl + bench.slack(), "the holder was told {:?} after the end of its TTL", told - ttl);
    check!(!early || locker.capabilities().early_notice, "the holder was told before the end of its TTL");
    match guard.ensure_valid() {
        Err(error) if error.kind() == ErrorKind::Lost => {}
        other => return Err(broken!("a hold past its end says {other:?}")),
    }
    check!(guard.remaining() == Some(Duration::ZERO), "a hold past its end has {:?} left", guard.remaining());
    Ok(())
}

async fn release_after_the_ttl_says_lapsed_or_lost(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let guard = bench.take(&locker, bench.short(&*locker)).await?;
    let _told = bench.soon("the end of the TTL", guard.lost()).await?;
    match guard.release().await {
        Ok(Release::Lapsed(_) | Release::Lost(_)) => Ok(()),
        other => Err(broken!("a release after the end of the TTL says {other:?}")),
    }
}

async fn guard_that_outlived_its_ttl_leaves_the_next_holder_alone(bench: &Bench) -> Outcome {
    let (ours, theirs, third) = (bench.locker().await?, bench.locker().await?, bench.locker().await?);
    for release in [true, false] {
        let late = bench.take(&ours, bench.short(&*ours)).await?;
        let next = bench.waiter(&theirs, Wait::UpTo(PATIENCE))?.guard(bench).await?;
        match release {
            true => match late.release().await {
                Ok(Release::Lost(_)) => {}
                other => return Err(broken!("a release after somebody else got the key says {other:?}")),
            },
            false => drop(late),
        }
        bench.expect_contended(&third, "because an earlier holder let go of it").await?;
        check!(next.ensure_valid().is_ok(), "the next holder lost it to an earlier holder's release or drop");
        bench.freed(&third, bench.key(), next).await?;
    }
    Ok(())
}

async fn ttl_below_the_minimum_is_refused_naming_value_and_rule(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let too_short = locker.capabilities().min_ttl - Duration::from_micros(100);
    for wait in [Duration::ZERO, Duration::from_millis(50)] {
        match locker.acquire_within(bench.key(), too_short, wait).await {
            Err(error) => check_refusal(&error, too_short)?,
            given => return Err(broken!("a TTL of {too_short:?} was taken: {given:?}")),
        }
    }
    Ok(())
}

pub(super) fn check_refusal(error: &distributed_lock::Error, ttl: Duration) -> Outcome {
    let text = whole(error);
    check!(error.kind() == ErrorKind::InvalidInput, "a bad TTL is refused as {:?}, not InvalidInput", error.kind());
    check!(text.contains(&format!("{ttl:?}")), "the refusal does not name the value {ttl:?}: {text}");
    check!(text.contains("must be"), "the refusal does not name the rule: {text}");
    Ok(())
}

/// The error and everything that caused it.
pub(super) fn whole(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

async fn smallest_ttl_is_taken(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let smallest = locker.capabilities().min_ttl;
    match locker.try_acquire(bench.key(), smallest).await {
        Ok(Attempt::Acquired(_)) => Ok(()),
        other => Err(broken!("the smallest TTL, {smallest:?}, was not taken: {other:?}")),
    }
}

async fn longest_ttl_is_taken_or_refused_as_invalid(bench: &Bench) -> Outcome {
    const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    match ours.try_acquire(bench.key(), LONGEST).await {
        Ok(Attempt::Acquired(guard)) => {
            check!(guard.ensure_valid().is_ok(), "a hold of {LONGEST:?} was over from the start");
            bench.expect_contended(&theirs, "although it was taken for a year").await?;
            Ok(())
        }
        Ok(Attempt::Contended(why)) => Err(broken!("a free key was contended for a TTL of {LONGEST:?}: {why}")),
        Err(error) => check_refusal(&error, LONGEST),
    }
}

async fn hold_without_ttl_stays_until_it_is_released(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    needs(ours.capabilities().until_released, "every hold has a TTL")?;
    let guard = match ours.try_acquire(bench.key(), Ttl::UNTIL_RELEASED).await {
        Ok(Attempt::Acquired(guard)) => guard,
        other => return Err(broken!("a hold without TTL was not given: {other:?}")),
    };
    bench.pass_long().await;
    check!(guard.ensure_valid().is_ok(), "a hold without TTL ended by itself");
    bench.expect_contended(&theirs, "while a hold without TTL was on").await?;
    match guard.release().await {
        Ok(Release::Released) => {}
        other => return Err(broken!("the release of a hold without TTL says {other:?}")),
    }
    bench.expect_free(&theirs, "after a hold without TTL was released").await?;
    Ok(())
}
