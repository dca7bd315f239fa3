use std::{any::Any, time::Duration};

use super::{CancelReason, Stall};
use crate::{FencingToken, Loss};

/// How a run ended. Its job has ended and its lease has been given up by then.
///
/// ```
/// use std::sync::Arc;
/// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseExit, LeaseRunner}};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
/// match runner.run("report", async |_term| Ok::<u32, std::io::Error>(12)).await? {
///     LeaseExit::Finished(pages) => assert_eq!(pages, 12),
///     LeaseExit::Failed(error) => return Err(error.into()),
///     LeaseExit::Panicked(message) => return Err(message.into()),
///     LeaseExit::Stalled(why, _) => return Err(why.to_string().into()),
///     LeaseExit::Stopped(_) | LeaseExit::Closed(_) => println!("shut down"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use]
pub enum LeaseExit<T, E> {
    /// The job returned `Ok` while it led.
    Finished(T),
    /// The job returned `Err` while it led.
    Failed(E),
    /// The job panicked, with this message. The process lives.
    Panicked(String),
    /// The job overstayed a limit, and was told to end.
    Stalled(Stall, TermEnd<T, E>),
    /// The name was stopped, with the term that this ended if one was on.
    Stopped(Option<TermEnd<T, E>>),
    /// The runner was closed, likewise.
    Closed(Option<TermEnd<T, E>>),
}

/// How a term ended whose job did not end the run by itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TermEnd<T, E> {
    /// The token of the term, where one was minted.
    pub fencing_token: Option<FencingToken>,
    /// Why the job was told to end; `None` if it ended by itself, not knowing of the loss.
    pub reason: Option<CancelReason>,
    /// What the job returned; `None` if it did not end within the grace and was dropped.
    pub result: Option<Result<T, E>>,
    /// The loss, if the lease had been lost before the job ended.
    pub loss: Option<Loss>,
    /// How long the job ran on after the loss, its drop included. Zero where the moment of the loss is not known.
    pub overrun: Duration,
}

/// What a panic says.
pub(super) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "not a string".to_owned())
}
