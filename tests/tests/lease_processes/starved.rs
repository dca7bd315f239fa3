//! A leader that gets little of the processor.

use std::process::{Child, Command};

use libtest_mimic::Trial;
use tests::lease::{
    Failure,
    locker::LockerKind,
    process::{Ended, Event, Replica},
    settings::Settings,
};
use tokio::time::{Instant, sleep_until, timeout};

use crate::bench::{Bench, SHORT, apart, ms, trial_alone};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    let mut trials = vec![trial_alone(
        locker,
        "starved::among_many_that_are_busy_nothing_is_lost_or_it_is_said_and_two_never_work",
        |bench| starved(bench, Bench::replica),
    )];
    // It takes the machine for itself for a while, so once is enough.
    if locker == LockerKind::Postgres {
        trials.push(trial_alone(
            locker,
            "starved::behind_many_that_are_busy_nothing_is_lost_or_it_is_said_and_two_never_work",
            |bench| starved(bench, Bench::nice_replica),
        ));
    }
    trials
}

/// Processes that do nothing but take the processor. Killed when dropped.
struct Busy(Vec<Child>);

impl Busy {
    fn start(count: usize) -> Result<Self, Failure> {
        let mut busy = Self(Vec::new());
        for _ in 0..count {
            busy.0.push(Command::new("sh").args(["-c", "while :; do :; done"]).spawn()?);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _killed = process.kill();
            let _reaped = process.wait();
        }
    }
}

/// When each of its terms began, and how it ended; `terms` are those that are known.
async fn terms(
    replica: &mut Replica,
    mut terms: Vec<(i64, Option<Ended>)>,
    until: Instant,
) -> Result<Vec<(i64, Option<Ended>)>, Failure> {
    let mut loss = None;
    while let Ok(event) = timeout(until.saturating_duration_since(Instant::now()), replica.next()).await {
        match (event?, terms.last_mut()) {
            (Event::Leading { at }, Some((_, Some(_))) | None) => terms.push((at, None)),
            (Event::Lost(lost), Some((_, None))) => loss = Some(lost),
            (Event::Ended { at, last_step, polled }, Some((_, end @ None))) => {
                *end = Some(Ended { at, last_step, polled, lost: loss.take() });
            }
            (other, _) => return Err(other.unexpected()),
        }
    }
    Ok(terms)
}

/// Overlap has no excuse; what is lost has to be said. `start` starts the one that leads first.
async fn starved(bench: Bench, start: fn(&Bench, Settings) -> Result<Replica, Failure>) -> Result<(), Failure> {
    let promised = bench.guarantees(SHORT)?;
    let mut leader = start(&bench, SHORT)?;
    let began = leader.leads().await?;
    let mut standby = bench.replica(SHORT)?;
    bench.server.has_a_standby().await?;
    let mark = bench.mark();
    let busy = Busy::start(40)?;
    sleep_until(Instant::now() + ms(4_000)).await;
    drop(busy);
    // Until whoever lost something has said so.
    let until = Instant::now() + SHORT.ttl;
    let (first, second) =
        tokio::join!(terms(&mut leader, vec![(began, None)], until), terms(&mut standby, Vec::new(), until));
    let mut all: Vec<_> = first?.into_iter().chain(second?).collect();
    all.sort_by_key(|(began, _)| *began);
    println!("{} terms, longest stall {:?}", all.len(), bench.longest_stall(mark));
    assert!(all.iter().rev().skip(1).all(|(_, end)| end.is_some()), "one did not end before the next: {all:?}");
    for pair in all.windows(2) {
        let [(_, Some(ended)), (next, _)] = pair else { unreachable!("all but the last have ended") };
        assert!(ended.lost.is_some(), "it ended without a loss, and nobody had told it to: {ended:?}");
        apart(promised.overlap_frozen, ended, *next);
    }
    bench.over([leader, standby]).await
}
