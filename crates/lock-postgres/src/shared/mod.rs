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
    LockKey, Locker, Result, Waiter,
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
/// Locks are taken and given back by sessions that each own many (*lanes*), on a thread of their own; what is asked at the same time
/// goes in one statement. A wait for a lock that another such locker holds costs no connection: the holder's locker tells of the release,
/// and one connection for each of its sessions waits for their end. Who waits while others queue in the server, or for a lock that
/// somebody else holds who tells nobody, queues in the server too, on a connection of the pool, and has the lock there.
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
    /// A locker that connects when it is first used.
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

/// As that of a [`PostgresLocker`](crate::PostgresLocker), on the thread of the sessions. To end a holder ends all that its lane holds; who
/// waits without queueing in the server is not seen.
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
        let task = AbortOnDropHandle::new(self.runtime.handle().spawn(work));
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
