//! A hold gets a new TTL.

use std::time::Duration;

use distributed_lock::{ErrorKind, LockerExt, Release, Wait};
use tokio::time::{Instant, sleep};

use super::{
    bench::{Bench, LONG, PATIENCE},
    case::{Outcome, broken, cases, check},
    ttl::check_refusal,
};

cases! { Locker:
    renewal_keeps_the_key_past_its_first_ttl,
    renewal_keeps_a_waiter_out_past_the_first_ttl,
    renewal_moves_the_deadline_the_holder_sees,
    renewal_can_shorten_a_hold,
    renewal_never_revives_a_lapsed_hold,
    renewal_never_revives_a_lost_hold,
    refused_renewal_keeps_the_hold_as_it_was,
}

async fn renewal_keeps_the_key_past_its_first_ttl(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let first = bench.medium(&*ours);
    let mut guard = bench.take(&ours, first).await?;
    guard.renew(LONG).await?;
    sleep(first + Duration::from_millis(500)).await;
    bench.expect_contended(&theirs, "although the hold had been renewed").await?;
    check!(guard.ensure_valid().is_ok(), "a renewed hold ended with its first TTL");
    match guard.release().await {
        Ok(Release::Released) => {}
        other => return Err(broken!("the release of a renewed hold says {other:?}")),
    }
    bench.expect_free(&theirs, "after a renewed hold was released").await?;
    Ok(())
}

async fn renewal_keeps_a_waiter_out_past_the_first_ttl(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let first = bench.medium(&*ours);
    let mut guard = bench.take(&ours, first).await?;
    let waiter = bench.waiter(&theirs, Wait::Forever)?;
    sleep(first / 4).await;
    guard.renew(LONG).await?;
    sleep(first).await;
    check!(guard.ensure_valid().is_ok(), "a renewed hold ended with its first TTL");
    check!(waiter.is_waiting(), "a waiter was let in at an end that had been renewed away");
    let _how_it_ended = guard.release().await?;
    let _next = waiter.guard(bench).await?;
    Ok(())
}

async fn renewal_moves_the_deadline_the_holder_sees(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let first = bench.medium(&*locker);
    let mut guard = bench.take(&locker, first).await?;
    guard.renew(LONG).await?;
    let left = guard.remaining().unwrap_or(Duration::MAX);
    check!(left <= LONG, "{left:?} are left after a renewal to {LONG:?}");
    check!(left >= LONG / 2, "only {left:?} are left after a renewal to {LONG:?}");
    guard.renew(first).await?;
    let left = guard.remaining().unwrap_or(Duration::MAX);
    check!(left <= first, "{left:?} are left after the hold was shortened to {first:?}");
    Ok(())
}

async fn renewal_can_shorten_a_hold(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let mut guard = bench.take(&ours, LONG).await?;
    let short = bench.short(&*ours);
    guard.renew(short).await?;
    let renewed = Instant::now();
    let tried = theirs.acquire_within(bench.key(), LONG, short + bench.slack()).await?;
    check!(!tried.is_contended(), "the key is taken {:?} after its hold was shortened to {short:?}", renewed.elapsed());
    check!(guard.ensure_valid().is_err(), "the key was given away while its holder could still prove it");
    Ok(())
}

async fn renewal_never_revives_a_lapsed_hold(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let ttl = bench.short(&*ours);
    let mut guard = bench.take(&ours, ttl).await?;
    // By the clock and not by what the holder is told, so that the answer is the store's too.
    sleep(ttl).await;
    match guard.renew(LONG).await {
        Err(error) if error.kind() == ErrorKind::Lost => {}
        other => return Err(broken!("the renewal of a lapsed hold says {other:?}")),
    }
    check!(guard.ensure_valid().is_err(), "a renewal revived a lapsed hold");
    bench.expect_free_within(&theirs, bench.slack(), "after a renewal of a lapsed hold was refused").await?;
    Ok(())
}

async fn renewal_never_revives_a_lost_hold(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let mut guard = bench.take(&ours, LONG).await?;
    bench.lose().await?;
    // Whether the holder knows already or learns it by asking, the answer is the same.
    match guard.renew(LONG).await {
        Err(error) if error.kind() == ErrorKind::Lost => {}
        other => return Err(broken!("the renewal of a lost hold says {other:?}")),
    }
    check!(guard.ensure_valid().is_err(), "a renewal revived a lost hold");
    bench.expect_free_within(&theirs, PATIENCE, "after a renewal of a lost hold was refused").await?;
    Ok(())
}

async fn refused_renewal_keeps_the_hold_as_it_was(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let mut guard = bench.take(&ours, LONG).await?;
    let too_short = ours.capabilities().min_ttl - Duration::from_micros(100);
    match guard.renew(too_short).await {
        Err(error) => check_refusal(&error, too_short)?,
        Ok(()) => return Err(broken!("a renewal to {too_short:?} was taken")),
    }
    check!(guard.ensure_valid().is_ok(), "a refused renewal ended the hold");
    let left = guard.remaining().unwrap_or(Duration::MAX);
    check!(left >= LONG / 2, "a refused renewal left only {left:?} of {LONG:?}");
    bench.expect_contended(&theirs, "after a renewal was refused").await?;
    match guard.release().await {
        Ok(Release::Released) => Ok(()),
        other => Err(broken!("the release after a refused renewal says {other:?}")),
    }
}
