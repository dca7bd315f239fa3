//! Many locks on a few sessions of our own.

mod claims;
mod handle;
mod lane;
mod lanes;
mod runtime;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Contention, Error, ErrorKind, Fencing, Guarantees,
    LockKey, Locker, Result, Wait,
};
use tokio::{sync::oneshot, time::timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    acquire::{self, Ownership},
    budget::{Budget, unanswered},
    config::PostgresConfig,
    core::{Core, closed},
};

use self::{claims::Claims, lane::Lock, lanes::Lanes};

/// PostgreSQL advisory locks, many on each of a few sessions.
///
/// Locks that are free are taken and given back by sessions that each own many (*lanes*), on a thread of their own; what is asked at the
/// same time goes in one statement. Who waits does so in the server's queue, on a connection of its own, and keeps the lock there.
#[derive(Debug)]
pub struct PostgresSharedSession(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    core: Arc<Core>,
    claims: Claims,
    lanes: Lanes,
}

impl PostgresSharedSession {
    /// A locker that connects when it is first used.
    ///
    /// # Errors
    /// `InvalidInput` for a setting or a connection string that breaks a rule, naming both.
    pub fn new(config: &PostgresConfig) -> Result<Self> {
        let core = Arc::new(Core::new(config)?);
        let lanes = Lanes::new(Arc::clone(&core), config.connector()?);
        Ok(Self(Arc::new(Shared { core, claims: Claims::default(), lanes })))
    }

    /// The same with default settings, from a URL or a `key=value` string.
    ///
    /// # Errors
    /// `InvalidInput` for a connection string that breaks a rule.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::new(&PostgresConfig::from_url(url))
    }
}

impl fmt::Display for PostgresSharedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PostgresShared")
    }
}

#[async_trait]
impl Backend for PostgresSharedSession {
    fn id(&self) -> BackendId {
        self.0.core.id
    }

    fn capabilities(&self) -> Capabilities {
        self.0.core.capabilities()
    }

    fn guarantees(&self) -> Guarantees {
        self.0.core.guarantees()
    }

    async fn ping(&self) -> Result<()> {
        let core = Arc::clone(&self.0.core);
        self.0.elsewhere(async move { core.ping().await }).await
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await
    }
}

#[async_trait]
impl Locker for PostgresSharedSession {
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        let acquire = self.0.acquire(key, options);
        // Both arms are cancel safe.
        tokio::select! {
            biased;
            acquired = acquire => acquired,
            () = self.0.core.until_closed() => Err(closed()),
        }
        .map_err(|error| if error.key().is_some() { error } else { error.with_key(key) })
    }
}

impl Shared {
    async fn acquire(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        let core = &self.core;
        core.ensure_open()?;
        let timing = core.timing(options.ttl)?;
        let fenced = match options.fencing {
            Fencing::Default => core.settings.fencing,
            Fencing::Off => false,
            Fencing::On => true,
        };
        let budget = Budget::start(options.wait, &core.clock);
        let id = core.settings.keys.id(core.settings.namespace, key);
        let why = match self.claims.claim(id, key) {
            Err(why) => why,
            Ok(claim) => {
                let (answer, answered) = oneshot::channel();
                let lock = Box::new(Lock { claim, ttl: options.ttl, timing, fenced, lane: None, answer });
                let place = budget.for_place(core.settings.conn_wait);
                if let Some(why) = self.lanes.give(lock, place).await? {
                    return Ok(Attempt::Contended(why));
                }
                let limit = budget.for_answer(timing.query_timeout());
                // A lane that is lost says so. What is granted to nobody is given back.
                let answer = timeout(limit, answered).await.map_err(|_elapsed| unanswered("a lock request", limit))?;
                match answer.unwrap_or_else(|_| Err(ended()))? {
                    Some(guard) => return Ok(Attempt::Acquired(guard)),
                    None => core.registry.why_contended(id, key),
                }
            }
        };
        let left = budget.left();
        match left {
            Some(left) if budget.is_try() || left.is_zero() => {
                let why = if budget.is_try() { why } else { Contention::WaitElapsed };
                Ok(Attempt::Contended(why))
            }
            left => {
                let wait = left.map_or(Wait::Forever, Wait::UpTo);
                let (key, options, core) = (key.clone(), options.clone().with_wait(wait), Arc::clone(core));
                let queue = async move { acquire::acquire(&core, &key, &options, Ownership::Session, fenced).await };
                self.elsewhere(queue).await
            }
        }
    }

    /// On the thread of the sessions. Dropped, it is dropped there.
    async fn elsewhere<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let task = AbortOnDropHandle::new(self.lanes.runtime()?.spawn(work));
        task.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn close(&self) -> Result<()> {
        let core = Arc::clone(&self.core);
        let lanes = self.lanes.close();
        let others = self.elsewhere(async move { core.close().await });
        let ((), others) = tokio::join!(lanes, others);
        others
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Unavailable, "the thread of the shared session has ended")
}
