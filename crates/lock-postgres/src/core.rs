//! What the parts of one locker share.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use distributed_lock::{
    BackendId, Capabilities, Clock, Error, ErrorKind, Guarantees, InvalidInput, Loss, LossCause, Result, SystemClock,
    Ttl,
};
use tokio::{sync::Notify, task::JoinSet, time::timeout};
use tokio_util::task::TaskTracker;

use crate::{
    borrowed::BorrowedPool,
    budget::unanswered,
    config::{PostgresConfig, Settings},
    connect::Connector,
    housekeeping::{Hears, Housekeeping},
    lease::Lease,
    pool::{OwnPool, SessionPool},
    promises,
    registry::Registry,
    timing::{Timing, server_millis},
    world::WorldCell,
};

/// How often the server looks whether the client of a waiting session is still there (see `sql::SETUP`).
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// What the keepalives of a session over TCP take to end it (see `sql::SETUP`: 5 s, then 3 probes every 2 s), rounded up.
const KEEPALIVES: Duration = Duration::from_secs(12);

/// How long the answer to a ping may take, the connection included.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Core {
    pub(crate) id: BackendId,
    pub(crate) settings: Settings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) pool: SessionPool,
    pub(crate) world: Arc<WorldCell>,
    pub(crate) registry: Arc<Registry<Lease>>,
    /// None over a pool of the user's.
    pub(crate) housekeeping: Option<Housekeeping>,
    pub(crate) closed: Closed,
    /// The bodies that run in the transactions of their locks.
    pub(crate) transactions: TaskTracker,
    clock_steps: AtomicU64,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("settings", &self.settings)
            .field("world", &self.world.get())
            .field("closed", &self.closed.is_told())
            .finish_non_exhaustive()
    }
}

impl Core {
    /// With a pool of our own, which connects when it is first used.
    pub(crate) fn new(config: &PostgresConfig) -> Result<Self> {
        Self::heard_beside(config, None)
    }

    /// The same with somebody who is told what the housekeeping session hears.
    pub(crate) fn heard_beside(config: &PostgresConfig, beside: Option<Arc<dyn Hears>>) -> Result<Self> {
        let (settings, connector) = (config.settings(), config.connector());
        InvalidInput::all([settings.as_ref().err(), connector.as_ref().err()].into_iter().flatten().cloned())?;
        let (settings, connector) = (settings?, connector?);
        let idle = server_millis(settings.session.ttl());
        let world = Arc::new(WorldCell::default());
        let bound = ghost_bound(&settings.session, settings.session.ttl());
        let telemetry = settings.telemetry.clone();
        let limits = (settings.pool_size, bound);
        let pool = OwnPool::new(connector.clone(), idle, Arc::clone(&world), limits, telemetry);
        Ok(Self::on(SessionPool::Own(pool), Some((connector, beside)), settings, world))
    }

    /// On connections borrowed from this pool.
    pub(crate) fn with_pool(pool: deadpool_postgres::Pool, config: &PostgresConfig) -> Result<Self> {
        config.ensure_no_server()?;
        let world = Arc::new(WorldCell::default());
        let settings = config.settings()?;
        let telemetry = settings.telemetry.clone();
        let pool = SessionPool::Borrowed(BorrowedPool { pool, world: Arc::clone(&world), telemetry });
        if settings.hand_over {
            let rule = "needs a connection beside the pool: give a url instead of a pool";
            return Err(InvalidInput::new("hand_over", true, rule).into());
        }
        Ok(Self::on(pool, None, settings, world))
    }

    fn on(
        pool: SessionPool,
        housekeeping: Option<(Connector, Option<Arc<dyn Hears>>)>,
        settings: Settings,
        world: Arc<WorldCell>,
    ) -> Self {
        let registry = Arc::<Registry<Lease>>::default();
        let housekeeping = housekeeping.map(|(connector, beside)| {
            Housekeeping::new(connector, &settings, Arc::clone(&world), Arc::clone(&registry), beside)
        });
        Self {
            id: BackendId::fresh(),
            pool,
            settings,
            clock: Arc::new(SystemClock),
            world,
            registry,
            housekeeping,
            closed: Closed::default(),
            transactions: TaskTracker::new(),
            clock_steps: AtomicU64::new(0),
        }
    }

