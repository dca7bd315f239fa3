//! Many locks on a few sessions: what a shared session does against real servers, beside others, and when things fail.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test; clippy knows only those of the standard harness")]

mod batches;
#[allow(dead_code, reason = "the other target needs more of it")]
#[path = "../common/bench.rs"]
mod bench;
mod breaker;
#[path = "../common/breaking.rs"]
mod breaking;
mod connections;
#[path = "../common/contested.rs"]
mod contested;
mod endings;
mod exclusion;
mod fairness;
#[path = "../common/intruder.rs"]
mod intruder;
mod lanes;
mod loss;
mod meddling;
mod processes;
#[path = "../common/recorder.rs"]
mod recorder;
mod table;
mod tokens;
mod waiting;
mod wire;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(exit) = processes::worker() {
        return exit;
    }
    let mut arguments = Arguments::from_args();
    // Some of them keep a processor busy.
    arguments.test_threads.get_or_insert(3);
    let themes: [fn() -> Vec<Trial>; 13] = [
        exclusion::trials,
        processes::trials,
        batches::trials,
        tokens::trials,
        table::trials,
        loss::trials,
        endings::trials,
        meddling::trials,
        fairness::trials,
        waiting::trials,
        connections::trials,
        wire::trials,
        breaker::trials,
    ];
    libtest_mimic::run(&arguments, themes.iter().flat_map(|trials| trials()).collect()).exit_code()
}
