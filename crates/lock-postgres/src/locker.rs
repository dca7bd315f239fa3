use std::{fmt, sync::Arc};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Fencing, Guarantees, LockKey, Locker, Result,
};

use crate::{
    acquire::{self, Ownership},
    config::PostgresConfig,
    core::Core,
};

/// PostgreSQL advisory locks, each on a reserved connection of its own.
///
/// A hold is a lease that the server enforces: it ends by itself when its TTL is over, also when this process is frozen or cut
/// off. Waiters queue in the server, first come, first served. One connection is in use per hold and per waiter.
///
/// Needs PostgreSQL 14 or newer, the primary, reached directly. All lockers of one database and namespace exclude each other.
#[derive(Debug)]
pub struct PostgresLocker {
    core: Arc<Core>,
}

impl PostgresLocker {
    /// A locker with a pool of its own. Connects when it is first used.
    ///
    /// # Errors
    /// `InvalidInput` for a setting or a connection string that breaks a rule, naming both.
    pub fn new(config: &PostgresConfig) -> Result<Self> {
        Ok(Self { core: Arc::new(Core::new(config)?) })
    }

    /// The same with default settings, from a URL or a `key=value` string.
    ///
    /// # Errors
    /// `InvalidInput` for a connection string that breaks a rule.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::new(&PostgresConfig::from_url(url))
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }
}

impl PostgresLocker {
    /// A locker on connections of your own pool: each hold keeps one checked out.
    ///
    /// The pool's sessions keep their settings: what a hold or a wait needs is set with it and put back after it. Nothing but the
    /// pool's runtime can close their sockets, so a guard that is dropped where that runtime is not polled frees its key only when
    /// the server's timer ends the session, and the end of a connection is noticed within 100 ms instead of at once.
    ///
    /// # Errors
    /// `InvalidInput` for a setting that breaks a rule, such as a URL beside a pool.
    pub fn with_pool(pool: deadpool_postgres::Pool, config: &PostgresConfig) -> Result<Self> {
        Ok(Self { core: Arc::new(Core::with_pool(pool, config)?) })
    }
}

impl fmt::Display for PostgresLocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Postgres")
    }
}

#[async_trait]
impl Backend for PostgresLocker {
    fn id(&self) -> BackendId {
        self.core.id
    }

    fn capabilities(&self) -> Capabilities {
        self.core.capabilities()
    }

    fn guarantees(&self) -> Guarantees {
        self.core.guarantees()
    }

    async fn ping(&self) -> Result<()> {
        self.core.ping().await
    }

    async fn close(&self) -> Result<()> {
        self.core.close().await
    }
}

#[async_trait]
impl Locker for PostgresLocker {
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        let fenced = match options.fencing {
            Fencing::Default => self.core.settings.fencing,
            Fencing::Off => false,
            Fencing::On => true,
        };
        acquire::acquire(&self.core, key, options, Ownership::Session, fenced).await
    }
}
