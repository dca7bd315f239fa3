//! The lease runner on a real server, for what sessions, networks and jobs can suffer: whether two jobs ever work at a time, how
//! soon the other replica takes over, and what the run says of it. The bounds are those that the runner prints. Each trial says under
//! which locks it runs.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test; clippy knows only those of the standard harness")]

mod bench;
mod blocked;
mod cases;
mod connecting;
mod failover;
mod jobs;
mod meddling;
mod old_terms;
mod partition;
mod referee;
mod replica;
mod restart;
mod server;
mod slow;
mod terminated;

#[allow(dead_code, reason = "the backend's own tests use more of it")]
#[path = "../../../crates/lock-postgres/tests/common/intruder.rs"]
mod intruder;

#[allow(dead_code, reason = "the backend's own tests use more of it")]
#[path = "../../../crates/lock-postgres/tests/common/bench.rs"]
mod backend;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use tests::lease::locker::LockerKind;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    jobs::hush_the_job_s_panic();
    // They wait for timers far more than they work.
    arguments.test_threads.get_or_insert(6);
    let themes: &[fn(LockerKind) -> Vec<Trial>] = &[
        terminated::trials,
        restart::trials,
        partition::trials,
        meddling::trials,
        jobs::trials,
        old_terms::trials,
        connecting::trials,
        cases::trials,
        blocked::trials,
        failover::trials,
        slow::trials,
    ];
    let of = |locker| themes.iter().flat_map(move |trials| trials(locker));
    libtest_mimic::run(&arguments, LockerKind::ALL.into_iter().flat_map(of).collect()).exit_code()
}
