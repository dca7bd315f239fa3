//! Sessions over the connections of a pool that the user handed in.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::{Object, Pool, PoolError, TimeoutType};
use distributed_lock::{Attempt, Contention, Error, ErrorKind, Result, backend::tell_waiting, telemetry::Telemetry};

use crate::{error, pool::within, reserved::Reserved, session::Session, world::WorldCell};

#[derive(Clone, Debug)]
pub(crate) struct BorrowedPool {
    pub(crate) pool: Pool,
    pub(crate) world: Arc<WorldCell>,
    pub(crate) telemetry: Telemetry,
}

impl BorrowedPool {
    /// Cancel safe, as the pool's own `get` is. Connections that the server ended while they lay in the pool are thrown away.
    pub(crate) async fn reserve(&self, wait: Option<Duration>, limit: Option<Duration>) -> Result<Attempt<Reserved>> {
        loop {
            if wait == Some(Duration::ZERO) && self.is_exhausted() {
                return Ok(Attempt::Contended(Contention::NoConnection));
            }
            if self.is_exhausted() {
                tell_waiting(&Contention::NoConnection);
            }
            let object = match within(limit, self.pool.get()).await {
                Ok(Ok(object)) => object,
                Ok(Err(PoolError::Timeout(TimeoutType::Wait))) => {
                    return Ok(Attempt::Contended(Contention::NoConnection));
                }
                Ok(Err(error)) => return Err(no_connection(error)),
                Err(_) if self.is_exhausted() => return Ok(Attempt::Contended(Contention::NoConnection)),
                Err(error) => return Err(error),
            };
            let reused = Object::metrics(&object).recycle_count > 0;
            match within(limit, Session::borrow(object, &self.world)).await? {
                Ok(session) => return Ok(Attempt::Acquired(Reserved::borrowed(Box::new(session)))),
                // It is closed now, so the pool does not give it again.
                Err(error) if reused && error.kind() == ErrorKind::Unavailable => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn is_exhausted(&self) -> bool {
        let status = self.pool.status();
        status.available == 0 && status.size >= status.max_size
    }
}

fn no_connection(error: PoolError) -> Error {
    match error {
        PoolError::Backend(error) => error::wrap(error, "connect"),
        PoolError::Closed => Error::new(ErrorKind::Closed, "the pool was closed"),
        error => Error::new(ErrorKind::Unavailable, "the pool gave no connection").with_source(error),
    }
}
