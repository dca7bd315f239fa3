use std::{fmt, time::Duration};

use super::{CancelReason, LeaseGuarantees};
use crate::{Error, Hold, LockKey, Loss, Release, Result};

/// What happens in a run, for hooks. `Display` is a line for a log.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use distributed_lock::{MemoryLocker, lease::{JobOutcome, LeaseConfig, LeaseEvent, LeaseRunner}};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let failures = Arc::new(Mutex::new(0));
/// let count = Arc::clone(&failures);
/// let config = LeaseConfig::new().with_hook(move |event| match event {
///     LeaseEvent::TermEnded { outcome: JobOutcome::Err | JobOutcome::Panicked, .. } => *count.lock().unwrap() += 1,
///     other => println!("{other}"),
/// });
/// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), config)?;
/// let _exit = runner.run("report", async |_term| Err::<(), _>("no paper")).await?;
/// assert_eq!(*failures.lock().unwrap(), 1);
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum LeaseEvent<'a> {
    /// An attempt to get the lease failed; contention is no failure. `retry_in` is `None` if this ends the run.
    #[non_exhaustive]
    AcquireFailed {
        /// The name.
        key: &'a LockKey,
        /// What it failed with.
        error: &'a Error,
        /// The pause before the next attempt.
        retry_in: Option<Duration>,
    },
    /// The job was told to end.
    #[non_exhaustive]
    Draining {
        /// The hold of the term.
        hold: &'a Hold,
        /// Why.
        reason: &'a CancelReason,
    },
    /// The job starts.
    #[non_exhaustive]
    Leading {
        /// The hold of the term.
        hold: &'a Hold,
    },
    /// A run starts and stands by.
    #[non_exhaustive]
    StandingBy {
        /// The name.
        key: &'a LockKey,
        /// What the runner promises.
        guarantees: &'a LeaseGuarantees,
    },
    /// The lease is ours, and the takeover delay runs.
    #[non_exhaustive]
    TakingOver {
        /// The hold of the term to come.
        hold: &'a Hold,
    },
    /// The job ended, and the lease was given up.
    #[non_exhaustive]
    TermEnded {
        /// The hold of the term.
        hold: &'a Hold,
        /// Why the job was told to end, if it was.
        reason: Option<&'a CancelReason>,
        /// How the job ended.
        outcome: JobOutcome,
        /// The loss, if the lease had been lost before the job ended.
        loss: Option<&'a Loss>,
        /// How long the job ran on after the loss.
        overrun: Duration,
        /// How the release went.
        release: &'a Result<Release>,
    },
}

/// How a job ended; its value is in [`LeaseExit`](super::LeaseExit) or [`TermEnd`](super::TermEnd).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum JobOutcome {
    /// Not within its grace: it was dropped.
    Dropped,
    /// It returned `Err`.
    Err,
    /// There was none: the lease ended within the takeover delay.
    NotStarted,
    /// It returned `Ok`.
    Ok,
    /// It panicked.
    Panicked,
}

impl fmt::Display for LeaseEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AcquireFailed { key, error, retry_in } => {
                write!(f, "{key:?}: the lease could not be asked for: {error}")?;
                let mut source = std::error::Error::source(error);
                while let Some(cause) = source {
                    write!(f, ": {cause}")?;
                    source = cause.source();
                }
                match retry_in {
                    Some(pause) => write!(f, "; the next attempt is in {pause:.1?}"),
                    None => f.write_str("; the run ends"),
                }
            }
            Self::Draining { hold, reason } => write!(f, "{:?} drains: {reason}", hold.key()),
            Self::Leading { hold } => write!(f, "{:?} leads", hold.key()),
            Self::StandingBy { key, guarantees } => write!(f, "{key:?} stands by; {guarantees}"),
            Self::TakingOver { hold } => write!(f, "{:?} waits out the takeover delay", hold.key()),
            Self::TermEnded { hold, reason, outcome, loss, overrun, release } => {
                write!(f, "{:?} ended its term: {outcome}", hold.key())?;
                if let Some(reason) = reason {
                    write!(f, "; told because {reason}")?;
                }
                if let Some(loss) = loss {
                    write!(f, "; lost because {loss}, ran on for {overrun:?}")?;
                }
                match release {
                    Ok(Release::Released) => Ok(()),
                    Ok(Release::Lapsed(loss)) => write!(f, "; lapsed before the release: {loss}"),
                    Ok(Release::Lost(loss)) => write!(f, "; the release found it lost: {loss}"),
                    Err(error) => write!(f, "; the release failed: {error}"),
                }
            }
        }
    }
}

impl fmt::Display for JobOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dropped => "the job was dropped at the end of its grace",
            Self::Err => "the job failed",
            Self::NotStarted => "the job was not started",
            Self::Ok => "the job returned",
            Self::Panicked => "the job panicked",
        })
    }
}
