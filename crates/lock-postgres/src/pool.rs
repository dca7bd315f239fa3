//! Our own pool of sessions: who reserves one owns it until it is proven clean or gone.

use std::{
    future::{Future, poll_fn},
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, QueueMode, RecycleError, RecycleResult};
use distributed_lock::{Attempt, Contention, Error, ErrorKind, Result};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, watch},
    time::Instant,
};

use crate::{
    borrowed::BorrowedPool,
    connect::Connector,
    core::closed,
    reaper::Reaper,
    reserved::{Place, Reserved},
    session::Session,
    world::WorldCell,
};

/// How much later than the wait for a place a connection that is being opened is given up.
const CONNECT_SLACK: Duration = Duration::from_millis(200);

/// Opens sessions and throws away those that are over.
#[derive(Debug)]
pub(crate) struct SessionManager {
    pub(crate) connector: Connector,
    /// The idle limit of a session that owns nothing, in ms.
    pub(crate) idle: String,
    pub(crate) world: Arc<WorldCell>,
}

impl Manager for SessionManager {
    type Type = Box<Session>;
    type Error = Error;

    async fn create(&self) -> Result<Box<Session>> {
        Ok(Box::new(Session::open(&self.connector, &self.idle, &self.world).await?))
    }

    async fn recycle(&self, session: &mut Box<Session>, _: &Metrics) -> RecycleResult<Error> {
        match session.link().is_over() {
            true => Err(RecycleError::message("the session is over")),
            false => Ok(()),
        }
    }
}

/// Where sessions come from.
#[derive(Clone, Debug)]
pub(crate) enum SessionPool {
    /// Ours: at most so many sessions, those included that were destroyed and may still live in the server.
    Own(OwnPool),
    /// One that the user handed in.
    Borrowed(BorrowedPool),
}

#[derive(Clone, Debug)]
pub(crate) struct OwnPool {
    pool: Pool<SessionManager>,
    /// As many as the pool has places. Waited for here, so that a call that is given up leaves the queue at once; the pool itself
    /// never has to wait.
    places: Arc<Semaphore>,
    in_use: watch::Sender<usize>,
    reaper: Arc<Reaper>,
    /// How long a destroyed session can stay in the server.
    bound: Duration,
}

/// A place in our pool and the session in it.
#[derive(Debug)]
pub(crate) struct OwnPlace {
    // In this order, so that the place is free before the next may have it.
    session: Object<SessionManager>,
    permit: Permit,
}

/// The right to a place.
#[derive(Debug)]
struct Permit {
    _places: OwnedSemaphorePermit,
    in_use: Arc<InUse>,
}

/// Counts a place as in use until it is empty, or known to be as good as that. Closing waits for it.
#[derive(Debug)]
pub(crate) struct InUse {
    places: watch::Sender<usize>,
    counted: AtomicBool,
}

impl InUse {
    /// The server has let go of the session in the place.
    pub(crate) fn leave(&self) {
        if self.counted.swap(false, Ordering::SeqCst) {
            self.places.send_modify(|places| *places -= 1);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.in_use.leave();
    }
}

impl OwnPlace {
    /// Whether its session was in use before.
    pub(crate) fn is_reused(&self) -> bool {
        Object::metrics(&self.session).recycle_count > 0
    }

    /// What counts it as in use.
    pub(crate) fn in_use(&self) -> Arc<InUse> {
        Arc::clone(&self.permit.in_use)
    }

    /// Empties the place, so that the session is not given to the next.
    pub(crate) fn forget(self) {
        drop(Object::take(self.session));
        drop(self.permit);
    }
}

impl Deref for OwnPlace {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl DerefMut for OwnPlace {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

impl OwnPool {
    pub(crate) fn new(manager: SessionManager, size: usize, bound: Duration) -> Result<Self> {
        let pool = Pool::builder(manager)
            .max_size(size)
            .queue_mode(QueueMode::Lifo)
            .build()
            .map_err(|error| Error::new(ErrorKind::Other, "BUG: the pool has no runtime").with_source(error))?;
        Ok(Self {
            pool,
            places: Arc::new(Semaphore::new(size)),
            in_use: watch::Sender::new(0),
            reaper: Arc::default(),
            bound,
        })
    }

