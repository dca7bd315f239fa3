//! What fencing promises, measured while everything around it breaks: `fencing tokens [--grants N] [--seed S]`.
//!
//! - `tokens`: eight processes with every kind of locker on one key, killed, terminated, crashed and restarted meanwhile: the token of each
//!   grant is above that of the grant before it. `--broken intruder` makes one of them go in without the lock.
//!
//! Prints one JSON line last. Exits 1 if a token was not above the one before, two held the key at a time, or a wrong way to make tokens went
//! unnoticed; 2 if called wrongly; 3 if something that was to be measured did not come about; 4 without a server.

mod random;
mod tokens;

use std::process::ExitCode;

use lock_testkit::postgres::StartError;

use crate::tokens::{Plan, worker};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Processes of its own are started by the program itself.
    if let Some((worker::ARGUMENT, rest)) = arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return match worker::run_as_process(rest) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("fencing: {}: {error:?}", rest.join(" "));
                ExitCode::FAILURE
            }
        };
    }
    let Some(plan) = parse(&arguments) else {
        eprintln!("usage: fencing tokens [--grants NUMBER] [--seed NUMBER] [--broken intruder]");
        return ExitCode::from(2);
    };
    match tokens::measure(plan) {
        Ok(report) => report.print(),
        Err(error) => {
            eprintln!("fencing: {error}");
            let missing = matches!(error.downcast_ref(), Some(StartError::Missing(_)));
            ExitCode::from(if missing { 4 } else { 1 })
        }
    }
}

fn parse(arguments: &[String]) -> Option<Plan> {
    let (mode, mut rest) = arguments.split_first()?;
    let mut plan = Plan { grants: 100_000, seed: 1, intruder: false };
    while let [flag, value, more @ ..] = rest {
        match flag.as_str() {
            "--grants" => plan.grants = value.parse().ok().filter(|grants| (1..=10_000_000).contains(grants))?,
            "--seed" => plan.seed = value.parse().ok()?,
            "--broken" if value == "intruder" => plan.intruder = true,
            _ => return None,
        }
        rest = more;
    }
    (mode == "tokens" && rest.is_empty()).then_some(plan)
}
