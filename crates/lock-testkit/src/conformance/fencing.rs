//! Fencing tokens, where the locker mints them.

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    AcquireOptions, Attempt, Error, ErrorKind, Fencing, FencingStrength, FencingToken, LockGuard, Locker, Ttl, Wait,
};

use super::{
    bench::{Bench, LONG, PATIENCE, needs},
    case::{Outcome, broken, cases, check},
};

cases! { Locker:
    fencing_on_gives_a_token_or_is_refused_as_unsupported,
    fencing_off_gives_no_token,
    tokens_increase_over_releases_and_drops,
    tokens_increase_over_the_end_of_a_ttl,
    tokens_increase_over_a_loss,
    token_of_a_waiter_is_newer_than_that_of_the_holder_it_waited_for,
}

async fn fenced(bench: &Bench, locker: &Arc<dyn Locker>, ttl: Duration) -> Outcome<(LockGuard, FencingToken)> {
    let options = AcquireOptions::new(Ttl::new(ttl).map_err(Error::from)?).with_fencing(Fencing::On);
    let options = options.with_wait(Wait::UpTo(PATIENCE));
    let guard = match locker.acquire_opts(bench.key(), &options).await? {
        Attempt::Acquired(guard) => guard,
        Attempt::Contended(why) => return Err(broken!("the key did not become free: {why}")),
    };
    match guard.fencing_token() {
        Some(token) => Ok((guard, token)),
        None => Err(broken!("a fenced acquire gave no token")),
    }
}

fn mints(locker: &Arc<dyn Locker>) -> Outcome {
    needs(locker.capabilities().fencing != FencingStrength::Absent, "it mints no tokens")
}

async fn fencing_on_gives_a_token_or_is_refused_as_unsupported(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let options = AcquireOptions::new(Ttl::new(LONG).map_err(Error::from)?).with_fencing(Fencing::On);
    let able = locker.capabilities().fencing != FencingStrength::Absent;
    match (able, locker.acquire_opts(bench.key(), &options).await) {
        (true, Ok(Attempt::Acquired(guard))) if guard.fencing_token().is_some() => Ok(()),
        (false, Err(error)) if error.kind() == ErrorKind::Unsupported => Ok(()),
        (able, other) => Err(broken!("a fenced acquire of a locker that says {able} to tokens: {other:?}")),
    }
}

async fn fencing_off_gives_no_token(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let options = AcquireOptions::new(Ttl::new(LONG).map_err(Error::from)?).with_fencing(Fencing::Off);
    match locker.acquire_opts(bench.key(), &options).await? {
        Attempt::Acquired(guard) if guard.fencing_token().is_none() => Ok(()),
        other => Err(broken!("an acquire without fencing: {other:?}")),
    }
}

async fn tokens_increase_over_releases_and_drops(bench: &Bench) -> Outcome {
    let lockers = [bench.locker().await?, bench.locker().await?];
    mints(&lockers[0])?;
    let mut last = None;
    for round in 0..6 {
        let (guard, token) = fenced(bench, &lockers[round % 2], LONG).await?;
        check!(last < Some(token), "token {token} came after {last:?}");
        last = Some(token);
        match round % 3 {
            0 => drop(guard),
            _ => drop(guard.release().await?),
        }
    }
    Ok(())
}

async fn tokens_increase_over_the_end_of_a_ttl(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    mints(&ours)?;
    let (_late, earlier) = fenced(bench, &ours, bench.short(&*ours)).await?;
    let (_next, later) = fenced(bench, &theirs, LONG).await?;
    check!(earlier < later, "token {later} came after {earlier}");
    Ok(())
}

async fn tokens_increase_over_a_loss(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    mints(&ours)?;
    let (_lost, earlier) = fenced(bench, &ours, LONG).await?;
    bench.lose().await?;
    let (_next, later) = fenced(bench, &theirs, LONG).await?;
    check!(earlier < later, "token {later} came after {earlier}");
    Ok(())
}

async fn token_of_a_waiter_is_newer_than_that_of_the_holder_it_waited_for(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    mints(&ours)?;
    let options = AcquireOptions::new(Ttl::new(LONG).map_err(Error::from)?).with_fencing(Fencing::On);
    let (holder, earlier) = fenced(bench, &ours, LONG).await?;
    let waiter = bench.waiter_with(&theirs, options.with_wait(Wait::Forever));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let _how_it_ended = holder.release().await?;
    let next = waiter.guard(bench).await?;
    check!(Some(earlier) < next.fencing_token(), "token {:?} came after {earlier}", next.fencing_token());
    Ok(())
}
