use std::{fmt, sync::Arc};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Error, Fencing, Guarantees, LockKey, Locker, Release,
    Result, Scoped, ScopedError, ScopedLocker, ScopedOptions, Ttl, Wait,
    backend::{BoxFuture, ScopedBody},
};

use tokio_postgres::Transaction;

use crate::{
    acquire::{self, Ownership},
    config::PostgresConfig,
    core::Core,
    transaction,
};

/// Runs bodies under PostgreSQL advisory locks, each owned by a transaction of its own.
///
/// The transaction is nothing but the owner of the lock: the body does its work on connections of its own. One connection is in
/// use per run and per waiter. Excludes holders of a [`PostgresLocker`](crate::PostgresLocker) on the same key, namespace and
/// database. Fencing tokens are minted only when asked for, since a fenced run keeps the server from vacuuming what is newer.
#[derive(Debug)]
pub struct PostgresScopedLocker {
    core: Arc<Core>,
    runs: Scoped<TransactionLocker>,
}

impl PostgresScopedLocker {
    /// A locker with a pool of its own. Connects when it is first used.
    ///
    /// # Errors
    /// `InvalidInput` for a setting or a connection string that breaks a rule, naming both.
    pub fn new(config: &PostgresConfig) -> Result<Self> {
        Ok(Self::on(Core::new(config)?))
    }

    /// A locker on connections of your own pool: each run keeps one checked out. See
    /// [`PostgresLocker::with_pool`](crate::PostgresLocker::with_pool) for what that means.
    ///
    /// # Errors
    /// `InvalidInput` for a setting that breaks a rule, such as a URL beside a pool.
    pub fn with_pool(pool: deadpool_postgres::Pool, config: &PostgresConfig) -> Result<Self> {
        Ok(Self::on(Core::with_pool(pool, config)?))
    }

    fn on(core: Core) -> Self {
        let core = Arc::new(core);
        let locker = TransactionLocker { core: Arc::clone(&core) };
        Self { core, runs: Scoped::new(locker).with_ttl(Ttl::UNTIL_RELEASED) }
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

    /// Runs the body in the very transaction that owns the lock, and commits it: what the body does in it cannot be committed
    /// without the lock.
    ///
    /// There is no TTL, no deadline and no heartbeat: the transaction is the fence, and the lock lives exactly as long as the work
    /// can still be committed. The transaction is `READ COMMITTED`. A body that is silent towards the server for longer than
    /// the session's TTL (17 s unless set) loses it. `Err` rolls back. What the body does outside this transaction is not protected.
    ///
    /// The body cannot borrow from its surroundings, since it must work for a transaction of any lifetime: clone or move in what it
    /// needs.
    ///
    /// Cancel safe: the body is dropped, then the transaction is rolled back with its session.
    ///
    /// # Errors
    /// `Lost` if the transaction was over before it could be committed, be it that the body ended it itself; `InvalidInput` if the
    /// body returned `Ok` although a statement of its had failed: nothing was committed in both. `Indeterminate` if the
    /// answer to the commit is missing. The body's value is in the error. Any other kind if the lock could not be asked for.
    ///
    /// # Panics
    /// With the body's own panic, after the transaction was rolled back.
    ///
    /// ```no_run
    /// use distributed_lock::Wait;
    /// use lock_postgres::PostgresScopedLocker;
    /// # async fn pay() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let locks = PostgresScopedLocker::from_url("postgres://app@db.example/shop?sslmode=verify-full")?;
    /// let paid = locks
    ///     .with_transaction("account:7", Wait::Forever, |tx| {
    ///         Box::pin(async move { tx.execute("update account set balance = balance - 10 where id = 7", &[]).await })
    ///     })
    ///     .await?;
    /// # let _ = paid; Ok(()) }
    /// ```
    pub async fn with_transaction<T, E, Body>(
        &self,
        key: impl TryInto<LockKey, Error: Into<Error>>,
        wait: Wait,
        body: Body,
    ) -> Result<Attempt<Result<T, E>>, ScopedError<Result<T, E>>>
    where
        Body: for<'t> FnOnce(&'t Transaction<'t>) -> BoxFuture<'t, Result<T, E>>,
    {
        let key = key.try_into().map_err(|error| ScopedError::new(error, None))?;
        transaction::run(&self.core, &key, wait, body).await
    }
}

impl fmt::Display for PostgresScopedLocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PostgresScoped")
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for PostgresScopedLocker {
    fn id(&self) -> BackendId {
        self.runs.id()
    }
    fn capabilities(&self) -> Capabilities {
        self.runs.capabilities()
    }
    fn guarantees(&self) -> Guarantees {
        self.runs.guarantees()
    }
    async fn ping(&self) -> Result<()> {
        self.runs.ping().await
    }
    async fn close(&self) -> Result<()> {
        self.runs.close().await
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl ScopedLocker for PostgresScopedLocker {
    async fn run_scoped(
        &self,
        key: &LockKey,
        options: &ScopedOptions,
        body: ScopedBody<'_>,
    ) -> Result<Attempt<Release>> {
        self.runs.run_scoped(key, options, body).await
    }
}

/// Gives locks owned by transactions. Only ever until released: a transaction has no TTL that could be renewed.
#[derive(Debug)]
struct TransactionLocker {
    core: Arc<Core>,
}

impl fmt::Display for TransactionLocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PostgresTransaction")
    }
}

#[async_trait]
impl Backend for TransactionLocker {
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
impl Locker for TransactionLocker {
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        let fenced = options.fencing == Fencing::On;
        acquire::acquire(&self.core, key, options, Ownership::Transaction, fenced).await
    }
}
