//! One connection beside the pool that owns no locks. It does what sessions that own locks must not: look at others, send and
//! hear requests to step down, end holders that were cut off. Opened when it is first needed, on a thread of its own: whoever needs it
//! may be on a runtime that is blocked, or not polled any more.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distributed_lock::{Error, ErrorKind, Result};
use tokio::{runtime::Handle, sync::Notify, time::timeout};
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};
use tokio_util::sync::CancellationToken;

use crate::{
    budget::unanswered,
    config::Settings,
    connect::Connector,
    core::closed,
    error,
    lease::Lease,
    registry::Registry,
    runtime::OwnRuntime,
    sql,
    watchdog::{self, Watched},
    world::WorldCell,
};

mod session;
mod step_down;
mod work;

use session::HouseSession;
use step_down::Ear;
pub(crate) use step_down::{Hears, Sender, payload};
use work::List;
pub(crate) use work::Wanted;

/// How long closing waits for the end of the session.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// A parameter of a statement and its type.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Dropped, the session ends, and whatever it was doing.
#[derive(Debug)]
pub(crate) struct Housekeeping(Arc<Desk>);

/// What the session, its task and those who need it share.
pub(crate) struct Desk {
    connector: Connector,
    world: Arc<WorldCell>,
    ear: Ear,
    /// What it listens to, if anything.
    listens_to: Option<&'static str>,
    watchdog: bool,
    /// How often the watchdog looks, at the least.
    interval: Duration,
    /// How long an answer may take.
    limit: Duration,
    /// Cancelled when the locker is closed or dropped.
    over: CancellationToken,
    // Std mutexes: never held across an await.
    runtime: Mutex<Option<OwnRuntime>>,
    session: Mutex<Option<Arc<HouseSession>>>,
    list: Mutex<List>,
    bell: Notify,
    not_allowed: AtomicBool,
    /// One at a time, so that there is no more than one session. Only tasks of our own thread wait for their turn.
    opening: tokio::sync::Mutex<()>,
}

impl Housekeeping {
    pub(crate) fn new(
        connector: Connector,
        settings: &Settings,
        world: Arc<WorldCell>,
        registry: Arc<Registry<Lease>>,
        beside: Option<Arc<dyn Hears>>,
    ) -> Self {
        let listens_to = match (settings.hand_over, &beside) {
            (true, None) => Some(sql::LISTEN),
            (true, Some(_)) => Some(crate::sql_lanes::LISTEN_TO_ALL),
            (false, Some(_)) => Some(crate::sql_lanes::LISTEN),
            _ => None,
        };
        Self(Arc::new(Desk {
            connector: connector.for_housekeeping(),
            world,
            ear: Ear::new(registry, beside, settings.namespace),
            listens_to,
            watchdog: settings.watchdog,
            interval: watchdog::interval(&settings.session),
            limit: settings.session.query_timeout(),
            over: CancellationToken::new(),
            runtime: Mutex::default(),
            session: Mutex::default(),
            list: Mutex::default(),
            bell: Notify::new(),
            not_allowed: AtomicBool::new(false),
            opening: tokio::sync::Mutex::default(),
        }))
    }

    pub(crate) fn watched(&self) -> Watched {
        match self.0.watchdog {
            false => Watched::Off,
            true if self.0.not_allowed.load(Ordering::Relaxed) => Watched::NotAllowed,
            true => Watched::Yes,
        }
    }

    /// Asks the server something. Cancel safe.
    pub(crate) async fn ask(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
        doing: &'static str,
    ) -> Result<Vec<Row>> {
        self.0.ask(statement, parameters, doing).await
    }

    /// Ends the session at once. What it gives completes when the server has let go of it, also of one that is being opened, or soon
    /// after: it owns nothing. Completed or dropped, it has ended the thread.
    pub(crate) fn close(&self) -> impl Future<Output = ()> + use<> {
        let desk = Arc::clone(&self.0);
        desk.over.cancel();
        let runtime = desk.runtime().take();
        let session = desk.session().take();
        if let Some(session) = &session {
            session.socket.shutdown_write();
        }
        async move {
            let _ = timeout(CLOSE_LIMIT, async {
                if let Some(session) = session {
                    // An error means that its end was not seen.
                    let _ = session.socket.until_eof().await;
                }
                let _last = desk.opening.lock().await;
            })
            .await;
            drop(runtime);
        }
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        drop(self.close());
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("list", &*self.list()).field("session", &*self.session()).finish_non_exhaustive()
    }
}