    /// A connection that is being opened when the future is dropped is finished and kept, so that cancelled calls never add up
    /// to more connections than places.
    async fn reserve(&self, wait: Option<Duration>, limit: Option<Duration>) -> Result<Attempt<Reserved>> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let Some(permit) = self.permit(wait).await? else { return Ok(Attempt::Contended(Contention::NoConnection)) };
        let pool = self.pool.clone();
        let mut get = Box::pin(async move { pool.get().await.map(|session| OwnPlace { session, permit }) });
        let got = match poll_once(&mut get).await {
            Some(got) => got,
            None => {
                let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                within(left, tokio::spawn(get)).await?.map_err(|error| {
                    Error::new(ErrorKind::Unavailable, "the runtime ended while connecting").with_source(error)
                })?
            }
        };
        match got {
            Ok(place) => {
                let place = Place::Own { place, reaper: Arc::clone(&self.reaper), bound: self.bound };
                Ok(Attempt::Acquired(Reserved::new(place)))
            }
            Err(PoolError::Backend(error)) => Err(error),
            Err(PoolError::Closed) => Err(closed()),
            Err(error) => Err(Error::new(ErrorKind::Other, "the pool failed").with_source(error)),
        }
    }

    /// `None` if there is none in time. Cancel safe, with a cost: the turn is lost.
    async fn permit(&self, wait: Option<Duration>) -> Result<Option<Permit>> {
        let permit = self.place(wait).await?;
        Ok(permit.map(|places| {
            self.in_use.send_modify(|places| *places += 1);
            let in_use = InUse { places: self.in_use.clone(), counted: AtomicBool::new(true) };
            Permit { _places: places, in_use: Arc::new(in_use) }
        }))
    }

    async fn place(&self, wait: Option<Duration>) -> Result<Option<OwnedSemaphorePermit>> {
        let places = Arc::clone(&self.places);
        match (Arc::clone(&places).try_acquire_owned(), wait) {
            (Ok(permit), _) => Ok(Some(permit)),
            (Err(TryAcquireError::Closed), _) => Err(closed()),
            (Err(TryAcquireError::NoPermits), Some(Duration::ZERO)) => Ok(None),
            (Err(TryAcquireError::NoPermits), Some(wait)) => {
                let waited = tokio::time::timeout(wait, places.acquire_owned()).await;
                waited.ok().transpose().map_err(|_| closed())
            }
            (Err(TryAcquireError::NoPermits), None) => places.acquire_owned().await.map(Some).map_err(|_| closed()),
        }
    }

    /// Gives out no more, ends those that are free, and waits until the server has let go of all others.
    async fn close(&self) {
        self.places.close();
        self.pool.close();
        // Cannot fail: the sender is ours.
        let _ = self.in_use.subscribe().wait_for(|places| *places == 0).await;
    }
}

impl SessionPool {
    /// Reserves a session, waiting at most this long for a place and for the connection; `None` is for ever. Cancel safe.
    pub(crate) async fn reserve(&self, wait: Option<Duration>) -> Result<Attempt<Reserved>> {
        self.reserve_within(wait, wait.map(|wait| wait.saturating_add(CONNECT_SLACK))).await
    }

    async fn reserve_within(&self, wait: Option<Duration>, limit: Option<Duration>) -> Result<Attempt<Reserved>> {
        match self {
            Self::Own(own) => own.reserve(wait, limit).await,
            Self::Borrowed(borrowed) => borrowed.reserve(wait, limit).await,
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
                (Attempt::Contended(_), Self::Own(own)) => return own.pool.manager().create().await?.ping().await,
                (Attempt::Contended(_), Self::Borrowed(_)) => {
                    let message = "every connection of the pool is in use, so the server could not be asked";
                    return Err(Error::new(ErrorKind::LimitReached, message));
                }
            }
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

/// One poll: what is there at once needs no task.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|cx| {
        Poll::Ready(match std::pin::Pin::new(&mut *future).poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}
