//! Our own pool of sessions: who reserves one owns it until it is proven clean or gone.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distributed_lock::{
    Attempt, Contention, Error, ErrorKind, Result,
    backend::tell_waiting,
    telemetry::{Label, Metric, One, Telemetry},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot},
    time::Instant,
};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use crate::{
    borrowed::BorrowedPool,
    connect::{Connector, SocketHandle},
    core::closed,
    reaper::{Doomed, Reaper},
    reserved::Reserved,
    session::Session,
    world::WorldCell,
};

/// How much later than the wait for a place a connection that is being opened is given up.
pub(crate) const CONNECT_SLACK: Duration = Duration::from_millis(200);

/// How long closing waits for the end of a session that owns nothing.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Where sessions come from.
#[derive(Clone, Debug)]
pub(crate) enum SessionPool {
    /// Ours: at most so many sessions, those included that were destroyed and may still live in the server.
    Own(OwnPool),
    /// One that the user handed in.
    Borrowed(BorrowedPool),
}

#[derive(Clone, Debug)]
pub(crate) struct OwnPool(Arc<Sessions>);

/// The one used last is used next, so that the others can end.
type Free = Vec<Idle>;

#[derive(Debug)]
struct Idle {
    session: Box<Session>,
    _counted: One,
}

/// What metrics call a pool of ours.
const NAME: (Label, &str) = (Label::PoolName, "lock-postgres");

#[derive(Debug)]
struct Sessions {
    connector: Connector,
    world: Arc<WorldCell>,
    /// The idle limit of a session that owns nothing, in ms.
    idle_limit: i32,
    /// How long a destroyed session can stay in the server.
    bound: Duration,
    free: Mutex<Free>,
    /// A session that was destroyed keeps its place while it may still live in the server.
    places: Arc<Semaphore>,
    in_use: TaskTracker,
    reaper: Reaper,
    telemetry: Telemetry,
}

/// A place in our pool, taken.
#[derive(Debug)]
pub(crate) struct Place {
    sessions: Arc<Sessions>,
    permit: Permit,
    reused: bool,
}

/// The right to a place. Dropped, the place is free.
#[derive(Debug)]
pub(crate) struct Permit(Arc<InUse>);

/// A place is taken until it is empty, or known to be as good as that. Closing waits for it. Shared, since who has the session may be
/// where nobody polls any more.
#[derive(Debug)]
pub(crate) struct InUse(Mutex<Option<Taken>>);

#[derive(Debug)]
struct Taken {
    /// `None` for a session that lay in the pool when that was closed.
    _place: Option<OwnedSemaphorePermit>,
    _counted: (TaskTrackerToken, One),
    /// How long the session can stay in the server once it is destroyed.
    bound: Duration,
}

impl InUse {
    fn taken(&self) -> MutexGuard<'_, Option<Taken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server has let go of the session in the place.
    pub(crate) fn leave(&self) {
        let taken = self.taken().take();
        drop(taken);
    }

    fn bound_by(&self, limit: Duration) {
        if let Some(taken) = &mut *self.taken() {
            taken.bound = limit;
        }
    }

    /// Nothing for a place that is free already.
    fn bound(&self) -> Duration {
        self.taken().as_ref().map_or(Duration::ZERO, |taken| taken.bound)
    }
}

