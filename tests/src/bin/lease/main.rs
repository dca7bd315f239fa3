//! What the lease runner promises, measured with real processes on a real server: how soon a standby takes over, how soon a
//! holder that is cut off knows, and whether two ever work at a time.
//!
//! `lease clean|kill|freeze|partition|rolling [--rounds N] [--locker postgres|shared]`; shared sessions unless told otherwise. Prints one
//! JSON line last, times in milliseconds. Rounds in which the machine stalled for more than 20 ms leave the latencies, never the safety
//! figures. Exits 1 if a bound was broken, 2 if called wrongly, 3 if more than one round in ten stalled, 4 without a server.

mod figures;
mod rounds;

use std::process::ExitCode;

use lock_testkit::{Cluster, postgres::StartError};
use tests::lease::{locker::LockerKind, replica};

use crate::rounds::{Mode, Plan};

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == replica::ARGUMENT) {
        return replica::main(&arguments.split_off(1));
    }
    let Some(plan) = parse(&arguments) else {
        let lockers: Vec<_> = LockerKind::ALL.iter().map(ToString::to_string).collect();
        eprintln!(
            "usage: lease clean|kill|freeze|partition|rolling [--rounds NUMBER] [--locker {}]",
            lockers.join("|")
        );
        return ExitCode::from(2);
    };
    let cluster = match Cluster::start() {
        Ok(cluster) => cluster,
        Err(error) => {
            eprintln!("lease: {error}");
            return ExitCode::from(if matches!(error, StartError::Missing(_)) { 4 } else { 1 });
        }
    };
    match rounds::measure(&cluster, plan) {
        Ok(figures) => figures.report(),
        Err(error) => {
            eprintln!("lease: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Option<Plan> {
    let (mode, mut rest) = arguments.split_first()?;
    let mode = Mode::ALL.into_iter().find(|known| known.name() == mode)?;
    let mut plan = Plan { mode, locker: LockerKind::Shared, rounds: mode.full_rounds() };
    while let [flag, value, more @ ..] = rest {
        match flag.as_str() {
            "--rounds" => plan.rounds = value.parse().ok().filter(|rounds| (1..=10_000).contains(rounds))?,
            "--locker" => plan.locker = LockerKind::parse(value)?,
            _ => return None,
        }
        rest = more;
    }
    rest.is_empty().then_some(plan)
}
