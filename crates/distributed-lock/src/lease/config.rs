use std::{fmt, sync::Arc, time::Duration};

use super::{LeaseEvent, timing::Timing};
use crate::{Capabilities, InvalidInput, Result, Ttl, telemetry::Telemetry};

/// How leases are held. Checked by [`LeaseRunner::new`](super::LeaseRunner::new).
///
/// ```
/// use std::time::Duration;
/// use distributed_lock::lease::LeaseConfig;
///
/// let config = LeaseConfig::new().with_ttl(Duration::from_secs(15)).with_grace(Duration::from_secs(3));
/// assert_eq!(config.retry_interval, Duration::from_secs(5));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeaseConfig {
    /// How long a holder that vanished keeps the lease. Default 23 s.
    pub ttl: Duration,
    /// How long a job that was told to end may take before it is dropped. Default 5 s.
    pub grace: Duration,
    /// The pause after an attempt that failed, and between attempts where the store does not queue; up to 20 % more by chance.
    /// Default 5 s.
    pub retry_interval: Duration,
    /// The longest term; a job that leads for longer is stalled. Default none.
    pub max_term: Option<Duration>,
    /// A job that does not call [`Term::progress`](super::Term::progress) for this long is stalled. Default none.
    pub progress_deadline: Option<Duration>,
    /// A pause between each grant and its job, in which a former holder that the store forgot can end. Default none.
    pub takeover_delay: Option<Duration>,
    pub(super) hook: Option<Hook>,
    pub(super) telemetry: Telemetry,
    pub(super) class: Option<&'static str>,
}

