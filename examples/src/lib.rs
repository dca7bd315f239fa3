//! What the example programs share: the choice of a backend, a referee who watches the replicas, a shop and its client, accounts that
//! refuse a stale holder, a tree of spans and a look at what was printed.

pub mod accounts;
mod client;
pub mod fence;
pub mod observed;
mod referee;
pub mod shop;
mod spans;

use std::env;
use std::sync::Arc;

use distributed_lock::{Locker, MemoryLocker, Result, Scoped, ScopedLocker};
use lock_postgres::{PostgresScopedLocker, PostgresSharedSession};

pub use client::{Answer, request, request_with};
pub use referee::{Event, Referee, Verdict};
pub use spans::Spans;

/// Lockers for that many replicas: on the PostgreSQL of `DATABASE_URL` with sessions of their own, else in memory over one store.
///
/// # Errors
/// When `DATABASE_URL` breaks a rule. Nothing connects yet: `ping` tells whether the server is there.
pub fn lockers(replicas: usize) -> Result<Vec<Arc<dyn Locker>>> {
    let store = MemoryLocker::new();
    let locker = |_| match env::var("DATABASE_URL") {
        Ok(url) => Ok(Arc::new(PostgresSharedSession::from_url(&url)?) as Arc<dyn Locker>),
        Err(_unset) => Ok(Arc::new(store.peer()) as Arc<dyn Locker>),
    };
    (0..replicas).map(locker).collect()
}

/// One locker that runs bodies: on the PostgreSQL of `DATABASE_URL`, else in memory.
///
/// # Errors
/// When `DATABASE_URL` breaks a rule. Nothing connects yet: `ping` tells whether the server is there.
pub fn scoped_locker() -> Result<Arc<dyn ScopedLocker>> {
    match env::var("DATABASE_URL") {
        Ok(url) => Ok(Arc::new(PostgresScopedLocker::from_url(&url)?)),
        Err(_unset) => Ok(Arc::new(Scoped::new(MemoryLocker::new()))),
    }
}
