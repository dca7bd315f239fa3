//! Where the locks live, and what there is beside them.

use std::env;
use std::fmt;
use std::sync::Arc;

use distributed_lock::{Locker, MemoryLocker};
use lock_postgres::PostgresLocker;
use lock_testkit::postgres::{Cluster, StartError};

use crate::Failure;

pub(crate) struct World {
    pub(crate) locks: Locks,
    /// Never the one that has the locks. Ends when it is dropped.
    pub(crate) database: Option<Cluster>,
}

pub(crate) enum Locks {
    Given(String),
    Own(Box<Cluster>),
    Memory(MemoryLocker),
}

impl World {
    /// Locks on the PostgreSQL of `DATABASE_URL`, else on one of its own where the programs are installed, else in memory; and where
    /// they are installed, a second one for the accounts.
    pub(crate) fn choose() -> Result<Self, Failure> {
        let locks = match env::var("DATABASE_URL") {
            Ok(url) => Locks::Given(url),
            Err(_unset) => {
                start()?.map_or_else(|| Locks::Memory(MemoryLocker::new()), |server| Locks::Own(Box::new(server)))
            }
        };
        Ok(Self { locks, database: start()? })
    }
}

impl Locks {
    /// `None` in memory, which no other process can see.
    pub(crate) fn url(&self) -> Option<String> {
        match self {
            Self::Given(url) => Some(url.clone()),
            Self::Own(server) => Some(server.url()),
            Self::Memory(_) => None,
        }
    }

    pub(crate) fn locker(&self) -> Result<Arc<dyn Locker>, Failure> {
        match self {
            Self::Memory(store) => Ok(Arc::new(store.peer())),
            Self::Given(url) => Ok(Arc::new(PostgresLocker::from_url(url)?)),
            Self::Own(server) => Ok(Arc::new(PostgresLocker::from_url(&server.url())?)),
        }
    }
}

/// In a process that was started with the locks' URL.
pub(crate) fn locker_of_this_process() -> Result<Arc<dyn Locker>, Failure> {
    Ok(Arc::new(PostgresLocker::from_url(&env::var("DATABASE_URL")?)?))
}

/// `None` where the programs are missing.
fn start() -> Result<Option<Cluster>, Failure> {
    match Cluster::start() {
        Ok(server) => Ok(Some(server)),
        Err(StartError::Missing(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.locks {
            Locks::Given(_) => writeln!(f, "the locks are on the PostgreSQL of DATABASE_URL")?,
            Locks::Own(server) => writeln!(f, "the locks are on a PostgreSQL {} of their own", server.major_version())?,
            Locks::Memory(_) => {
                writeln!(f, "the locks are in memory, and the frozen worker is a task that is not woken")?
            }
        }
        match &self.database {
            Some(server) => {
                write!(f, "the accounts are on another PostgreSQL {} and in an HTTP service", server.major_version())
            }
            None => {
                writeln!(f, "the accounts are in an HTTP service")?;
                write!(f, "LEFT OUT: the database part, since the programs of PostgreSQL are not installed")
            }
        }
    }
}
