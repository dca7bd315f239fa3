//! A circuit breaker: while the store is sick, callers are refused at once instead of waiting for it one by one.
//!
//! ```
//! use std::time::Duration;
//! use distributed_lock::{
//!     ErrorKind, LockerExt, MemoryLocker,
//!     breaker::{BreakerConfig, BreakerState, CircuitBreaker},
//! };
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locker = CircuitBreaker::new(MemoryLocker::new(), BreakerConfig::new().with_min_samples(1))?;
//! let guard = locker.acquire("orders", Duration::from_secs(30)).await?;
//!
//! locker.get_ref().fail_next(ErrorKind::Unavailable); // the store falls sick
//! assert!(locker.try_acquire("bills", Duration::from_secs(30)).await.is_err());
//! assert_eq!(locker.state(), BreakerState::Open);
//!
//! let refused = locker.try_acquire("bills", Duration::from_secs(30)).await.unwrap_err();
//! assert!(refused.kind() == ErrorKind::CircuitOpen && refused.is_retryable());
//! println!("try again in {:?}", refused.retry_after());
//! guard.release().await?.exclusive()?; // never refused
//! # Ok(()) }
//! ```
//!
//! **Gated** are acquires and scoped runs. Renewals, releases, losses, pings, `close` and [`Inspect`](crate::Inspect) always pass;
//! while it is closed their answers count, and they never close it.
//!
//! **What counts**, over the last 10 s: a grant is a success; an error of kind `Unavailable`, `Indeterminate` or `Other` is a failure.
//! Contention and every other error are neutral if the store answered in the call, and so is a wait that the caller gave up after
//! that. What was refused without asking the store counts for nothing. A call whose time was used up, or that was dropped, before the
//! store answered is a failure if the store answered nobody within the 10 s. To know that, a ping goes beside a call when calls go
//! unanswered and nothing was heard for 5 s.
//!
//! **Open**, it refuses with an error of kind `CircuitOpen` that says when to try again. The time doubles with each opening, less up
//! to half of it by chance, until it was closed for 10 s at a stretch.
//!
//! **Half-open**, the first call after that time has the store pinged, in a task of its own that goes on if the caller leaves. That
//! caller waits for it, within its own budget (a single try: until the ping's own timeout), and is let in if it was answered. All others
//! are refused meanwhile. A ping that failed opens it again at once.
//!
//! **Order.** Outside of it belongs what is to see the refusals, such as telemetry: `Instrumented(CircuitBreaker(Postgres))`. Inside
//! of it belongs what talks to the store. One breaker for each store: two stores behind one would be refused together. A breaker
//! inside the adapter, `Scoped(CircuitBreaker(..))`, and one outside, `CircuitBreaker(Scoped(..))`, do the same, but for renewals, which
//! only the first one sees.

use std::{fmt, sync::Arc, time::Duration};

use crate::{Backend, Clock, InvalidInput, SystemClock, telemetry::Telemetry};

mod config;
mod gate;
mod log;
mod machine;
mod measured;
mod outcome;
mod state;
mod window;
mod wrapper;

use gate::Gate;

pub use config::BreakerConfig;
pub use state::{BreakerCounts, BreakerState, BreakerWatch};

/// Refuses acquires while the store inside is sick: see the [module](self). Wraps any [`Locker`](crate::Locker),
/// [`ScopedLocker`](crate::ScopedLocker) and [`Inspect`](crate::Inspect).
#[derive(Debug)]
pub struct CircuitBreaker<L> {
    /// Shared with the ping that is under way.
    inner: Arc<L>,
    gate: Arc<Gate>,
    max_open_time: Duration,
    probe_timeout: Duration,
}

impl<L: Backend> CircuitBreaker<L> {
    /// Around this locker, closed.
    ///
    /// # Errors
    /// For a setting that breaks its rule, with the value and the rule.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{Locker, MemoryLocker, breaker::{BreakerConfig, CircuitBreaker}};
    ///
    /// let chosen: Arc<dyn Locker> = Arc::new(MemoryLocker::new());
    /// let locker = CircuitBreaker::new(chosen, BreakerConfig::new())?;
    /// assert_eq!(locker.to_string(), "CircuitBreaker(Memory)");
    /// # Ok::<(), distributed_lock::InvalidInput>(())
    /// ```
    pub fn new(inner: L, config: BreakerConfig) -> Result<Self, InvalidInput> {
        Self::with_clock(inner, config, SystemClock)
    }

