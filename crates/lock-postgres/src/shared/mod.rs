//! Many locks on a few sessions of our own.

mod acquire;
mod audit;
mod beacons;
mod handle;
mod ids;
mod lane;
mod lanes;
mod looks;
mod notices;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Error, ErrorKind, Fairness, Guarantees, Holder, Inspect,
    LockKey, Locker, Result, Waiter, backend::heard_by_caller,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    config::PostgresConfig,
    core::{Core, closed},
    promises,
    runtime::OwnRuntime,
};

use self::{beacons::Beacons, ids::Ids, lanes::Lanes, looks::Looks, notices::Notices};

/// PostgreSQL advisory locks, many on each of a few sessions.
///
/// For a process that holds many keys or runs many jobs: thousands of locks cost tens of connections, and the
/// [`LeaseRunner`](distributed_lock::lease::LeaseRunner) runs on it unchanged. It excludes the other lockers of this crate on the same
/// key, namespace and database, and waits beside them.
///
/// Locks are taken and given back by sessions that each own many (*lanes*); what is asked at the same time goes in one statement. A lane
/// is full at 256 keys of one TTL: the next key, or another TTL, opens another lane. Once there are lanes for eight TTLs, a key with yet
/// another one shares a lane of a shorter TTL. A lane that has owned nothing for 60 s ends. Give the keys of one process few different TTLs;
/// all that are held until released have one, `session_ttl`.
///
/// # What is lost together
/// A lane is the unit of heartbeat and of loss: when its session ends, all that it holds is lost, and told, at the same moment; what other
/// lanes hold is untouched. A key of it that somebody else unlocked is lost alone, once a look at the server's locks has found that out,
/// every three heartbeats or so. Nothing is revived: whoever wants a lost key acquires it anew.
///
/// Heartbeats go from a thread of the locker's own. So a lock held until released outlives an application runtime that is blocked, for as
/// long as that lasts; one with a TTL ends with it, since nobody but its holder renews it. A holder sees the end of its TTL or that of its
/// lane's lease, whichever is first.
///
/// # Waiting
/// Waiters of one locker are served in the order they came, and wait for a key of their own locker without the server. A wait for a lock
/// that a lane of another locker holds costs no connection of its own: that locker tells of the release, and one connection waits for the
/// end of its session, whatever the number of keys. Who hears nothing tries again after 50 ms, and then ever more rarely, up to every 5 s.
/// Who has to wait while others queue in the server, or for a lock of somebody who tells nobody (another kind of locker, a foreign client),
/// and whom others were quicker than more than twice in a row, queues in the server, on a connection of the pool (`pool_size`), and has the
/// lock there.
/// Between lockers there is no order ([`Fairness::Unordered`]).
///
/// # Connections
/// One for each lane, one that keeps house, one for each lane of another locker that is waited for (16 at most), and up to `pool_size` for
/// those who queue in the server. `docs/postgres.md` has the arithmetic.
///
/// # Errors
/// Of an acquire, by kind; contention is an [`Attempt`], not an error.
///
/// | kind | when |
/// |---|---|
/// | `InvalidInput` | a TTL breaks a rule: the shortest is 1 s |
/// | `Deadlock` | this very task holds the key that it would wait for |
/// | `LimitReached` | half of the server's table of locks is in use or reserved, or it was full (53200): nothing of this call is kept, other holds are untouched |
/// | `Unavailable` | the server was not reached or did not answer in time, or lanes ended under the call: you do not hold the lock |
/// | `Indeterminate` | it may be held on a connection of the pool that could not be ended |
/// | `Denied`, `Misconfigured` | the server refused, or is none that gives locks (a standby) |
/// | `Closed` | the locker was closed |
///
/// # Cancel safety
/// Every future may be dropped at any await point: what the server may grant all the same is given back, within 600 ms while it answers,
/// whether or not the runtime of the caller is polled.
///
/// # Panics
/// Never.
///
/// # Examples
/// Whatever takes a [`Locker`] works with it, and with a [`MemoryLocker`](distributed_lock::MemoryLocker) in tests:
///
/// ```
/// use distributed_lock::{LockGuard, Locker, LockerExt, MemoryLocker, Ttl};
/// use futures_util::future::try_join_all;
///
/// /// Those of the orders that nobody else works on. Asked together, they go to PostgreSQL in a few statements.
/// async fn claim(locker: &dyn Locker, orders: &[u32]) -> distributed_lock::Result<Vec<LockGuard>> {
///     let tries = orders.iter().map(|order| locker.try_acquire(format!("orders/{order}"), Ttl::UNTIL_RELEASED));
///     Ok(try_join_all(tries).await?.into_iter().filter_map(|answer| answer.acquired()).collect())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> distributed_lock::Result<()> {
/// let locker = MemoryLocker::new(); // PostgresSharedSession::from_url(…) in production
/// let claimed = claim(&locker, &[1, 2, 3]).await?;
/// assert_eq!(claimed.len(), 3);
/// assert!(claim(&locker, &[3]).await?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PostgresSharedSession(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    core: Arc<Core>,
    ids: Ids,
    lanes: Arc<Lanes>,
    notices: Notices,
    looks: Looks,
    beacons: Beacons,
    runtime: Arc<OwnRuntime>,
}