    /// The timing of a hold with this TTL.
    pub(crate) fn timing(&self, ttl: Ttl) -> Result<Timing> {
        let Settings { session, heartbeat, query_timeout, .. } = &self.settings;
        match ttl.duration() {
            None => Ok(*session),
            Some(ttl) => Ok(Timing::for_ttl(ttl, *heartbeat, *query_timeout)?),
        }
    }

    pub(crate) fn guarantees(&self) -> Guarantees {
        let watched = self.housekeeping.as_ref().map(Housekeeping::watched);
        promises::guarantees(&self.settings.session, self.world.get(), watched)
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        promises::capabilities(self.settings.hand_over)
    }

    /// Whether the server answers.
    pub(crate) async fn ping(&self) -> Result<()> {
        self.ensure_open()?;
        timeout(PING_TIMEOUT, self.pool.ping()).await.unwrap_or_else(|_elapsed| Err(unanswered("a ping", PING_TIMEOUT)))
    }

    /// Ends all holds and waits, then all sessions, within the close timeout.
    pub(crate) async fn close(&self) -> Result<()> {
        self.closed.tell();
        let housekeeping = self.housekeeping.as_ref().map(Housekeeping::close);
        let mut releases = JoinSet::new();
        for lease in self.registry.all() {
            lease.record.lose(Loss::new(LossCause::Closed));
            releases.spawn(async move {
                let released = lease.release().await;
                if released.is_err() {
                    lease.destroy();
                }
                released
            });
        }
        let closing = async {
            let mut failed = None;
            while let Some(joined) = releases.join_next().await {
                match joined {
                    Ok(Ok(_how)) => {}
                    Ok(Err(error)) => failed = Some(error),
                    Err(error) => {
                        failed = Some(Error::new(ErrorKind::Other, "BUG: a release panicked").with_source(error));
                    }
                }
            }
            self.transactions.close();
            self.transactions.wait().await;
            self.pool.close().await;
            if let Some(housekeeping) = housekeeping {
                housekeeping.await;
            }
            failed.map_or(Ok(()), Err)
        };
        let limit = self.settings.close_timeout;
        timeout(limit, closing).await.unwrap_or_else(|_elapsed| {
            let message =
                format!("not every session ended within {limit:?}; call close again, or let the server end them");
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }

    /// Nothing is begun any more.
    pub(crate) fn tell_closed(&self) {
        self.closed.tell();
    }

    pub(crate) fn ensure_open(&self) -> Result<()> {
        if self.closed.is_told() { Err(closed()) } else { Ok(()) }
    }

    /// Completes when the locker is closed. Cancel safe.
    pub(crate) async fn until_closed(&self) {
        self.closed.told().await;
    }

    /// The server's clock moved against ours by more than a lease's margin allows.
    pub(crate) fn clock_stepped(&self, step: Duration) {
        let steps = self.clock_steps.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::warn!(?step, steps, "the server's clock was stepped: its timers may have fired early");
    }
}

/// How long a session can stay in the server once it is destroyed, after a hold with this TTL: its idle limit, unless the server's
/// keepalives find before that nobody is there.
pub(crate) fn ghost_bound(session: &Timing, ttl: Duration) -> Duration {
    let idle = ttl.max(session.longest_at_rest());
    idle.min(KEEPALIVES).max(session.ttl()) + CHECK_INTERVAL
}

/// That the locker is closed. Every acquire listens for it, so it costs less than a cancellation token does.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    told: AtomicBool,
    bell: Notify,
}

impl Closed {
    fn tell(&self) {
        self.told.store(true, Ordering::SeqCst);
        self.bell.notify_waiters();
    }

    pub(crate) fn is_told(&self) -> bool {
        self.told.load(Ordering::SeqCst)
    }

    /// Cancel safe.
    async fn told(&self) {
        // Made before the look, so that no telling between look and wait is missed.
        let rung = self.bell.notified();
        if !self.is_told() {
            rung.await;
        }
    }
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "this locker was closed")
}
