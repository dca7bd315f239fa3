use std::{
    fmt::{Debug, Display},
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    AcquireOptions, Attempt, Capabilities, Error, Guarantees, LockGuard, LockKey, Release, Result, Ttl, Wait, task,
};

/// Which locker this is, within this process. Wrappers forward it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct BackendId(u64);

impl BackendId {
    /// An id no other locker of this process has.
    ///
    /// ```
    /// use distributed_lock::BackendId;
    ///
    /// assert_ne!(BackendId::fresh(), BackendId::fresh());
    /// ```
    #[must_use]
    pub fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What every locker is: printable (`Display` shows the stack), honest about itself, checkable and closable.
///
/// ```
/// use std::sync::Arc;
/// use distributed_lock::{Backend, ErrorKind, Locker, MemoryLocker};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locker: Arc<dyn Locker> = Arc::new(MemoryLocker::new());
/// println!("{locker}: {}", locker.guarantees());
/// locker.ping().await?;
/// locker.close().await?;
/// assert_eq!(locker.ping().await.unwrap_err().kind(), ErrorKind::Closed);
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Backend: Debug + Display + Send + Sync + 'static {
    /// Which locker this is; of a wrapper, which locker it wraps.
    fn id(&self) -> BackendId;

    /// What this locker can do.
    fn capabilities(&self) -> Capabilities;

    /// What it promises, computed from the live settings.
    fn guarantees(&self) -> Guarantees;

    /// Whether the store answers. Never waits for holders. Cancel safe.
    ///
    /// # Errors
    /// `Unavailable` and its relatives when the store does not answer; `Closed` after [`close`](Self::close).
    async fn ping(&self) -> Result<()>;

    /// Ends every hold and wait of this locker (cause `Closed`) and refuses later calls. Cancel safe: call it again to finish.
    ///
    /// The keys are free at once, while work under them can still be within its grace: stop the work first where that matters.
    ///
    /// # Errors
    /// When something could not be freed within the locker's limit; what is left ends within
    /// [`Guarantees::cleanup`](crate::Guarantees::cleanup).
    async fn close(&self) -> Result<()>;
}

/// Gives locks. Users call [`LockerExt`]; this is the contract with backends.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use distributed_lock::{Locker, LockerExt, MemoryLocker};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locker: Arc<dyn Locker> = Arc::new(MemoryLocker::new());
/// assert!(locker.try_acquire("orders", Duration::from_secs(30)).await?.acquired().is_some());
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Locker: Backend {
    /// The one way to acquire. Contention is an answer, never an error.
    ///
    /// Cancel safe, with a cost: the place in the queue is lost. You must keep [`Wait`] on every store (see
    /// [`poll_until`](crate::backend::poll_until)) and own whatever the request may take *before* it leaves.
    ///
    /// # Errors
    /// Any kind but `Contended`. None of them leaves the lock with the caller, but for `Indeterminate`, which may.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{AcquireOptions, Fencing, LockKey, Locker, MemoryLocker, Ttl, Wait};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = AcquireOptions::new(Ttl::new(Duration::from_secs(30))?)
    ///     .with_wait(Wait::UpTo(Duration::from_secs(1)))
    ///     .with_fencing(Fencing::On);
    /// let guard = MemoryLocker::new().acquire_opts(&LockKey::new("orders")?, &options).await?.into_result()?;
    /// assert!(guard.fencing_token().is_some());
    /// # Ok(()) }
    /// ```
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt>;
}

/// The backend's side of a guard. Facts live in [`HoldRecord`](crate::backend::HoldRecord), so there is little to forward.
#[async_trait]
pub trait LockHandle: Debug + Send + Sync {
    /// Moves the deadline to `ttl` from now, and says so to the record. Cancel safe: the hold ends at the old or the new deadline.
    ///
    /// # Errors
    /// `Lost` when the hold is no longer ours, and then only; any other kind leaves it as it was.
    async fn renew(&mut self, ttl: Ttl) -> Result<()>;

    /// Gives the lock up and says how the hold ended. Not called twice.
    ///
    /// Cancel safe: when it is dropped midway or fails, `abandon` follows.
    ///
    /// # Errors
    /// When the store's answer is missing. A hold that had ended is an answer, not an error.
    async fn release(&mut self) -> Result<Release>;

    /// Frees the lock without waiting and without a runtime: hand it to an owner task or close the socket. Called from `Drop`,
    /// exactly when no release succeeded.
    fn abandon(&mut self);
}

/// How users acquire. Implemented for every [`Locker`], `dyn` included; do not implement it.
pub trait LockerExt: Locker {
    /// Waits until the lock is ours. Cancel safe, with a cost: the place in the queue is lost.
    ///
    /// # Errors
    /// As [`Locker::acquire_opts`]; also `InvalidInput` for a bad key or TTL, and `Deadlock` in a body under the same key of
    /// the same locker.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = MemoryLocker::new().acquire("orders", Duration::from_secs(30)).await?;
    /// assert_eq!(guard.key().as_str(), "orders");
    /// # Ok(()) }
    /// ```
    fn acquire(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        ttl: impl TryInto<Ttl, Error: Into<Error>>,
    ) -> impl Future<Output = Result<LockGuard>> + Send {
        let attempt = acquire(self, key, ttl, Wait::Forever);
        async { Ok(attempt.await?.into_result()?) }
    }

    /// Tries once. Cancel safe.
    ///
    /// # Errors
    /// As [`Locker::acquire_opts`]; also `InvalidInput` for a bad key or TTL.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{Attempt, LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// match MemoryLocker::new().try_acquire("orders", Duration::from_secs(30)).await? {
    ///     Attempt::Acquired(guard) => guard.release().await?.exclusive()?,
    ///     Attempt::Contended(why) => println!("not now: {why}"),
    /// }
    /// # Ok(()) }
    /// ```
    fn try_acquire(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        ttl: impl TryInto<Ttl, Error: Into<Error>>,
    ) -> impl Future<Output = Result<Attempt>> + Send {
        acquire(self, key, ttl, Wait::Never)
    }

    /// Waits at most this long, all told. Cancel safe, with a cost: the place in the queue is lost.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{Attempt, Contention, LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = MemoryLocker::new();
    /// let _somebody = locker.hold("orders")?;
    /// let waited = locker.acquire_within("orders", Duration::from_secs(30), Duration::from_millis(5)).await?;
    /// assert!(matches!(waited, Attempt::Contended(Contention::WaitElapsed)));
    /// # Ok(()) }
    /// ```
    fn acquire_within(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        ttl: impl TryInto<Ttl, Error: Into<Error>>,
        limit: Duration,
    ) -> impl Future<Output = Result<Attempt>> + Send {
        acquire(self, key, ttl, Wait::UpTo(limit))
    }
}

impl<L: Locker + ?Sized> LockerExt for L {}

/// Parses outside the future, so that the arguments need be neither `Send` nor alive while it runs.
fn acquire<L: Locker + ?Sized>(
    locker: &L,
    key: impl TryInto<LockKey, Error: Into<Error>>,
    ttl: impl TryInto<Ttl, Error: Into<Error>>,
    wait: Wait,
) -> impl Future<Output = Result<Attempt>> + Send {
    let key = key.try_into().map_err(Into::into);
    let ttl = ttl.try_into().map_err(Into::into);
    async move {
        let (key, ttl) = (key?, ttl?);
        task::ensure_not_under(locker.id(), &key, wait)?;
        locker.acquire_opts(&key, &AcquireOptions::new(ttl).with_wait(wait)).await
    }
}
