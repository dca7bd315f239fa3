//! Sessions over the connections of a pool that the user handed in.

use std::{sync::Arc, time::Duration};

use deadpool::managed::TimeoutType;
use deadpool_postgres::{Pool, PoolError};
use distributed_lock::{Attempt, Contention, Error, ErrorKind, Result};

use crate::{
    error,
    pool::within,
    reserved::{Place, Reserved},
    session::Session,
    world::WorldCell,
};

#[derive(Clone, Debug)]
pub(crate) struct BorrowedPool {
    pub(crate) pool: Pool,
    pub(crate) world: Arc<WorldCell>,
}

impl BorrowedPool {
    /// Cancel safe, as the pool's own `get` is.
    pub(crate) async fn reserve(&self, wait: Option<Duration>, limit: Option<Duration>) -> Result<Attempt<Reserved>> {
        if wait == Some(Duration::ZERO) && self.is_exhausted() {
            return Ok(Attempt::Contended(Contention::NoConnection));
        }
        let got = match within(limit, self.pool.get()).await {
            Ok(got) => got,
            Err(_) if self.is_exhausted() => return Ok(Attempt::Contended(Contention::NoConnection)),
            Err(error) => return Err(error),
        };
        match got {
            Ok(object) => {
                let session = within(limit, Session::borrow(object, &self.world)).await??;
                Ok(Attempt::Acquired(Reserved::new(Place::Borrowed(Box::new(session)))))
            }
            Err(PoolError::Timeout(TimeoutType::Wait)) => Ok(Attempt::Contended(Contention::NoConnection)),
            Err(PoolError::Backend(error)) => Err(error::wrap(error, "connect")),
            Err(PoolError::Closed) => Err(Error::new(ErrorKind::Closed, "the pool was closed")),
            Err(error) => Err(Error::new(ErrorKind::Unavailable, "the pool gave no connection").with_source(error)),
        }
    }

    fn is_exhausted(&self) -> bool {
        let status = self.pool.status();
        status.available == 0 && status.size >= status.max_size
    }
}
