//! What lockers do when sessions, networks, processes, settings and callers fail: against real servers.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test; clippy knows only those of the standard harness")]

mod bad_input;
mod beacon;
#[path = "../common/bench.rs"]
mod bench;
mod breaker;
#[path = "../common/breaking.rs"]
mod breaking;
mod cases;
mod closing;
#[path = "../common/contested.rs"]
mod contested;
mod deadlines;
mod dropping;
mod frozen;
mod housekeeping;
mod in_flight;
mod inspect;
#[path = "../common/intruder.rs"]
mod intruder;
mod leftovers;
mod loss;
mod meddling;
mod neglected;
mod overloads;
mod pool;
#[path = "../common/recorder.rs"]
mod recorder;
mod scoped;
mod settings;
mod silence;
#[path = "../common/spinning.rs"]
mod spinning;
mod transaction;
mod watchdog;
mod wire;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(exit) = frozen::holder().or_else(housekeeping::without_a_thread) {
        return exit;
    }
    bad_input::collect_log();
    let mut arguments = Arguments::from_args();
    // They wait for timers far more than they work.
    arguments.test_threads.get_or_insert(6);
    let themes: [fn() -> Vec<Trial>; 23] = [
        loss::trials,
        neglected::trials,
        frozen::trials,
        dropping::trials,
        pool::trials,
        scoped::trials,
        transaction::trials,
        leftovers::trials,
        meddling::trials,
        settings::trials,
        deadlines::trials,
        overloads::trials,
        bad_input::trials,
        wire::trials,
        silence::trials,
        in_flight::trials,
        cases::trials,
        closing::trials,
        housekeeping::trials,
        inspect::trials,
        watchdog::trials,
        beacon::trials,
        breaker::trials,
    ];
    libtest_mimic::run(&arguments, themes.iter().flat_map(|trials| trials()).collect()).exit_code()
}