impl LeaseConfig {
    /// The defaults: a TTL of 23 s, a grace and a retry interval of 5 s, nothing else.
    ///
    /// ```
    /// use distributed_lock::lease::LeaseConfig;
    ///
    /// assert_eq!(LeaseConfig::new().ttl.as_secs(), 23);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            ttl: Duration::from_secs(23),
            grace: Duration::from_secs(5),
            retry_interval: Duration::from_secs(5),
            max_term: None,
            progress_deadline: None,
            takeover_delay: None,
            hook: None,
            telemetry: Telemetry::OFF,
            class: None,
        }
    }

    /// The same, with this TTL.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::lease::LeaseConfig;
    ///
    /// assert_eq!(LeaseConfig::new().with_ttl(Duration::from_secs(15)).ttl, Duration::from_secs(15));
    /// ```
    #[must_use]
    pub const fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The same, with this grace.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::lease::LeaseConfig;
    ///
    /// assert_eq!(LeaseConfig::new().with_grace(Duration::from_secs(3)).grace, Duration::from_secs(3));
    /// ```
    #[must_use]
    pub const fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// The same, with this retry interval.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::lease::LeaseConfig;
    ///
    /// assert_eq!(LeaseConfig::new().with_retry_interval(Duration::from_secs(2)).retry_interval, Duration::from_secs(2));
    /// ```
    #[must_use]
    pub const fn with_retry_interval(mut self, interval: Duration) -> Self {
        self.retry_interval = interval;
        self
    }

    /// The same, with terms of at most this length: for jobs that hang in ways a renewal does not see.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseExit, LeaseRunner, Stall}};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = LeaseConfig::new().with_max_term(Duration::from_secs(60));
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), config)?;
    /// let exit = runner.run("report", async |_term| std::future::pending::<Result<(), ()>>().await).await?;
    /// assert!(matches!(exit, LeaseExit::Stalled(Stall::MaxTerm, _)));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn with_max_term(mut self, limit: Duration) -> Self {
        self.max_term = Some(limit);
        self
    }

    /// The same, with this progress deadline. What it does is shown at [`Term::progress`](super::Term::progress).
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::lease::LeaseConfig;
    ///
    /// assert_eq!(LeaseConfig::new().with_progress_deadline(Duration::from_secs(60)).progress_deadline, Some(Duration::from_secs(60)));
    /// ```
    #[must_use]
    pub const fn with_progress_deadline(mut self, limit: Duration) -> Self {
        self.progress_deadline = Some(limit);
        self
    }

    /// The same, with a takeover delay: for work that must not overlap even when the store forgets who held the lease.
    ///
    /// It is observed after *every* grant, a clean end of the holder before included, since a [`Locker`](crate::Locker) gives no
    /// proof of a clean end. It must be at least the detection bound plus the grace: 18.1 s with the defaults.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use distributed_lock::{Bound, MemoryLocker, lease::{LeaseConfig, LeaseRunner}};
    /// # fn main() -> distributed_lock::Result<()> {
    /// let config = LeaseConfig::new().with_takeover_delay(Duration::from_secs(20));
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), config)?;
    /// assert_eq!(runner.guarantees().takeover_released, Bound::Within(Duration::from_secs(20)));
    /// assert_eq!(runner.guarantees().overlap_forgotten, Bound::Within(Duration::ZERO));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn with_takeover_delay(mut self, delay: Duration) -> Self {
        self.takeover_delay = Some(delay);
        self
    }

    /// The same, with a hook that hears of every [`LeaseEvent`] of every run. It is called from the runs themselves: it must be
    /// quick and must not wait. A panic in it ends the run, after its job and its lease.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseRunner}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let log = Arc::clone(&seen);
    /// let config = LeaseConfig::new().with_hook(move |event| log.lock().unwrap().push(event.to_string()));
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), config)?;
    /// let _exit = runner.run("report", async |_term| Ok::<_, ()>(7)).await?;
    /// assert_eq!(seen.lock().unwrap()[1], r#""report" leads"#);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_hook(mut self, hook: impl Fn(&LeaseEvent<'_>) + Send + Sync + 'static) -> Self {
        self.hook = Some(Hook(Arc::new(hook)));
        self
    }

    /// The same, telling its metrics to this. Default [`Telemetry::OFF`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseRunner}, telemetry::Telemetry};
    /// use metrics_util::debugging::DebuggingRecorder;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let recorder = DebuggingRecorder::new(); // stands for the one of your program
    /// let _installed = metrics::set_default_local_recorder(&recorder);
    ///
    /// let config = LeaseConfig::new().with_telemetry(Telemetry::new()).with_class("billing");
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), config)?;
    /// let _exit = runner.run("report", async |_term| Ok::<_, ()>(())).await?;
    ///
    /// let seen = recorder.snapshotter().snapshot().into_vec();
    /// assert!(seen.iter().any(|(key, ..)| key.key().name() == "lease_term_duration_seconds"));
    /// assert!(seen.iter().all(|(key, ..)| key.key().labels().all(|label| label.value() != "report")));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_telemetry(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = telemetry;
        self
    }

    /// The same, with a label for the metrics of the runner and of its locker. See
    /// [`AcquireOptions::with_class`](crate::AcquireOptions::with_class).
    #[must_use]
    pub const fn with_class(mut self, class: &'static str) -> Self {
        self.class = Some(class);
        self
    }

    /// The times, if every setting keeps its rule.
    pub(super) fn timing(&self, capabilities: &Capabilities) -> Result<Timing> {
        let _within_limits = Ttl::new(self.ttl)?;
        let positive = [
            ("retry interval", Some(self.retry_interval)),
            ("max term", self.max_term),
            ("progress deadline", self.progress_deadline),
        ];
        for (what, value) in positive {
            if let Some(value) = value.filter(|value| *value < Duration::from_millis(1)) {
                return Err(InvalidInput::new(what, format_args!("{value:?}"), "must be at least 1ms").into());
            }
        }
        let timing = Timing::checked(self.ttl, self.grace, capabilities.min_ttl)?;
        let least = timing.detection() + self.grace;
        if let Some(delay) = self.takeover_delay.filter(|delay| *delay < least) {
            let rule = format!(
                "must be at least {least:?}, the detection bound {:?} + the grace {:?}, or it protects nothing",
                timing.detection(),
                self.grace
            );
            return Err(InvalidInput::new("takeover delay", format_args!("{delay:?}"), &rule).into());
        }
        Ok(timing)
    }
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Clone)]
pub(super) struct Hook(pub(super) Arc<dyn Fn(&LeaseEvent<'_>) + Send + Sync>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}
