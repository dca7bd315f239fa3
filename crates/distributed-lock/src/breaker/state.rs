use std::fmt;

use tokio::sync::watch;

/// What a breaker lets through.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum BreakerState {
    /// Everything.
    Closed,
    /// Nothing, until the ping that probes the store has been answered.
    HalfOpen,
    /// Nothing. When the open time is over it stays so until somebody calls, whose call begins the probe.
    Open,
}

impl fmt::Display for BreakerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::Open => "open",
        })
    }
}

/// What a breaker has done since it was made. From [`CircuitBreaker::counts`](super::CircuitBreaker::counts).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct BreakerCounts {
    /// How often it opened.
    pub opened: u64,
    /// How often an open time was over and a probe began. A probe that was given up and begun again counts once.
    pub half_opened: u64,
    /// How often it closed again.
    pub closed: u64,
    /// Calls that it refused.
    pub refused: u64,
}

/// Follows the state of a breaker. From [`CircuitBreaker::watch`](super::CircuitBreaker::watch).
#[derive(Clone, Debug)]
pub struct BreakerWatch(watch::Receiver<BreakerState>);

impl BreakerWatch {
    pub(super) fn new(states: watch::Receiver<BreakerState>) -> Self {
        Self(states)
    }

    /// The state now.
    ///
    /// ```
    /// use distributed_lock::{MemoryLocker, breaker::{BreakerConfig, BreakerState, CircuitBreaker}};
    ///
    /// let locker = CircuitBreaker::new(MemoryLocker::new(), BreakerConfig::new())?;
    /// assert_eq!(locker.watch().state(), BreakerState::Closed);
    /// # Ok::<(), distributed_lock::InvalidInput>(())
    /// ```
    pub fn state(&self) -> BreakerState {
        *self.0.borrow()
    }

    /// Waits for a state that was not seen by this method yet; `None` when the breaker is gone. States that pass quickly may be
    /// skipped. Cancel safe.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{ErrorKind, LockerExt, MemoryLocker, breaker::{BreakerConfig, BreakerState, CircuitBreaker}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = CircuitBreaker::new(MemoryLocker::new(), BreakerConfig::new().with_min_samples(1))?;
    /// let mut watch = locker.watch();
    /// locker.get_ref().fail_next(ErrorKind::Unavailable);
    /// assert!(locker.try_acquire("orders", Duration::from_secs(30)).await.is_err());
    /// assert_eq!(watch.changed().await, Some(BreakerState::Open));
    /// # Ok(()) }
    /// ```
    pub async fn changed(&mut self) -> Option<BreakerState> {
        self.0.changed().await.ok()?;
        Some(*self.0.borrow_and_update())
    }

    /// Waits for this state, the present one included; `None` when the breaker is gone. Cancel safe.
    ///
    /// ```
    /// use distributed_lock::{MemoryLocker, breaker::{BreakerConfig, BreakerState, CircuitBreaker}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = CircuitBreaker::new(MemoryLocker::new(), BreakerConfig::new())?;
    /// assert_eq!(locker.watch().wait_for(BreakerState::Closed).await, Some(BreakerState::Closed));
    /// # Ok(()) }
    /// ```
    pub async fn wait_for(&mut self, wanted: BreakerState) -> Option<BreakerState> {
        self.0.wait_for(|state| *state == wanted).await.ok().map(|state| *state)
    }
}
