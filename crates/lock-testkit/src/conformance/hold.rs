//! What a hold says about itself.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    bench::{Bench, LONG},
    case::{Outcome, cases, check},
};

cases! { Locker:
    hold_names_its_key,
    hold_knows_its_age,
    near_deadline_completes_while_something_is_left,
}

async fn hold_names_its_key(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let guard = bench.take(&locker, LONG).await?;
    check!(guard.key() == bench.key(), "the hold of {:?} says it is of {:?}", bench.key(), guard.key());
    Ok(())
}

async fn hold_knows_its_age(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let guard = bench.take(&locker, LONG).await?;
    let young = guard.hold().age();
    check!(young <= bench.slack(), "a fresh hold is {young:?} old");
    sleep(Duration::from_millis(100)).await;
    let old = guard.hold().age();
    check!(old >= young + Duration::from_millis(99), "100 ms later its age went from {young:?} to {old:?}");
    Ok(())
}

async fn near_deadline_completes_while_something_is_left(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let ttl = bench.medium(&*locker);
    let guard = bench.take(&locker, ttl).await?;
    let hold = guard.hold();
    bench.soon("the deadline comes near", hold.near_deadline(ttl / 2)).await?;
    let left = hold.remaining().unwrap_or(Duration::MAX);
    check!(left <= ttl / 2, "near the deadline {left:?} were left, asked for {:?}", ttl / 2);
    // A busy machine can tell late, and nothing rests on this.
    check!(left > Duration::ZERO || bench.is_real(), "the hold was told near its deadline when it was over");
    Ok(())
}
