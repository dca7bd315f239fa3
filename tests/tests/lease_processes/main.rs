//! The lease runner over PostgreSQL, for what a process can suffer: real processes, real signals, a real server. Each trial says under
//! which locks it runs.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test; clippy knows only those of the standard harness")]

mod bench;
mod cases;
mod crowd;
mod ending;
mod frozen;
mod half_written;
mod mixed;
mod runtimes;
#[path = "../../../crates/lock-postgres/tests/common/spinning.rs"]
mod spinning;
mod starved;
mod watched;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use tests::lease::locker::LockerKind;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They wait for timers far more than they work.
    arguments.test_threads.get_or_insert(8);
    let topics: &[fn(LockerKind) -> Vec<Trial>] = &[
        cases::trials,
        crowd::trials,
        ending::trials,
        frozen::trials,
        half_written::trials,
        mixed::trials,
        runtimes::trials,
        starved::trials,
        watched::trials,
    ];
    let of = |locker| topics.iter().flat_map(move |trials| trials(locker));
    libtest_mimic::run(&arguments, LockerKind::ALL.into_iter().flat_map(of).collect()).exit_code()
}
