use std::{fmt, panic::resume_unwind, time::Duration};

use async_trait::async_trait;

use crate::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Guarantees, Holder, Inspect, LockKey, Locker, Release,
    Result, ScopedLocker, ScopedOptions, Ttl, Waiter, backend::ScopedBody, unwind,
};

/// Makes any [`Locker`] a [`ScopedLocker`]: acquires with a TTL and renews it every eighth of it while the body runs.
///
/// The body is told of a loss through its hold and runs on; its value comes back with the loss.
///
/// ```
/// use std::time::Duration;
/// use distributed_lock::{MemoryLocker, Scoped, ScopedLockerExt, Ttl};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = Scoped::new(MemoryLocker::new()).with_ttl(Ttl::new(Duration::from_secs(10))?);
/// assert_eq!(locks.with_lock("orders", async |_| 7).await?, 7);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Scoped<L> {
    locker: L,
    ttl: Option<Ttl>,
}

impl<L> Scoped<L> {
    /// Runs bodies under holds of 30 s, which bounds how long a vanished holder keeps the key.
    ///
    /// ```
    /// use distributed_lock::{MemoryLocker, Scoped};
    ///
    /// assert_eq!(Scoped::new(MemoryLocker::new()).to_string(), "Scoped(Memory)");
    /// ```
    pub const fn new(locker: L) -> Self {
        Self { locker, ttl: None }
    }

    /// The same, under holds with this TTL.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{MemoryLocker, Scoped, ScopedLockerExt, Ttl};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = Scoped::new(MemoryLocker::new()).with_ttl(Ttl::new(Duration::from_secs(10))?);
    /// let left = locks.with_lock("orders", async |hold| hold.remaining()).await?;
    /// assert!(left <= Some(Duration::from_secs(10)));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_ttl(mut self, ttl: Ttl) -> Self {
        self.ttl = Some(ttl);
        self
    }

    fn ttl(&self) -> Result<Ttl> {
        self.ttl.map_or_else(|| Ok(Ttl::new(Duration::from_secs(30))?), Ok)
    }
}

impl<L: fmt::Display> fmt::Display for Scoped<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scoped({})", self.locker)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Locker> Backend for Scoped<L> {
    fn id(&self) -> BackendId {
        self.locker.id()
    }
    fn capabilities(&self) -> Capabilities {
        self.locker.capabilities()
    }
    fn guarantees(&self) -> Guarantees {
        self.locker.guarantees()
    }
    async fn ping(&self) -> Result<()> {
        self.locker.ping().await
    }
    async fn close(&self) -> Result<()> {
        self.locker.close().await
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Locker> ScopedLocker for Scoped<L> {
    async fn run_scoped(
        &self,
        key: &LockKey,
        options: &ScopedOptions,
        body: ScopedBody<'_>,
    ) -> Result<Attempt<Release>> {
        let mut acquire = AcquireOptions::new(self.ttl()?).with_wait(options.wait).with_fencing(options.fencing);
        acquire.class = options.class;
        let mut guard = match self.locker.acquire_opts(key, &acquire).await? {
            Attempt::Acquired(guard) => guard,
            Attempt::Contended(why) => return Ok(Attempt::Contended(why)),
        };
        // Declared after the guard, so that a cancelled run drops the body first.
        let hold = guard.hold();
        let mut body = Box::pin(unwind::catch(async { body(hold).await }));
        let ended = tokio::select! {
            biased;
            ended = &mut body => Some(ended),
            _lost = guard.keep_alive() => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => body.await,
        };
        let released = guard.release().await;
        match ended {
            Ok(()) => released.map(Attempt::Acquired),
            Err(panic) => resume_unwind(panic),
        }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Locker + Inspect> Inspect for Scoped<L> {
    async fn holders(&self, key: &LockKey) -> Result<Vec<Holder>> {
        self.locker.holders(key).await
    }
    async fn waiters(&self, key: &LockKey) -> Result<Vec<Waiter>> {
        self.locker.waiters(key).await
    }
    async fn end_holder(&self, key: &LockKey, holder: &Holder) -> Result<bool> {
        self.locker.end_holder(key, holder).await
    }
    async fn request_step_down(&self, key: &LockKey) -> Result<bool> {
        self.locker.request_step_down(key).await
    }
}
