use std::{
    fmt::{self, Debug},
    sync::Arc,
};

use async_trait::async_trait;
use distributed_lock::{LockKey, Locker, Result, ScopedLocker};

use super::Suite;

/// A kind of locker that the suite and the cancel sweep run over.
///
/// It is shared by all trials, which run side by side, and opens a [`Store`] for each of them.
#[async_trait]
pub trait Subject: Debug + Send + Sync + 'static {
    /// The first half of `locker::case`.
    fn name(&self) -> &str;

    /// Which time its trials live in.
    fn time(&self) -> Time;

    /// Which suites it is put through.
    fn suites(&self) -> &[Suite];

    /// Why this case is not put to the subject although its capabilities would allow it: a deviation that its docs declare. The
    /// case shows as ignored with this reason.
    fn deviation(&self, _case: &str) -> Option<&'static str> {
        None
    }

    /// Called once in each trial, inside its runtime. Trials may share what is behind it: each uses a key no other uses.
    async fn open(&self) -> Result<Arc<dyn Store>, Missing>;
}

/// One shared store, and what a trial needs of it.
#[async_trait]
pub trait Store: Debug + Send + Sync + 'static {
    /// A new locker on this store, as another process would have it. `None` where the subject has no session lockers.
    async fn locker(&self) -> Result<Option<Arc<dyn Locker>>>;

    /// A new scoped locker on this store, as another process would have it. `None` where the subject has none.
    async fn scoped(&self) -> Result<Option<Arc<dyn ScopedLocker>>>;

    /// Takes the key from its holder behind its back; whether that could be brought about.
    async fn lose(&self, _key: &LockKey) -> Result<bool> {
        Ok(false)
    }

    /// How many wait for the key in the store's own queue, where that can be seen. In [`Time::Paused`] it is not asked.
    async fn waiters(&self, _key: &LockKey) -> Result<Option<usize>> {
        Ok(None)
    }

    /// What is in the store for this key, in words: holders, waiters, connections. The sweep expects nothing once nobody holds
    /// or waits.
    async fn leftovers(&self, _key: &LockKey) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// Which time a subject's trials live in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Time {
    /// Tokio's, paused, on one thread: for stores inside the process. Bounds are exact.
    Paused,
    /// The machine's, on several threads: for stores outside the process. Latencies get generous limits, safety gets none.
    Real,
}

/// Why a subject cannot be run on this machine.
#[derive(Clone, Debug)]
pub struct Missing(pub String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}
