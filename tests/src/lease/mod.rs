//! Replicas of a job in processes of their own, for the program that measures the lease runner and for the tests of what a process
//! can suffer.

pub mod clock;
pub mod process;
pub mod replica;
pub mod server;
pub mod settings;

use std::{error::Error, time::Duration};

/// Whatever went wrong.
pub type Failure = Box<dyn Error + Send + Sync>;

/// For what must happen, on a busy machine as well.
pub const AMPLE: Duration = Duration::from_secs(30);

/// The name of the job.
pub const JOB: &str = "job";