impl Permit {
    fn new(sessions: &Sessions, place: Option<OwnedSemaphorePermit>, bound: Duration) -> Self {
        let counted = (sessions.in_use.token(), sessions.counted("used"));
        Self(Arc::new(InUse(Mutex::new(Some(Taken { _place: place, _counted: counted, bound })))))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Place {
    /// Whether its session was in use before.
    pub(crate) fn is_reused(&self) -> bool {
        self.reused
    }

    /// What counts it as in use.
    pub(crate) fn in_use(&self) -> Arc<InUse> {
        Arc::clone(&self.permit.0)
    }

    /// Sets how long its session can stay in the server once it is destroyed.
    pub(crate) fn bound_by(&self, limit: Duration) {
        self.permit.0.bound_by(limit);
    }

    /// Puts the session where the next finds it, and only then frees the place.
    pub(crate) fn put_back(self, session: Box<Session>) {
        if let Err(session) = self.sessions.put_back(session) {
            self.bound_by(CLOSE_LIMIT);
            self.destroy(session);
        }
    }

    /// Frees the place when the server has let go of the session.
    pub(crate) fn destroy(self, session: Box<Session>) {
        self.sessions.destroy(session, self.permit);
    }
}

impl Sessions {
    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is free and not known to be over.
    fn take(&self) -> Option<Box<Session>> {
        loop {
            // Not dropped under the lock.
            let (session, lives_here) = self.pop()?;
            // On a runtime that others poll, or nobody, it might never answer: its place is needed for one that does.
            if !lives_here {
                // It owns nothing, but closing waits for its end.
                self.destroy(session, Permit::new(self, None, CLOSE_LIMIT));
                return None;
            }
            if !session.link().is_over() {
                return Some(session);
            }
        }
    }

    /// One that lives here, or else any.
    fn pop(&self) -> Option<(Box<Session>, bool)> {
        let mut free = self.free();
        match free.iter().rposition(|idle| !idle.session.keeper().lives_elsewhere()) {
            Some(here) => Some((free.remove(here).session, true)),
            None => free.pop().map(|idle| (idle.session, false)),
        }
    }

    /// One connection in this state, for as long as the answer lives.
    fn counted(&self, state: &'static str) -> One {
        self.telemetry.one(Metric::Connections, &[NAME, (Label::ConnectionState, state)])
    }

    /// Gives it back if the pool was closed.
    fn put_back(&self, session: Box<Session>) -> Result<(), Box<Session>> {
        let mut free = self.free();
        // Asked under the lock, so that closing either finds the session or is found.
        if self.places.is_closed() {
            return Err(session);
        }
        free.push(Idle { session, _counted: self.counted("idle") });
        Ok(())
    }

    fn destroy(&self, session: Box<Session>, permit: Permit) {
        session.link().shut_down();
        if let Some(socket) = session.link().socket().cloned() {
            let bound = permit.0.bound();
            self.reaper.take(Doomed { session: Some(session), permit, socket, bound });
        }
    }

    async fn open(&self) -> Result<Box<Session>> {
        let started = Instant::now();
        let session = Session::open(&self.connector, self.idle_limit, &self.world).await.map(Box::new)?;
        self.telemetry.record(Metric::ConnectionCreate, started.elapsed(), &[NAME]);
        Ok(session)
    }
}

impl OwnPool {
    pub(crate) fn new(
        connector: Connector,
        idle_limit: i32,
        world: Arc<WorldCell>,
        (size, bound): (usize, Duration),
        telemetry: Telemetry,
    ) -> Self {
        Self(Arc::new(Sessions {
            connector,
            world,
            idle_limit,
            bound,
            free: Mutex::default(),
            places: Arc::new(Semaphore::new(size)),
            in_use: TaskTracker::new(),
            reaper: Reaper::default(),
            telemetry,
        }))
    }

    async fn reserve(&self, wait: Option<Duration>, limit: Option<Duration>) -> Result<Attempt<Reserved>> {
        let mut waited = Duration::ZERO;
        let Some(permit) = self.permit(wait, &mut waited).await? else {
            return Ok(Attempt::Contended(Contention::NoConnection));
        };
        let place = |reused| Place { sessions: Arc::clone(&self.0), permit, reused };
        let reserved = match self.0.take() {
            Some(session) => Reserved::own(session, place(true)),
            None => {
                let left = limit.map(|limit| limit.saturating_sub(waited));
                within(left, Box::pin(Self::open(place(false)))).await??
            }
        };
        Ok(Attempt::Acquired(reserved))
    }

    /// A connection that is being opened when the future is dropped is finished and kept, so that cancelled calls never add up to
    /// more connections than places.
    async fn open(place: Place) -> Result<Reserved> {
        let (sender, opened) = oneshot::channel();
        tokio::spawn(async move {
            let opened = place.sessions.open().await.map(|session| Reserved::own(session, place));
            if let Err(Ok(unwanted)) = sender.send(opened) {
                unwanted.give_back();
            }
        });
        opened.await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the runtime ended while connecting").with_source(error)
        })?
    }

    /// `None` if there is none in time. Cancel safe, with a cost: the turn is lost.
    async fn permit(&self, wait: Option<Duration>, waited: &mut Duration) -> Result<Option<Permit>> {
        let place = match Arc::clone(&self.0.places).try_acquire_owned() {
            Ok(place) => Some(place),
            Err(TryAcquireError::Closed) => return Err(closed()),
            Err(TryAcquireError::NoPermits) => {
                tell_waiting(&Contention::NoConnection);
                let _waits = self.0.telemetry.one(Metric::ConnectionRequests, &[NAME]);
                let started = Instant::now();
                let place = Box::pin(self.wait_for_place(wait)).await?;
                *waited = started.elapsed();
                place
            }
        };
        place.map(|place| self.count(place)).transpose()
    }

