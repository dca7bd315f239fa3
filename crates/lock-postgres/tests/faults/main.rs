//! What lockers do when sessions, networks, processes, settings and callers fail: against real servers.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test; clippy knows only those of the standard harness")]

mod bench;
mod dropping;
mod frozen;
mod loss;
mod pool;
mod scoped;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(exit) = frozen::holder() {
        return exit;
    }
    let mut arguments = Arguments::from_args();
    // They wait for timers far more than they work.
    arguments.test_threads.get_or_insert(6);
    let themes: [Vec<Trial>; 5] = [loss::trials(), dropping::trials(), frozen::trials(), pool::trials(), scoped::trials()];
    libtest_mimic::run(&arguments, themes.into_iter().flatten().collect()).exit_code()
}
