//! What measuring programs have in common: one CPU, a server, exit codes.

use std::{error::Error, io, process::ExitCode};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::postgres::StartError;

/// The `main` of a bench of `cargo bench -p PACKAGE --bench NAME` that needs a server.
///
/// Exits 2 if it was called with arguments, 4 without a server, 1 if anything fails; else as `measure` says.
pub fn run(package: &str, name: &str, measure: impl FnOnce() -> Result<ExitCode, Box<dyn Error>>) -> ExitCode {
    // Cargo adds the one argument.
    if std::env::args().skip(1).any(|argument| argument != "--bench") {
        eprintln!("usage: cargo bench -p {package} --bench {name}");
        return ExitCode::from(2);
    }
    measure().unwrap_or_else(|error| {
        eprintln!("{name}: {error}");
        ExitCode::from(if matches!(error.downcast_ref(), Some(StartError::Missing(_))) { 4 } else { 1 })
    })
}

/// Does it on the last CPU that this thread may use, and gives back the others. Threads and processes that it starts stay there.
pub fn on_one_cpu<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    let allowed = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(last.unwrap_or_default());
    sched_setaffinity(None, &one)?;
    let done = work();
    sched_setaffinity(None, &allowed)?;
    Ok(done)
}

/// Of an even number the higher one of the middle.
pub fn median(samples: &[f64]) -> f64 {
    let mut samples = samples.to_vec();
    samples.sort_unstable_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}