    /// From here on closing waits for it.
    fn count(&self, place: OwnedSemaphorePermit) -> Result<Permit> {
        let permit = Permit::new(&self.0, Some(place), self.0.bound);
        // Asked after it counts, so that closing either waits for it or is found.
        match self.0.places.is_closed() {
            false => Ok(permit),
            true => Err(closed()),
        }
    }

    async fn wait_for_place(&self, wait: Option<Duration>) -> Result<Option<OwnedSemaphorePermit>> {
        let acquire = Arc::clone(&self.0.places).acquire_owned();
        match wait {
            Some(Duration::ZERO) => Ok(None),
            Some(wait) => tokio::time::timeout(wait, acquire).await.ok().transpose().map_err(|_| closed()),
            None => acquire.await.map(Some).map_err(|_| closed()),
        }
    }

    /// Gives out no more, ends those that are free, and waits until the server has let go of all others.
    async fn close(&self) {
        self.0.places.close();
        let free = std::mem::take(&mut *self.0.free());
        for Idle { session, .. } in free {
            self.0.destroy(session, Permit::new(&self.0, None, CLOSE_LIMIT));
        }
        self.0.in_use.close();
        self.0.in_use.wait().await;
    }
}

impl SessionPool {
    /// Reserves a session, waiting at most this long for a place and for the connection; `None` is for ever. Cancel safe.
    pub(crate) async fn reserve(&self, wait: Option<Duration>) -> Result<Attempt<Reserved>> {
        let limit = wait.map(|wait| wait.saturating_add(CONNECT_SLACK));
        let telemetry = self.telemetry();
        if !telemetry.is_on() {
            return self.reserve_within(wait, limit).await;
        }
        let started = Instant::now();
        let reserved = self.reserve_within(wait, limit).await?;
        match &reserved {
            Attempt::Acquired(_) => telemetry.record(Metric::ConnectionWait, started.elapsed(), &[NAME]),
            Attempt::Contended(_) => telemetry.count(Metric::ConnectionTimeouts, &[NAME]),
        }
        Ok(reserved)
    }

    fn telemetry(&self) -> &Telemetry {
        match self {
            Self::Own(own) => &own.0.telemetry,
            Self::Borrowed(borrowed) => &borrowed.telemetry,
        }
    }

    async fn reserve_within(&self, wait: Option<Duration>, limit: Option<Duration>) -> Result<Attempt<Reserved>> {
        match self {
            Self::Own(own) => own.reserve(wait, limit).await,
            Self::Borrowed(borrowed) => Box::pin(borrowed.reserve(wait, limit)).await,
        }
    }

    /// Whether the server answers. Never waits for a place: without one it asks on a connection beside our pool.
    pub(crate) async fn ping(&self) -> Result<()> {
        loop {
            match (self.reserve_within(Some(Duration::ZERO), None).await?, self) {
                (Attempt::Acquired(session), _) => match session.ping().await {
                    Ok(()) => {
                        session.give_back();
                        return Ok(());
                    }
                    // The server ended it while it lay in the pool, which says nothing of the server.
                    Err(error) if session.is_reused() && error.kind() == ErrorKind::Unavailable => {}
                    Err(error) => return Err(error),
                },
                (Attempt::Contended(_), Self::Own(own)) => return own.0.open().await?.ping().await,
                (Attempt::Contended(_), Self::Borrowed(_)) => {
                    let message = "every connection of the pool is in use, so the server could not be asked";
                    return Err(Error::new(ErrorKind::LimitReached, message));
                }
            }
        }
    }

    /// Frees the place of a session that is ending, once the server has let go of it, whatever becomes of those who have the session.
    pub(crate) fn free_when_ended(&self, socket: &SocketHandle, in_use: &Arc<InUse>) {
        if let Self::Own(own) = self {
            let (permit, bound) = (Permit(Arc::clone(in_use)), in_use.bound());
            own.0.reaper.take(Doomed { session: None, permit, socket: socket.clone(), bound });
        }
    }

    /// Closes a pool of ours; the user's stays open.
    pub(crate) async fn close(&self) {
        if let Self::Own(own) = self {
            own.close().await;
        }
    }
}

pub(crate) async fn within<F: Future>(limit: Option<Duration>, future: F) -> Result<F::Output> {
    match limit {
        None => Ok(future.await),
        Some(limit) => tokio::time::timeout(limit, future).await.map_err(|_elapsed| {
            Error::new(ErrorKind::Unavailable, format!("could not connect to the server within {limit:?}"))
        }),
    }
}

#[cfg(test)]
mod tests;