impl PostgresSharedSession {
    /// A locker that connects when it is first used, with a thread of its own from now on. Both end with it.
    ///
    /// ```
    /// use distributed_lock::Backend;
    /// use lock_postgres::{PostgresConfig, PostgresSharedSession};
    ///
    /// let config = PostgresConfig::from_url("postgres://app@db.example/shop").with_pool_size(2);
    /// let locker = PostgresSharedSession::new(&config)?;
    /// assert!(locker.capabilities().wakes);
    /// println!("{}", locker.guarantees()); // the bounds, from live settings
    /// # Ok::<(), distributed_lock::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for a setting or a connection string that breaks a rule, naming both; `Unavailable` if its thread could not be
    /// started.
    pub fn new(config: &PostgresConfig) -> Result<Self> {
        let ids = Ids::default();
        let core = Arc::new(Core::heard_beside(config, Some(Arc::new(ids.clone())))?);
        let connector = config.connector()?;
        let runtime = Arc::new(OwnRuntime::start()?);
        let (notices, unsent) = Notices::new();
        let (looks, unanswered) = Looks::new();
        let lanes = Arc::new(Lanes::new(Arc::clone(&core), connector.clone(), notices.clone(), Arc::clone(&runtime)));
        runtime.handle().spawn(unsent.send_all(Arc::clone(&core)));
        runtime.handle().spawn(unanswered.answer_all(Arc::clone(&core)));
        runtime.handle().spawn(audit::keep_auditing(Arc::clone(&core), Arc::downgrade(&lanes)));
        let beacons = Beacons::new(Arc::clone(&core), connector);
        Ok(Self(Arc::new(Shared { core, ids, lanes, notices, looks, beacons, runtime })))
    }

    /// The same with default settings, from a URL or a `key=value` string.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::lease::{LeaseConfig, LeaseRunner};
    /// use lock_postgres::PostgresSharedSession;
    ///
    /// // One session for all jobs of this process.
    /// let locker = Arc::new(PostgresSharedSession::from_url("postgres://app@db.example/shop")?);
    /// let runner = LeaseRunner::new(locker, LeaseConfig::new())?;
    /// println!("{}", runner.guarantees());
    /// # Ok::<(), distributed_lock::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new).
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
        let mut capabilities = self.0.core.capabilities();
        capabilities.fairness = Fairness::Unordered;
        capabilities.wakes = true;
        capabilities
    }

    fn guarantees(&self) -> Guarantees {
        promises::on_lanes(self.0.core.guarantees(), &self.0.core.settings.session, acquire::LONGEST_POLL)
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
        acquire::acquire(&self.0, key, options).await.map_err(|error| about(error, key))
    }
}

/// As that of a [`PostgresLocker`](crate::PostgresLocker), on the thread of the sessions. To end a holder ends all that its lane holds, of
/// every key; who waits without queueing in the server is not seen. Cancel safe.
#[async_trait]
impl Inspect for PostgresSharedSession {
    async fn holders(&self, key: &LockKey) -> Result<Vec<Holder>> {
        let (core, of) = (Arc::clone(&self.0.core), key.clone());
        self.0.elsewhere(async move { core.holders(&of).await }).await.map_err(|error| about(error, key))
    }

    async fn waiters(&self, key: &LockKey) -> Result<Vec<Waiter>> {
        let (core, of) = (Arc::clone(&self.0.core), key.clone());
        self.0.elsewhere(async move { core.waiters(&of).await }).await.map_err(|error| about(error, key))
    }

    async fn end_holder(&self, key: &LockKey, holder: &Holder) -> Result<bool> {
        let (core, of, session) = (Arc::clone(&self.0.core), key.clone(), holder.session.clone());
        self.0.elsewhere(async move { core.end_holder(&of, &session).await }).await.map_err(|error| about(error, key))
    }

    async fn request_step_down(&self, key: &LockKey) -> Result<bool> {
        let (core, id) = (Arc::clone(&self.0.core), self.0.core.id_of(key));
        self.0.elsewhere(async move { core.request_step_down(id).await }).await.map_err(|error| about(error, key))
    }
}

fn about(error: Error, key: &LockKey) -> Error {
    if error.key().is_some() { error } else { error.with_key(key) }
}

impl Shared {
    /// On the thread of the sessions. Dropped, it is dropped there.
    async fn elsewhere<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let task = AbortOnDropHandle::new(self.runtime.handle().spawn(heard_by_caller(work)));
        task.await.unwrap_or_else(|_| Err(ended()))
    }

    /// What can take long ends when the locker is closed. Both arms are cancel safe.
    async fn unless_closed<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            done = work => done,
            () = self.core.until_closed() => Err(closed()),
        }
    }

    async fn close(&self) -> Result<()> {
        let (core, lanes) = (Arc::clone(&self.core), Arc::clone(&self.lanes));
        // Tells it first, so that no lane is opened any more.
        core.tell_closed();
        self.elsewhere(async move {
            let (lanes, others) = tokio::join!(lanes.close(core.settings.close_timeout), core.close());
            lanes.and(others)
        })
        .await
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Unavailable, "the thread of the shared session has ended")
}
