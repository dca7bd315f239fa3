//! What a locker says about itself.

use std::time::Duration;

use distributed_lock::Backend;

use super::{
    bench::Bench,
    case::{Outcome, cases, check},
};

cases! { Locker:
    locker_prints_itself,
    guarantees_are_printed_in_one_line,
    every_locker_has_an_id_of_its_own_that_stays,
    capabilities_stay_and_name_a_usable_minimum,
    ping_of_an_open_locker_answers,
}

async fn locker_prints_itself(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    prints(&*locker)
}

/// Through the trait, since every pointer would print as what it points to.
pub(super) fn prints<B: Backend + ?Sized>(locker: &B) -> Outcome {
    let shown = locker.to_string();
    check!(!shown.trim().is_empty(), "the locker prints as nothing");
    check!(!shown.contains(char::is_control), "the locker prints control characters: {shown:?}");
    check!(!format!("{locker:?}").trim().is_empty(), "the locker prints as nothing to developers");
    Ok(())
}

async fn guarantees_are_printed_in_one_line(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let shown = locker.guarantees().to_string();
    check!(shown.starts_with("detection"), "the guarantees print as {shown:?}");
    check!(!shown.contains(char::is_control), "the guarantees print control characters: {shown:?}");
    Ok(())
}

async fn every_locker_has_an_id_of_its_own_that_stays(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    check!(ours.id() != theirs.id(), "two lockers have the same id");
    check!(ours.id() == ours.id(), "the id of a locker changes");
    Ok(())
}

async fn capabilities_stay_and_name_a_usable_minimum(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let capabilities = locker.capabilities();
    check!(capabilities == locker.capabilities(), "the capabilities change");
    let usable = Duration::from_millis(1)..=Duration::from_secs(10);
    check!(usable.contains(&capabilities.min_ttl), "the smallest TTL is {:?}", capabilities.min_ttl);
    Ok(())
}

async fn ping_of_an_open_locker_answers(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let ping = bench.soon("a ping of an open locker", locker.ping()).await?;
    check!(ping.is_ok(), "a ping of an open locker says {ping:?}");
    Ok(())
}
