//! A small shop as an HTTP service. It never sells the same piece twice, whichever replica a buyer talks to, because each
//! sale runs under the lock of its item. Which backend gives that lock is not written here.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::future::{Future, IntoFuture};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use distributed_lock::{Attempt, Contention, Error, ErrorKind, Hold, ScopedError, ScopedLocker, ScopedLockerExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

/// How long a buyer may queue for an item. Short, since an HTTP client that hears "come back" is better off than one that hangs.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// How long the payment of a sale takes: the gap into which another sale of the same item must not come.
pub const PAYMENT: Duration = Duration::from_millis(20);

/// How long the lock store may take to answer a health check.
pub const HEALTHY: Duration = Duration::from_secs(1);

/// How long requests in flight may take to end once the service is told to stop.
pub const DRAIN: Duration = Duration::from_secs(5);

/// What a client is told that can as well try again soon.
const SOON: Duration = Duration::from_secs(1);

/// The service. Its locker is given to it, so that production and tests differ in one line.
#[derive(Debug)]
pub struct Shop {
    locks: Arc<dyn ScopedLocker>,
    /// Stands for a table in a database: it is read, then written, and others can come in between.
    stock: Mutex<BTreeMap<String, u32>>,
}

impl Shop {
    /// A shop with so many pieces of each item.
    pub fn new<'a>(locks: Arc<dyn ScopedLocker>, stock: impl IntoIterator<Item = (&'a str, u32)>) -> Arc<Self> {
        let stock = stock.into_iter().map(|(item, pieces)| (item.to_owned(), pieces)).collect();
        Arc::new(Self { locks, stock: Mutex::new(stock) })
    }

    /// How many pieces are left; `None` for an item that was never sold here.
    #[must_use]
    pub fn left(&self, item: &str) -> Option<u32> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner).get(item).copied()
    }

    fn store(&self, item: &str, left: u32) {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner).insert(item.to_owned(), left);
    }

    /// One sale in two steps: correct only if nobody else sells this item meanwhile.
    async fn sell(&self, item: &str, hold: &Hold) -> Result<u32, Refusal> {
        let pieces = self.left(item).ok_or(Refusal::Unknown)?;
        let left = pieces.checked_sub(1).ok_or(Refusal::SoldOut)?;
        sleep(PAYMENT).await;
        // Cheap and local: ask before each side effect, since a lock can be lost at any time.
        hold.ensure_valid()?;
        self.store(item, left);
        Ok(left)
    }
}

/// The routes of the service.
pub fn router(shop: Arc<Shop>) -> Router {
    Router::new().route("/items/{item}/buy", post(buy)).route("/healthz", get(healthz)).with_state(shop)
}

/// A client that hangs up drops this future, and that frees the lock: every future of the locker is cancel safe.
async fn buy(State(shop): State<Arc<Shop>>, Path(item): Path<String>) -> Result<String, Refusal> {
    let key = format!("items/{item}");
    // Two questions, two answers: did I get the lock, and how did the work go.
    let sale = shop.locks.with_lock_within(key, PATIENCE, async |hold| shop.sell(&item, &hold).await).await?;
    match sale {
        Attempt::Acquired(sold) => Ok(format!("sold, {} left\n", sold?)),
        Attempt::Contended(why) => Err(Refusal::Contended(why)),
    }
}

/// Whether this replica can sell, which it can only do if it can lock.
async fn healthz(State(shop): State<Arc<Shop>>) -> Result<&'static str, Refusal> {
    match timeout(HEALTHY, shop.locks.ping()).await {
        Ok(pinged) => Ok(pinged.map(|()| "healthy\n")?),
        Err(_elapsed) => Err(Error::new(ErrorKind::Unavailable, "the lock store is slow to answer").into()),
    }
}

/// Serves until told to stop, lets the requests in flight end, and then closes the locker, which frees what is still held.
///
/// # Errors
/// If the socket fails or the locker could not be closed cleanly.
pub async fn serve(listener: TcpListener, shop: Arc<Shop>, stop: impl Future + Send) -> Result<(), Box<dyn StdError>> {
    let (drain, draining) = oneshot::channel::<()>();
    // Also completes when the sender is gone.
    let drained = async { draining.await.unwrap_or_default() };
    let serving = axum::serve(listener, router(Arc::clone(&shop))).with_graceful_shutdown(drained);
    let mut serving = Box::pin(serving.into_future());
    let served: io::Result<()> = tokio::select! {
        served = &mut serving => served,
        _ = stop => {
            drop(drain);
            // A client that never ends its request must not keep the service up.
            timeout(DRAIN, serving).await.unwrap_or(Ok(()))
        }
    };
    // Last, so that no request in flight is cut off by it; and whatever happened.
    shop.locks.close().await?;
    Ok(served?)
}

/// Why a request was not served.
#[derive(Debug)]
pub enum Refusal {
    /// Another sale of the item is going on: come back.
    Contended(Contention),
    /// The lock could not be asked for, or did not hold to the end.
    Failed(Error),
    /// There is none left.
    SoldOut,
    /// There never was one.
    Unknown,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A sale whose lock was lost before it ended comes here too: what it returned says nothing any more.
impl<T> From<ScopedError<T>> for Refusal {
    fn from(failed: ScopedError<T>) -> Self {
        Self::Failed(failed.error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Contended(why) => {
                (StatusCode::CONFLICT, [retry_after(SOON)], format!("busy: {why}\n")).into_response()
            }
            Self::SoldOut => (StatusCode::GONE, "sold out\n").into_response(),
            Self::Unknown => (StatusCode::NOT_FOUND, "no such item\n").into_response(),
            Self::Failed(error) => failed(&error),
        }
    }
}

/// The kind alone decides. The client hears what it can do about it, the log hears the rest.
fn failed(error: &Error) -> Response {
    eprintln!("refused: {error}{}", error.source().map(|source| format!(": {source}")).unwrap_or_default());
    match error.kind() {
        // Nothing was sold, and the same request can succeed later, here or at another replica.
        ErrorKind::CircuitOpen | ErrorKind::Closed | ErrorKind::LimitReached | ErrorKind::Unavailable => {
            let unavailable = (StatusCode::SERVICE_UNAVAILABLE, "unavailable, nothing was done\n");
            match error.retry_after() {
                Some(pause) => ([retry_after(pause)], unavailable).into_response(),
                None => unavailable.into_response(),
            }
        }
        ErrorKind::InvalidInput => (StatusCode::BAD_REQUEST, "no name for an item\n").into_response(),
        // The lock was lost, or nobody knows: the client must look before it repeats anything.
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "failed, look at your orders before you repeat it\n").into_response(),
    }
}

/// Whole seconds, rounded up and never zero, so that nobody comes back too early.
fn retry_after(pause: Duration) -> (header::HeaderName, String) {
    (header::RETRY_AFTER, pause.as_millis().div_ceil(1_000).max(1).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_pause_is_told_in_seconds_rounded_up() {
        for (pause, told) in [(0, "1"), (1_000, "1"), (2_001, "3")] {
            let error = Error::new(ErrorKind::CircuitOpen, "open").with_retry_after(Duration::from_millis(pause));
            let response = Refusal::from(error).into_response();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(response.headers()[header::RETRY_AFTER], told);
        }
    }
}