impl Desk {
    fn session(&self) -> MutexGuard<'_, Option<Arc<HouseSession>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn runtime(&self) -> MutexGuard<'_, Option<OwnRuntime>> {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, if it is there.
    fn current(&self) -> Option<Arc<HouseSession>> {
        self.session().clone().filter(|session| !session.is_over())
    }

    /// Our own thread, started when it is first needed.
    fn home(&self) -> Result<Handle> {
        let mut runtime = self.runtime();
        // Asked under the lock, so that closing either finds the thread or is found.
        if self.over.is_cancelled() {
            return Err(closed());
        }
        let home = match runtime.take() {
            Some(home) => home,
            None => OwnRuntime::start()?,
        };
        Ok(runtime.insert(home).handle().clone())
    }

    /// The session, and whether it was in use before. Opens it if need be. Cancel safe: what was begun is finished.
    async fn reach(self: &Arc<Self>) -> Result<(Arc<HouseSession>, bool)> {
        if let Some(session) = self.current() {
            return Ok((session, true));
        }
        let desk = Arc::clone(self);
        let reached = self.home()?.spawn(async move { desk.reach_at_home().await });
        reached.await.unwrap_or_else(|error| match self.over.is_cancelled() {
            true => Err(closed()),
            false => {
                let message = "BUG: the housekeeping session was not opened";
                Err(Error::new(ErrorKind::Other, message).with_source(error))
            }
        })
    }

    async fn reach_at_home(&self) -> Result<(Arc<HouseSession>, bool)> {
        let Ok(_turn) = timeout(self.limit, self.opening.lock()).await else {
            let message = format!("the housekeeping session was not opened within {:?}", self.limit);
            return Err(Error::new(ErrorKind::Unavailable, message));
        };
        if self.over.is_cancelled() {
            return Err(closed());
        }
        if let Some(session) = self.current() {
            return Ok((session, true));
        }
        let opened = Arc::new(self.open().await?);
        if self.settle(&opened) {
            return Ok((opened, false));
        }
        // Closing waits for our turn to end.
        opened.socket.shutdown_write();
        let _ = timeout(CLOSE_LIMIT, opened.socket.until_eof()).await;
        Err(closed())
    }

    /// Makes it the one that all use; `false` if it comes too late.
    fn settle(&self, opened: &Arc<HouseSession>) -> bool {
        let mut slot = self.session();
        // Asked under the lock, so that closing either finds the session or is found.
        if self.over.is_cancelled() {
            return false;
        }
        *slot = Some(Arc::clone(opened));
        true
    }

    /// Asks the server something that may be asked twice: once more if the session had ended while nobody used it.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        statement: &str,
        parameters: &[Parameter<'_>],
        doing: &'static str,
    ) -> Result<Vec<Row>> {
        loop {
            let (session, reused) = self.reach().await?;
            match timeout(self.limit, session.client.query_typed(statement, parameters)).await {
                Ok(Ok(rows)) => return Ok(rows),
                Ok(Err(error)) if error::ended_session(&error) => {
                    self.forget(&session);
                    if !reused {
                        return Err(error::wrap(error, doing));
                    }
                }
                Ok(Err(error)) => return Err(error::wrap(error, doing)),
                Err(_elapsed) => {
                    self.forget(&session);
                    return Err(unanswered("the housekeeping session", self.limit));
                }
            }
        }
    }

    /// Ends this session, so that the next question opens another.
    fn forget(&self, session: &Arc<HouseSession>) {
        let was = self.session().take_if(|current| Arc::ptr_eq(current, session));
        session.socket.shutdown_write();
        drop(was);
    }

    /// Asks the holder of this id, or only this backend, to step down; which backend it was.
    async fn request_step_down(self: &Arc<Self>, id: i64, sender: Sender, only: Option<i32>) -> Result<Option<i32>> {
        let payload = payload(self.ear.namespace(), id, sender);
        let parameters = [(&id as _, Type::INT8), (&payload as _, Type::TEXT), (&only as _, Type::INT4)];
        let asked = self.ask(sql::REQUEST_STEP_DOWN, &parameters, "ask a holder to step down").await?;
        let pid = asked.first().map(|row| row.try_get("pid")).transpose();
        pid.map(Option::flatten).map_err(|error| error::wrap(error, "ask a holder to step down"))
    }
}
