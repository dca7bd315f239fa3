//! What users' tests need to bring about: contention, loss, failures and slowness, on cue.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    MemoryLocker,
    store::{Grant, Look},
};
use crate::{AcquireOptions, BackendId, Contention, Error, ErrorKind, LockGuard, LockKey, LossCause, Result, Ttl};

#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<Script>);

#[derive(Debug, Default)]
struct Script {
    failures: VecDeque<ErrorKind>,
    delay: Duration,
}

impl Faults {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What stands between a call and the store.
    pub(super) async fn strike(&self) -> Result<()> {
        let delay = self.script().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        match self.script().failures.pop_front() {
            Some(kind) => Err(Error::new(kind, "a failure asked for by `fail_next`")),
            None => Ok(()),
        }
    }
}

/// Controls for tests.
impl MemoryLocker {
    /// Holds the key as somebody else would, until the guard is dropped or released.
    ///
    /// # Errors
    /// `InvalidInput` for a bad key, `Contended` if it is held already.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{Attempt, Contention, LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = MemoryLocker::new();
    /// let somebody = locker.hold("orders")?;
    /// let tried = locker.try_acquire("orders", Duration::from_secs(30)).await?;
    /// assert!(matches!(tried, Attempt::Contended(Contention::Held)));
    /// drop(somebody);
    /// assert!(locker.try_acquire("orders", Duration::from_secs(30)).await?.acquired().is_some());
    /// # Ok(()) }
    /// ```
    pub fn hold(&self, key: impl TryInto<LockKey, Error: Into<Error>>) -> Result<LockGuard> {
        let key = key.try_into().map_err(Into::into)?;
        let options = AcquireOptions::new(Ttl::UNTIL_RELEASED);
        let (locker, faults) = (BackendId::fresh(), Arc::default());
        let somebody =
            Grant { store: &self.store, locker, program: &None, faults: &faults, key: &key, options: &options };
        let looked = self.store.lock().look(&somebody, None);
        match looked {
            Look::Ours(guard) => Ok(guard),
            Look::Held { .. } => Err(Error::from(Contention::Held).with_key(&key)),
        }
    }

    /// Takes the key from whoever holds it, for this cause; whether anybody did.
    ///
    /// # Errors
    /// `InvalidInput` for a bad key.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{LockerExt, LossCause, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = MemoryLocker::new();
    /// let guard = locker.acquire("orders", Duration::from_secs(30)).await?;
    /// assert!(locker.lose("orders", LossCause::SessionEnded)?);
    /// assert_eq!(guard.lost().await.cause(), LossCause::SessionEnded);
    /// # Ok(()) }
    /// ```
    pub fn lose(&self, key: impl TryInto<LockKey, Error: Into<Error>>, cause: LossCause) -> Result<bool> {
        let key = key.try_into().map_err(Into::into)?;
        let now = self.store.clock.now();
        Ok(self.store.lock().lose(&key, cause, now))
    }

    /// Lets the next call of this locker or of its guards fail with this kind. Several add up, in order.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{ErrorKind, LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = MemoryLocker::new();
    /// locker.fail_next(ErrorKind::Unavailable);
    /// let failed = locker.try_acquire("orders", Duration::from_secs(30)).await.unwrap_err();
    /// assert_eq!(failed.kind(), ErrorKind::Unavailable);
    /// # Ok(()) }
    /// ```
    pub fn fail_next(&self, kind: ErrorKind) {
        self.faults.script().failures.push_back(kind);
    }

    /// Lets every later call of this locker and of its guards take this long first; zero is none.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{Backend, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = MemoryLocker::new();
    /// locker.delay(Duration::from_secs(3600));
    /// assert!(tokio::time::timeout(Duration::from_millis(1), locker.ping()).await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn delay(&self, delay: Duration) {
        self.faults.script().delay = delay;
    }
}
