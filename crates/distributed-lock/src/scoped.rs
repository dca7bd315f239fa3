use std::{future::Future, pin::Pin, time::Duration};

use async_trait::async_trait;

use crate::{
    Attempt, Backend, Error, ErrorKind, Hold, LockKey, Release, Result, ScopedError, ScopedOptions, Wait, task,
};

/// A boxed future that can move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A body with its value taken out, so that no wrapper can judge a lock by how the work went.
pub type ScopedBody<'a> = Box<dyn FnOnce(Hold) -> BoxFuture<'a, ()> + Send + 'a>;

/// Runs a body under a lock. Users call [`ScopedLockerExt`]; this is the contract with backends.
///
/// ```
/// use std::sync::Arc;
/// use distributed_lock::{MemoryLocker, Scoped, ScopedLocker, ScopedLockerExt};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks: Arc<dyn ScopedLocker> = Arc::new(Scoped::new(MemoryLocker::new()));
/// assert_eq!(locks.with_lock("orders", async |_| 7).await?, 7);
/// # Ok(()) }
/// ```
#[async_trait]
pub trait ScopedLocker: Backend {
    /// Acquires, runs the body, releases; says whether it got the lock, and if so how the hold ended.
    ///
    /// You must poll the body to its end even when the lock is lost (its [`Hold`] tells it), release only after it ended, and let
    /// its panic through after the release. Cancel safe: the body is dropped, then the lock is freed.
    ///
    /// # Errors
    /// Any kind but `Contended`; also after the body ran, when the release could not be confirmed.
    async fn run_scoped(
        &self,
        key: &LockKey,
        options: &ScopedOptions,
        body: ScopedBody<'_>,
    ) -> Result<Attempt<Release>>;
}

/// How users run under a lock. Implemented for every [`ScopedLocker`], `dyn` included; do not implement it.
///
/// A body is `async |hold| ..` or `|hold| async move { .. }`, may borrow, and must be `Send`. `Err` is about the lock only: what the
/// body returned, good or bad, is the `Ok` value, or is inside [`ScopedError`] when the lock did not hold to the end.
pub trait ScopedLockerExt: ScopedLocker {
    /// Waits until the lock is ours, then runs the body. Cancel safe: the body is dropped, then the lock is freed.
    ///
    /// # Errors
    /// As [`ScopedLocker::run_scoped`]; also `InvalidInput` for a bad key, `Deadlock` in a body under the same key of the same
    /// locker, and `Lost` when the lock did not hold to the end.
    ///
    /// ```
    /// use distributed_lock::{MemoryLocker, Scoped, ScopedLockerExt};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = Scoped::new(MemoryLocker::new());
    /// let mut stock = 3;
    /// let left = locks
    ///     .with_lock("stock", async |hold| {
    ///         hold.ensure_valid()?;
    ///         stock -= 1;
    ///         Ok::<_, distributed_lock::Error>(stock)
    ///     })
    ///     .await??;
    /// assert_eq!(left, 2);
    /// # Ok(()) }
    /// ```
    fn with_lock<T, Body, Fut>(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        body: Body,
    ) -> impl Future<Output = Result<T, ScopedError<T>>> + Send
    where
        T: Send,
        Body: FnOnce(Hold) -> Fut + Send,
        Fut: Future<Output = T> + Send,
    {
        let attempt = drive(self, key, ScopedOptions::new(Wait::Forever), body);
        async { attempt.await?.into_result().map_err(|why| ScopedError::new(why, None)) }
    }

    /// Runs the body if the lock is free. Cancel safe: the body is dropped, then the lock is freed.
    ///
    /// # Errors
    /// As [`with_lock`](Self::with_lock), but for `Deadlock`: a single try is contended then.
    ///
    /// ```
    /// use distributed_lock::{Attempt, MemoryLocker, Scoped, ScopedLockerExt};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryLocker::new();
    /// let locks = Scoped::new(store.peer());
    /// let _somebody = store.hold("orders")?;
    /// match locks.try_with_lock("orders", async |_| 7).await? {
    ///     Attempt::Acquired(value) => println!("did it: {value}"),
    ///     Attempt::Contended(why) => assert_eq!(why.to_string(), "held by another holder"),
    /// }
    /// # Ok(()) }
    /// ```
    fn try_with_lock<T, Body, Fut>(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        body: Body,
    ) -> impl Future<Output = Result<Attempt<T>, ScopedError<T>>> + Send
    where
        T: Send,
        Body: FnOnce(Hold) -> Fut + Send,
        Fut: Future<Output = T> + Send,
    {
        drive(self, key, ScopedOptions::new(Wait::Never), body)
    }

