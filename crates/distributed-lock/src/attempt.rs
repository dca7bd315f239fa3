use std::fmt;

use crate::{LockGuard, LockKey};

/// Did I get it? The answer of every acquire, and of every bounded scoped run (then with the body's value).
#[derive(Debug)]
#[must_use = "an ignored `Acquired` drops its guard, which gives the lock up at once"]
pub enum Attempt<T = LockGuard> {
    /// Yes.
    Acquired(T),
    /// No, and why. An answer, not a failure.
    Contended(Contention),
}

impl<T> Attempt<T> {
    /// The guard or value, if acquired.
    ///
    /// ```
    /// use distributed_lock::{Attempt, Contention};
    ///
    /// assert_eq!(Attempt::Acquired(7).acquired(), Some(7));
    /// assert_eq!(Attempt::<u32>::Contended(Contention::Held).acquired(), None);
    /// ```
    #[must_use]
    pub fn acquired(self) -> Option<T> {
        self.into_result().ok()
    }

    /// For callers to whom contention *is* a failure: `locker.try_acquire(..).await?.into_result()?`.
    ///
    /// # Errors
    /// The [`Contention`], which turns into an [`Error`](crate::Error) of kind `Contended`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{Error, ErrorKind, LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = MemoryLocker::new();
    /// let _somebody = locker.hold("orders")?;
    /// let tried = locker.try_acquire("orders", Duration::from_secs(30)).await?;
    /// assert_eq!(tried.into_result().map_err(Error::from).unwrap_err().kind(), ErrorKind::Contended);
    /// # Ok(()) }
    /// ```
    pub fn into_result(self) -> Result<T, Contention> {
        match self {
            Self::Acquired(value) => Ok(value),
            Self::Contended(why) => Err(why),
        }
    }

    /// Whether it was contended.
    ///
    /// ```
    /// use distributed_lock::{Attempt, Contention};
    ///
    /// assert!(Attempt::<u32>::Contended(Contention::Held).is_contended());
    /// ```
    #[must_use]
    pub fn is_contended(&self) -> bool {
        matches!(self, Self::Contended(_))
    }

    /// Changes what was acquired.
    ///
    /// ```
    /// use distributed_lock::Attempt;
    ///
    /// assert_eq!(Attempt::Acquired(6).map(|n| n * 7).acquired(), Some(42));
    /// ```
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Attempt<U> {
        match self {
            Self::Acquired(value) => Attempt::Acquired(f(value)),
            Self::Contended(why) => Attempt::Contended(why),
        }
    }
}

/// Why a lock was not acquired although nothing failed.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Contention {
    /// This locker holds another name whose id in the store is the same.
    Collision {
        /// The name that is held.
        held: LockKey,
        /// The name that was asked for.
        wanted: LockKey,
    },
    /// Somebody holds it, and we were not to wait.
    Held,
    /// This very locker holds it: another task of this process, or the caller itself.
    HeldHere,
    /// No connection became free in time; nobody need hold the lock.
    NoConnection,
    /// A commit of an earlier holder is still on its way, so the key was given back.
    StaleCommit,
    /// The wait budget is used up.
    WaitElapsed,
}

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Collision { held, wanted } => {
                return write!(f, "{wanted:?} has the same id as {held:?}, which this locker holds");
            }
            Self::Held => "held by another holder",
            Self::HeldHere => "held by this very locker",
            Self::NoConnection => "no connection became free in time",
            Self::StaleCommit => "a commit of an earlier holder is still in flight",
            Self::WaitElapsed => "still held when the wait budget was used up",
        })
    }
}

impl std::error::Error for Contention {}
