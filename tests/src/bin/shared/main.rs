//! What many locks on few sessions cost and give: `shared many|throughput|mixed [--rounds N]`.
//!
//! - `many`: 10,000 keys at once, against one session that takes them one by one; a heartbeat round of all lanes; memory per key.
//! - `throughput`: 256 tasks with a key each, against a pool of 16 connections and against Redis; one task, against the floor.
//! - `mixed`: every kind of waiter on one key; `--broken poller` adds one that only tries, `--broken intruder` one without the lock.
//!
//! Prints one JSON line last. Samples beside which the machine stalled for more than 20 ms leave the figures, never the safety. Exits 1
//! if a bound was broken, 2 if called wrongly, 3 if more than one sample in ten stalled, 4 without a server.

mod many;
mod mixed;
mod report;
mod servers;
mod throughput;

use std::process::ExitCode;

use crate::mixed::{Broken, elsewhere};

type Failure = Box<dyn std::error::Error + Send + Sync>;

enum Mode {
    Many,
    Throughput,
    Mixed(Option<Broken>),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Processes of its own are started by the program itself.
    let part = match arguments.split_first() {
        Some((first, rest)) if first == elsewhere::ARGUMENT => Some(elsewhere::run_as_process(rest)),
        Some((first, rest)) if first == many::memory::ARGUMENT => Some(many::memory::run_as_process(rest)),
        _ => None,
    };
    if let Some(ended) = part {
        return match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("shared: {}: {error}", arguments[0]);
                ExitCode::FAILURE
            }
        };
    }
    let Some((mode, rounds)) = parse(&arguments) else {
        eprintln!("usage: shared many|throughput|mixed [--rounds NUMBER] [--broken poller|intruder]");
        return ExitCode::from(2);
    };
    let measured = match mode {
        Mode::Many => many::measure(rounds.unwrap_or(many::ROUNDS)),
        Mode::Throughput => throughput::measure(rounds.unwrap_or(throughput::ROUNDS)),
        Mode::Mixed(broken) => mixed::measure(rounds.unwrap_or(mixed::ROUNDS), broken),
    };
    match measured {
        Ok(report) => report.print(),
        Err(error) => {
            eprintln!("shared: {error}");
            ExitCode::from(if error.is::<servers::Missing>() { 4 } else { 1 })
        }
    }
}

fn parse(arguments: &[String]) -> Option<(Mode, Option<usize>)> {
    let (mode, mut rest) = arguments.split_first()?;
    let (mut rounds, mut broken) = (None, None);
    while let [flag, value, more @ ..] = rest {
        match flag.as_str() {
            "--rounds" => rounds = Some(value.parse().ok().filter(|rounds| (1..=10_000).contains(rounds))?),
            "--broken" => broken = Some(Broken::named(value)?),
            _ => return None,
        }
        rest = more;
    }
    let mode = match (mode.as_str(), broken) {
        ("many", None) => Mode::Many,
        ("throughput", None) => Mode::Throughput,
        ("mixed", broken) => Mode::Mixed(broken),
        _ => return None,
    };
    rest.is_empty().then_some((mode, rounds))
}
