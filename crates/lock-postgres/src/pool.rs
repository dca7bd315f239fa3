//! Our own pool of sessions: who reserves one owns it until it is proven clean or gone.

use std::{
    future::{Future, poll_fn},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use deadpool::{
    Runtime,
    managed::{Manager, Metrics, Pool, PoolError, QueueMode, RecycleError, RecycleResult, TimeoutType, Timeouts},
};
use distributed_lock::{Attempt, Contention, Error, ErrorKind, Result};

use crate::{
    borrowed::BorrowedPool,
    connect::Connector,
    reaper::Reaper,
    reserved::{Place, Reserved},
    session::Session,
    world::WorldCell,
};

/// How much later than the wait for a place a connection that is being opened is given up.
const CONNECT_SLACK: Duration = Duration::from_millis(100);

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
    reaper: Arc<Reaper>,
    /// How long a destroyed session can stay in the server.
    bound: Duration,
}

impl OwnPool {
    pub(crate) fn new(manager: SessionManager, size: usize, bound: Duration) -> Result<Self> {
        let pool = Pool::builder(manager)
            .max_size(size)
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| Error::new(ErrorKind::Other, "BUG: the pool has no runtime").with_source(error))?;
        Ok(Self { pool, reaper: Arc::default(), bound })
    }

    /// A connection that is being opened when the future is dropped is finished and kept, so that cancelled calls never add up
    /// to more connections than places.
    async fn reserve(&self, wait: Option<Duration>, limit: Option<Duration>) -> Result<Attempt<Reserved>> {
        let pool = self.pool.clone();
        let timeouts = Timeouts { wait, ..Timeouts::default() };
        let mut get = Box::pin(async move { pool.timeout_get(&timeouts).await });
        let got = match poll_once(&mut get).await {
            Some(got) => got,
            None => within(limit, tokio::spawn(get)).await?.map_err(|error| {
                Error::new(ErrorKind::Unavailable, "the runtime ended while connecting").with_source(error)
            })?,
        };
        match got {
            Ok(place) => {
                let place = Place::Own { place, reaper: Arc::clone(&self.reaper), bound: self.bound };
                Ok(Attempt::Acquired(Reserved::new(place)))
            }
            Err(PoolError::Timeout(TimeoutType::Wait)) => Ok(Attempt::Contended(Contention::NoConnection)),
            Err(PoolError::Backend(error)) => Err(error),
            Err(PoolError::Closed) => Err(Error::new(ErrorKind::Closed, "this locker was closed")),
            Err(error) => Err(Error::new(ErrorKind::Other, "the pool failed").with_source(error)),
        }
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
        match (self.reserve_within(Some(Duration::ZERO), None).await?, self) {
            (Attempt::Acquired(session), _) => {
                session.ping().await?;
                session.give_back();
                Ok(())
            }
            (Attempt::Contended(_), Self::Own(own)) => own.pool.manager().create().await?.ping().await,
            (Attempt::Contended(_), Self::Borrowed(_)) => {
                let message = "every connection of the pool is in use, so the server could not be asked";
                Err(Error::new(ErrorKind::LimitReached, message))
            }
        }
    }

    /// Gives out no more, ends those that are free, and waits until the server has let go of those that were destroyed. The
    /// user's pool stays open.
    pub(crate) async fn close(&self) {
        if let Self::Own(own) = self {
            own.pool.close();
            own.reaper.drained().await;
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
