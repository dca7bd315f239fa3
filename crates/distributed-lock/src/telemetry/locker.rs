use std::{fmt, time::Duration};

use async_trait::async_trait;

use super::{
    Telemetry,
    call::Call,
    explain::Explain,
    held::{Held, Measured},
    sink, trace,
};
use crate::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Guarantees, Holder, Inspect, LockKey, Locker, Result,
    Waiter,
};

/// Whether a call is worth looking at in this build.
pub(super) const ENABLED: bool = sink::ENABLED || trace::ENABLED;

/// Any locker, seen in spans, log lines and metrics: its calls, its guards and its scoped runs.
///
/// Put it outermost, around a breaker too, so that it sees what callers see. See [the module] for what it tells.
///
/// ```
/// use std::sync::Arc;
/// use distributed_lock::{Instrumented, Locker, LockerExt, MemoryLocker, Ttl};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locker: Arc<dyn Locker> = Arc::new(Instrumented::new(MemoryLocker::new()));
/// assert_eq!(locker.to_string(), "Instrumented(Memory)");
/// locker.acquire("orders", Ttl::UNTIL_RELEASED).await?.release().await?.exclusive()?;
/// # Ok(()) }
/// ```
///
/// [the module]: crate::telemetry
#[derive(Debug)]
pub struct Instrumented<L> {
    pub(super) inner: L,
    pub(super) telemetry: Telemetry,
    pub(super) explain: Option<Explain<L>>,
}

impl<L: Backend> Instrumented<L> {
    /// Around this locker, telling [`Telemetry::new`].
    ///
    /// ```
    /// use distributed_lock::{Instrumented, MemoryLocker};
    ///
    /// assert_eq!(Instrumented::new(MemoryLocker::new()).to_string(), "Instrumented(Memory)");
    /// ```
    pub fn new(inner: L) -> Self {
        let telemetry = Telemetry::new().for_backend(&inner);
        Self { inner, telemetry, explain: None }
    }

    /// The same, telling this one instead: with a meter, or of a class. [`Telemetry::OFF`] leaves the spans and log lines.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{Instrumented, LockerExt, MemoryLocker, telemetry::Telemetry};
    /// use opentelemetry::metrics::MeterProvider;
    /// use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let exporter = InMemoryMetricExporter::default(); // stands for the one of your program
    /// let provider = SdkMeterProvider::builder().with_reader(PeriodicReader::builder(exporter.clone()).build()).build();
    ///
    /// let telemetry = Telemetry::new().with_meter(&provider.meter("app"));
    /// let locker = Instrumented::new(MemoryLocker::new()).with_telemetry(telemetry);
    /// locker.acquire("orders", Duration::from_secs(30)).await?.release().await?.exclusive()?;
    ///
    /// provider.force_flush()?;
    /// let seen = format!("{:?}", exporter.get_finished_metrics()?);
    /// assert!(seen.contains("lock.wait.duration") && seen.contains("lock.hold.duration"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_telemetry(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = telemetry.for_backend(&self.inner);
        self
    }
}

impl<L: Inspect> Instrumented<L> {
    /// The same, saying once of each call that waits for longer than this what it waits for: the holder's application name, host and
    /// process, for how long it has held the lock, and how many queue, in one log line that is also an event of the span
    /// `lock.acquire`.
    ///
    /// It is asked through [`Inspect`], beside the wait: that goes on meanwhile, and its answer ends the asking. An error of it is counted,
    /// and nothing else. On PostgreSQL it takes the housekeeping connection, or over a pool that you brought one of the pool.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{Instrumented, LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryLocker::new();
    /// let locker = Instrumented::new(store.peer()).explaining_waits(Duration::from_secs(5));
    /// let _somebody = store.hold("orders")?;
    /// let ttl = Duration::from_secs(30);
    /// assert!(locker.acquire_within("orders", ttl, Duration::from_secs(6)).await?.is_contended());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn explaining_waits(mut self, after: Duration) -> Self {
        self.explain = Some(Explain { after, inspect: |locker| locker });
        self
    }
}

impl<L> Instrumented<L> {
    /// The locker inside.
    ///
    /// ```
    /// use distributed_lock::{Instrumented, MemoryLocker};
    ///
    /// let locker = Instrumented::new(MemoryLocker::new());
    /// assert_eq!(locker.get_ref().to_string(), "Memory");
    /// ```
    pub const fn get_ref(&self) -> &L {
        &self.inner
    }
}

impl<L: fmt::Display> fmt::Display for Instrumented<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instrumented({})", self.inner)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Backend> Backend for Instrumented<L> {
    fn id(&self) -> BackendId {
        self.inner.id()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }
    async fn ping(&self) -> Result<()> {
        self.inner.ping().await
    }
    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Locker> Locker for Instrumented<L> {
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        if !ENABLED {
            return self.inner.acquire_opts(key, options).await;
        }
        let call = Call::start(self.telemetry.for_class(options.class), key, options.wait);
        let asking = call.hearing(self.inner.acquire_opts(key, options));
        let answer = Explain::beside(self.explain.as_ref(), &self.inner, &call, key, asking).await;
        // No await from here to the guard, so that the grant always has an owner.
        let now = call.answered(&answer);
        Ok(answer?.map(|guard| {
            let held = Held::start(call.telemetry(), guard.hold(), now);
            guard.map_handle(|inner| Measured { inner, held })
        }))
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Inspect> Inspect for Instrumented<L> {
    async fn holders(&self, key: &LockKey) -> Result<Vec<Holder>> {
        self.inner.holders(key).await
    }
    async fn waiters(&self, key: &LockKey) -> Result<Vec<Waiter>> {
        self.inner.waiters(key).await
    }
    async fn end_holder(&self, key: &LockKey, holder: &Holder) -> Result<bool> {
        self.inner.end_holder(key, holder).await
    }
    async fn request_step_down(&self, key: &LockKey) -> Result<bool> {
        self.inner.request_step_down(key).await
    }
}
