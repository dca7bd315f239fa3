use std::fmt;

use tokio::sync::watch;

use super::CancelReason;
use crate::{Error, Hold, Loss, Result};

/// Where a lease is.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum LeaseState {
    /// This runner does not run it.
    #[default]
    Idle,
    /// Somebody else leads, or nobody yet.
    Standby,
    /// The lease is ours, and the takeover delay runs.
    TakingOver(Hold),
    /// The job runs under this hold; [`Hold::age`] says since when.
    Leading(Hold),
    /// The job was told to end for this reason, other than a loss, and has not.
    Draining(Hold, CancelReason),
    /// The job was told to end because of this loss, and has not.
    Lost(Hold, Loss),
}

impl LeaseState {
    /// Bad while a job runs whose lease cannot be proven.
    ///
    /// # Errors
    /// Kind `Lost`, with the [`Loss`] as its source.
    ///
    /// ```
    /// use distributed_lock::lease::LeaseState;
    ///
    /// assert!(LeaseState::Standby.health().is_ok(), "a standby is healthy");
    /// ```
    pub fn health(&self) -> Result<()> {
        match self {
            Self::Lost(hold, loss) => Err(Error::from(loss.clone()).with_key(hold.key())),
            Self::Leading(hold) | Self::Draining(hold, _) => hold.ensure_valid(),
            Self::Idle | Self::Standby | Self::TakingOver(_) => Ok(()),
        }
    }
}

impl fmt::Display for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle => f.write_str("idle"),
            Self::Standby => f.write_str("standby"),
            Self::TakingOver(_) => f.write_str("taking over"),
            Self::Leading(hold) => write!(f, "leading for {:.1?}", hold.age()),
            Self::Draining(_, reason) => write!(f, "draining: {reason}"),
            Self::Lost(_, loss) => write!(f, "lost: {loss}"),
        }
    }
}

/// Follows the state of one name. From [`LeaseRunner::watch`](super::LeaseRunner::watch).
#[derive(Clone, Debug)]
pub struct LeaseWatch(watch::Receiver<LeaseState>);

impl LeaseWatch {
    pub(super) fn new(states: watch::Receiver<LeaseState>) -> Self {
        Self(states)
    }

    /// The state now.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseRunner, LeaseState}};
    /// # fn main() -> distributed_lock::Result<()> {
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
    /// assert!(matches!(runner.watch("report")?.state(), LeaseState::Idle));
    /// # Ok(()) }
    /// ```
    pub fn state(&self) -> LeaseState {
        self.0.borrow().clone()
    }

    /// Waits for a state that was not seen by this method yet; `None` when the runner is gone. States that pass quickly may be
    /// skipped. Cancel safe.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseRunner, LeaseState}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
    /// let mut watch = runner.watch("report")?;
    /// let job = runner.run("report", async |_term| std::future::pending::<Result<(), ()>>().await);
    /// tokio::select! {
    ///     exit = job => println!("{exit:?}"),
    ///     leads = watch.wait_for(|state| matches!(state, LeaseState::Leading(_))) => assert!(leads.is_some()),
    /// }
    /// assert!(matches!(watch.changed().await, Some(LeaseState::Idle)), "the run was dropped");
    /// # Ok(()) }
    /// ```
    pub async fn changed(&mut self) -> Option<LeaseState> {
        self.0.changed().await.ok()?;
        Some(self.0.borrow_and_update().clone())
    }

    /// Waits for a state like this, the present one included; `None` when the runner is gone. Cancel safe.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseRunner, LeaseState}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
    /// let mut watch = runner.watch("report")?;
    /// let run = tokio::spawn({
    ///     let runner = runner.clone();
    ///     async move { runner.run("report", async |_term| std::future::pending::<Result<(), ()>>().await).await }
    /// });
    /// let leading = watch.wait_for(|state| matches!(state, LeaseState::Leading(_))).await;
    /// println!("{}", leading.ok_or("the runner is gone")?);
    /// # run.abort();
    /// # Ok(()) }
    /// ```
    pub async fn wait_for(&mut self, wanted: impl FnMut(&LeaseState) -> bool) -> Option<LeaseState> {
        self.0.wait_for(wanted).await.ok().map(|state| state.clone())
    }

    /// For health checks: bad while a job runs whose lease cannot be proven.
    ///
    /// # Errors
    /// Kind `Lost`, with the [`Loss`] as its source.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseRunner}};
    /// # fn main() -> distributed_lock::Result<()> {
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
    /// runner.watch("report")?.health()
    /// # }
    /// ```
    pub fn health(&self) -> Result<()> {
        self.0.borrow().health()
    }
}