    /// Runs the body if the lock is ours within the limit. Cancel safe: the body is dropped, then the lock is freed.
    ///
    /// # Errors
    /// As [`with_lock`](Self::with_lock).
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{MemoryLocker, Scoped, ScopedLockerExt};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = Scoped::new(MemoryLocker::new());
    /// let ran = locks.with_lock_within("orders", Duration::from_secs(1), async |_| 7).await?;
    /// assert_eq!(ran.acquired(), Some(7));
    /// # Ok(()) }
    /// ```
    fn with_lock_within<T, Body, Fut>(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        limit: Duration,
        body: Body,
    ) -> impl Future<Output = Result<Attempt<T>, ScopedError<T>>> + Send
    where
        T: Send,
        Body: FnOnce(Hold) -> Fut + Send,
        Fut: Future<Output = T> + Send,
    {
        drive(self, key, ScopedOptions::new(Wait::UpTo(limit)), body)
    }

    /// The same with every option. Cancel safe: the body is dropped, then the lock is freed.
    ///
    /// # Errors
    /// As [`with_lock`](Self::with_lock).
    ///
    /// ```
    /// use distributed_lock::{Fencing, MemoryLocker, Scoped, ScopedLockerExt, ScopedOptions, Wait};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = Scoped::new(MemoryLocker::new());
    /// let options = ScopedOptions::new(Wait::Never).with_fencing(Fencing::On);
    /// let fenced = locks.with_lock_opts("orders", options, async |hold| hold.fencing_token()).await?;
    /// assert!(fenced.into_result()?.is_some());
    /// # Ok(()) }
    /// ```
    fn with_lock_opts<T, Body, Fut>(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        options: ScopedOptions,
        body: Body,
    ) -> impl Future<Output = Result<Attempt<T>, ScopedError<T>>> + Send
    where
        T: Send,
        Body: FnOnce(Hold) -> Fut + Send,
        Fut: Future<Output = T> + Send,
    {
        drive(self, key, options, body)
    }
}

impl<L: ScopedLocker + ?Sized> ScopedLockerExt for L {}

fn drive<L, T, Body, Fut>(
    locker: &L,
    key: impl TryInto<LockKey, Error: Into<Error>>,
    options: ScopedOptions,
    body: Body,
) -> impl Future<Output = Result<Attempt<T>, ScopedError<T>>> + Send
where
    L: ScopedLocker + ?Sized,
    T: Send,
    Body: FnOnce(Hold) -> Fut + Send,
    Fut: Future<Output = T> + Send,
{
    let key: Result<LockKey> = key.try_into().map_err(Into::into);
    async move {
        let mut value = None;
        let outcome = match key.and_then(|key| task::ensure_not_under(locker.id(), &key, options.wait).map(|()| key)) {
            Ok(key) => {
                let slot = &mut value;
                let under = (locker.id(), key.clone());
                let erased: ScopedBody<'_> = Box::new(move |hold| {
                    Box::pin(
                        async move { *slot = Some(task::under(under.0, under.1, async { body(hold).await }).await) },
                    )
                });
                locker.run_scoped(&key, &options, erased).await
            }
            Err(error) => Err(error),
        };
        match (outcome, value) {
            (Ok(Attempt::Contended(why)), _) => Ok(Attempt::Contended(why)),
            (Ok(Attempt::Acquired(release)), Some(value)) => match release.exclusive() {
                Ok(()) => Ok(Attempt::Acquired(value)),
                Err(loss) => Err(ScopedError::new(loss, Some(value))),
            },
            (Ok(Attempt::Acquired(_)), None) => Err(ScopedError::new(
                Error::new(ErrorKind::Other, "BUG: the backend reports a body that it did not run to its end"),
                None,
            )),
            (Err(error), value) => Err(ScopedError::new(error, value)),
        }
    }
}