    /// The same, on another clock. The timeout of a ping stays with tokio's timers.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// ```
    /// use distributed_lock::{MemoryLocker, TokioClock, breaker::{BreakerConfig, CircuitBreaker}};
    ///
    /// let for_paused_time = CircuitBreaker::with_clock(MemoryLocker::new(), BreakerConfig::new(), TokioClock)?;
    /// # Ok::<(), distributed_lock::InvalidInput>(())
    /// ```
    pub fn with_clock(inner: L, config: BreakerConfig, clock: impl Clock) -> Result<Self, InvalidInput> {
        config.validate()?;
        let BreakerConfig { max_open_time, probe_timeout, .. } = config;
        let gate = Arc::new(Gate::new(inner.to_string(), config, clock));
        Ok(Self { inner: Arc::new(inner), gate, max_open_time, probe_timeout })
    }
}

impl<L> CircuitBreaker<L> {
    /// The same, telling this one of its state, its changes and its refusals, with what the locker inside prints as `lock.backend`. Nobody
    /// unless set. Two breakers before lockers that print the same have one series for both: the state that it shows is that of the
    /// one that changed last.
    ///
    /// ```
    /// use distributed_lock::{
    ///     ErrorKind, Instrumented, LockerExt, MemoryLocker, Ttl,
    ///     breaker::{BreakerConfig, CircuitBreaker},
    ///     telemetry::Telemetry,
    /// };
    /// use metrics_util::debugging::DebuggingRecorder;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let recorder = DebuggingRecorder::new(); // stands for the one of your program
    /// let _installed = metrics::set_default_local_recorder(&recorder);
    ///
    /// let telemetry = Telemetry::new();
    /// let config = BreakerConfig::new().with_min_samples(1);
    /// let breaker = CircuitBreaker::new(MemoryLocker::new(), config)?.with_telemetry(telemetry.clone());
    /// let locker = Instrumented::new(breaker).with_telemetry(telemetry);
    /// locker.get_ref().get_ref().fail_next(ErrorKind::Unavailable); // the store falls sick
    /// for _ in 0..2 {
    ///     assert!(locker.try_acquire("orders", Ttl::UNTIL_RELEASED).await.is_err());
    /// }
    ///
    /// let seen = recorder.snapshotter().snapshot().into_vec();
    /// let names: Vec<_> = seen.iter().map(|(key, ..)| key.key().name()).collect();
    /// assert!(names.contains(&"lock_breaker_transitions_total") && names.contains(&"lock_breaker_refusals_total"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_telemetry(self, telemetry: Telemetry) -> Self {
        self.gate.set_telemetry(telemetry);
        self
    }

    /// What it lets through now.
    ///
    /// ```
    /// use distributed_lock::{MemoryLocker, breaker::{BreakerConfig, BreakerState, CircuitBreaker}};
    ///
    /// let locker = CircuitBreaker::new(MemoryLocker::new(), BreakerConfig::new())?;
    /// assert_eq!(locker.state(), BreakerState::Closed);
    /// # Ok::<(), distributed_lock::InvalidInput>(())
    /// ```
    pub fn state(&self) -> BreakerState {
        self.gate.state()
    }

    /// Follows the state from now on.
    ///
    /// ```
    /// use distributed_lock::{MemoryLocker, breaker::{BreakerConfig, CircuitBreaker}};
    ///
    /// let locker = CircuitBreaker::new(MemoryLocker::new(), BreakerConfig::new())?;
    /// println!("{}", locker.watch().state());
    /// # Ok::<(), distributed_lock::InvalidInput>(())
    /// ```
    pub fn watch(&self) -> BreakerWatch {
        self.gate.watch()
    }

    /// What it has done so far.
    ///
    /// ```
    /// use distributed_lock::{MemoryLocker, breaker::{BreakerConfig, CircuitBreaker}};
    ///
    /// let locker = CircuitBreaker::new(MemoryLocker::new(), BreakerConfig::new())?;
    /// assert_eq!(locker.counts().opened, 0);
    /// # Ok::<(), distributed_lock::InvalidInput>(())
    /// ```
    pub fn counts(&self) -> BreakerCounts {
        self.gate.counts()
    }

    /// The locker inside.
    ///
    /// ```
    /// use distributed_lock::{MemoryLocker, breaker::{BreakerConfig, CircuitBreaker}};
    ///
    /// let locker = CircuitBreaker::new(MemoryLocker::new(), BreakerConfig::new())?;
    /// assert_eq!(locker.get_ref().to_string(), "Memory");
    /// # Ok::<(), distributed_lock::InvalidInput>(())
    /// ```
    pub fn get_ref(&self) -> &L {
        &self.inner
    }
}

/// The stack, from the outside in.
impl<L: fmt::Display> fmt::Display for CircuitBreaker<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CircuitBreaker({})", self.inner)
    }
}
