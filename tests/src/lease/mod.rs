//! Replicas of a job, or of several, in processes of their own, for the program that measures the lease runner and for the tests of what a process
//! can suffer.

pub mod clock;
pub mod locker;
pub mod process;
pub mod replica;
pub mod server;
pub mod settings;
pub mod standbys;

use std::{error::Error, time::Duration};

/// Whatever went wrong.
pub type Failure = Box<dyn Error + Send + Sync>;

/// For what must happen, on a busy machine as well.
pub const AMPLE: Duration = Duration::from_secs(30);

/// The name of the job, where there is one.
pub const JOB: &str = "job";

/// The name of one of several jobs, counted from 0: the first is [`JOB`].
#[must_use]
pub fn job(number: usize) -> String {
    if number == 0 { JOB.to_owned() } else { format!("{JOB}/{number}") }
}
