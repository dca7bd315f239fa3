//! Our own pool of sessions: who reserves one owns it until it is proven clean or gone.

use std::{
    future::{Future, poll_fn},
    ops::{Deref, DerefMut},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use deadpool::{
    Runtime,
    managed::{
        Manager, Metrics, Object, Pool, PoolError, QueueMode, RecycleError, RecycleResult, TimeoutType, Timeouts,
    },
};
use distributed_lock::{Attempt, Contention, Error, ErrorKind, Result};

use crate::{
    connect::Connector,
    reaper::{Doomed, Reaper},
    session::{Session, WorldCell},
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
    type Type = Session;
    type Error = Error;

    async fn create(&self) -> Result<Session> {
        Session::open(&self.connector, &self.idle, &self.world).await
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<Error> {
        match session.is_over() {
            true => Err(RecycleError::message("the session is over")),
            false => Ok(()),
        }
    }
}

/// At most so many sessions, those included that were destroyed and may still live in the server.
#[derive(Clone, Debug)]
pub(crate) struct SessionPool {
    pool: Pool<SessionManager>,
    reaper: Arc<Reaper>,
    /// How long a destroyed session can stay in the server.
    bound: Duration,
}

impl SessionPool {
    pub(crate) fn new(manager: SessionManager, size: usize, bound: Duration) -> Result<Self> {
        let pool = Pool::builder(manager)
            .max_size(size)
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| Error::new(ErrorKind::Other, "BUG: the pool has no runtime").with_source(error))?;
        Ok(Self { pool, reaper: Arc::default(), bound })
    }

    /// Reserves a session, waiting at most this long for a place and for the connection; `None` is for ever.
    ///
    /// Cancel safe. A connection that is being opened when the future is dropped is finished and kept, so that cancelled
    /// calls never add up to more connections than places.
    pub(crate) async fn reserve(&self, within: Option<Duration>) -> Result<Attempt<Reserved>> {
        self.reserve_by(within, within.map(|within| within.saturating_add(CONNECT_SLACK))).await
    }

    /// A session that is free right now, or a place for one.
    pub(crate) async fn reserve_free(&self) -> Result<Attempt<Reserved>> {
        self.reserve_by(Some(Duration::ZERO), None).await
    }

    async fn reserve_by(&self, wait: Option<Duration>, limit: Option<Duration>) -> Result<Attempt<Reserved>> {
        let pool = self.pool.clone();
        let timeouts = Timeouts { wait, ..Timeouts::default() };
        let mut get = Box::pin(async move { pool.timeout_get(&timeouts).await });
        let got = match poll_once(&mut get).await {
            Some(got) => got,
            None => {
                let task = tokio::spawn(get);
                let joined = match limit {
                    None => task.await,
                    Some(limit) => match tokio::time::timeout(limit, task).await {
                        Ok(joined) => joined,
                        Err(_elapsed) => {
                            let message = format!("could not connect to the server within {limit:?}");
                            return Err(Error::new(ErrorKind::Unavailable, message));
                        }
                    },
                };
                joined.map_err(|error| {
                    Error::new(ErrorKind::Unavailable, "the runtime ended while connecting").with_source(error)
                })?
            }
        };
        match got {
            Ok(place) => Ok(Attempt::Acquired(self.reserved(place))),
            Err(PoolError::Timeout(TimeoutType::Wait)) => Ok(Attempt::Contended(Contention::NoConnection)),
            Err(PoolError::Backend(error)) => Err(error),
            Err(PoolError::Closed) => Err(Error::new(ErrorKind::Closed, "this locker was closed")),
            Err(error) => Err(Error::new(ErrorKind::Other, "the pool failed").with_source(error)),
        }
    }

    /// A connection beside the pool.
    pub(crate) async fn open_extra(&self) -> Result<Session> {
        self.pool.manager().create().await
    }

    /// Gives out no more, ends those that are free, and waits until the server has let go of those that were destroyed.
    pub(crate) async fn close(&self) {
        self.pool.close();
        self.reaper.drained().await;
    }

    fn reserved(&self, place: Object<SessionManager>) -> Reserved {
        Reserved { place: Some(place), reaper: Arc::clone(&self.reaper), bound: self.bound }
    }
}

/// A session of the pool that belongs to one caller. Dropped, it is destroyed: only [`give_back`](Self::give_back) says that it
/// owns nothing.
#[derive(Debug)]
pub(crate) struct Reserved {
    // Present until the drop or the giving back.
    place: Option<Object<SessionManager>>,
    reaper: Arc<Reaper>,
    bound: Duration,
}

impl Reserved {
    /// Whether it was in use before.
    pub(crate) fn is_reused(&self) -> bool {
        self.place.as_ref().is_some_and(|place| Object::metrics(place).recycle_count > 0)
    }

    /// Sets how long it can stay in the server once it is destroyed.
    pub(crate) fn bound_by(&mut self, bound: Duration) {
        self.bound = bound;
    }

    /// Returns it to the pool. For a session that was proven to own nothing and to wait for nothing.
    pub(crate) fn give_back(mut self) {
        drop(self.place.take());
    }
}

impl Deref for Reserved {
    type Target = Session;

    #[expect(clippy::expect_used, reason = "taken only by those who consume or drop it")]
    fn deref(&self) -> &Session {
        self.place.as_deref().expect("BUG: a reserved session was used after it was given up")
    }
}

impl DerefMut for Reserved {
    #[expect(clippy::expect_used, reason = "taken only by those who consume or drop it")]
    fn deref_mut(&mut self) -> &mut Session {
        self.place.as_deref_mut().expect("BUG: a reserved session was used after it was given up")
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let socket = place.socket().clone();
            socket.shutdown_write();
            self.reaper.take(Doomed { place, socket, bound: self.bound });
        }
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
