//! What the server says: who holds, who waits, who is connected.

use std::fmt;
use std::time::Duration;

use tokio_postgres::{Client, Config, Error, Row};

use crate::session::{self, APPLICATION_NAME};
use crate::wait::wait_until;

/// Looks at one database of a server through a session of its own.
///
/// Sessions of the kit, known by their application name, are left out of what it reports.
pub struct Observer {
    client: Client,
}

/// A row of `pg_locks` for an advisory lock: its holder, or one who waits for it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct AdvisoryLock {
    /// `None` if a prepared transaction holds it.
    pub pid: Option<i32>,
    /// The key if it is a `bigint`, `None` if it is a pair of integers, which is another key space.
    pub key: Option<i64>,
    /// False for one who waits.
    pub granted: bool,
    /// Such as `ExclusiveLock`.
    pub mode: String,
    /// Of its session.
    pub application_name: Option<String>,
    /// Of its session, such as `idle in transaction`.
    pub state: Option<String>,
    /// The first half of a key of two integers: in a beacon, the session's T in ms.
    pub first: Option<i64>,
    /// The second half of such a key: in a beacon, what tells it from others.
    pub second: Option<i64>,
}

/// A client's session.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Session {
    /// Of its backend.
    pub pid: i32,
    /// Such as `idle`.
    pub state: Option<String>,
    /// What its client calls itself.
    pub application_name: Option<String>,
    /// What it waits for, such as `ClientRead` or `advisory`.
    pub wait_event: Option<String>,
    /// Its last or current statement.
    pub query: Option<String>,
}

/// Why [`Observer::quiet`] was not.
#[derive(Debug)]
#[non_exhaustive]
pub enum QuietError {
    /// The server could not be asked.
    Observer(Error),
    /// This was left at the deadline.
    Remains {
        /// Advisory locks, held or waited for.
        locks: Vec<AdvisoryLock>,
        /// Sessions other than the kit's.
        sessions: Vec<Session>,
    },
}

impl Observer {
    /// Opens the session.
    pub async fn connect(config: &Config) -> Result<Self, Error> {
        Ok(Self { client: session::connect_guarded(config).await? })
    }

    /// Those who hold or wait for a `bigint` key in this database.
    pub async fn holders(&self, key: i64) -> Result<Vec<AdvisoryLock>, Error> {
        let locks = self.advisory_locks().await?;
        Ok(locks.into_iter().filter(|lock| lock.key == Some(key)).collect())
    }

    /// All advisory locks of this database, of both key spaces, held or waited for.
    pub async fn advisory_locks(&self) -> Result<Vec<AdvisoryLock>, Error> {
        let rows = self.client.query(ADVISORY_LOCKS, &[]).await?;
        Ok(rows.iter().map(AdvisoryLock::from_row).collect())
    }

    /// Those on `bigint` keys, as locks are; a session's own beacon is in the other key space.
    pub async fn key_locks(&self) -> Result<Vec<AdvisoryLock>, Error> {
        let locks = self.advisory_locks().await?;
        Ok(locks.into_iter().filter(|lock| lock.key.is_some()).collect())
    }

    /// Sessions of clients in this database other than the kit's.
    pub async fn sessions(&self) -> Result<Vec<Session>, Error> {
        let rows = self.client.query(SESSIONS, &[&APPLICATION_NAME]).await?;
        Ok(rows.iter().map(Session::from_row).collect())
    }

    /// Ends a session. False if there was none of that id.
    pub async fn terminate(&self, pid: i32) -> Result<bool, Error> {
        let row = self.client.query_one("SELECT pg_catalog.pg_terminate_backend($1::pg_catalog.int4)", &[&pid]).await?;
        Ok(row.get(0))
    }

    /// Waits until this database has no advisory lock and no session other than the kit's.
    pub async fn quiet(&self, deadline: Duration) -> Result<(), QuietError> {
        let mut seen = Ok((Vec::new(), Vec::new()));
        let waited = wait_until(deadline, "quiet", async || {
            seen = self.remains().await;
            seen.as_ref().map_or(true, |(locks, sessions)| locks.is_empty() && sessions.is_empty())
        });
        let waited = waited.await;
        let (locks, sessions) = seen.map_err(QuietError::Observer)?;
        waited.map_err(|_| QuietError::Remains { locks, sessions })
    }

    async fn remains(&self) -> Result<(Vec<AdvisoryLock>, Vec<Session>), Error> {
        Ok((self.advisory_locks().await?, self.sessions().await?))
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

impl AdvisoryLock {
    fn from_row(row: &Row) -> Self {
        Self {
            pid: row.get(0),
            key: row.get(1),
            granted: row.get(2),
            mode: row.get(3),
            application_name: row.get(4),
            state: row.get(5),
            first: row.get(6),
            second: row.get(7),
        }
    }
}

impl Session {
    fn from_row(row: &Row) -> Self {
        Self {
            pid: row.get(0),
            state: row.get(1),
            application_name: row.get(2),
            wait_event: row.get(3),
            query: row.get(4),
        }
    }
}

impl fmt::Display for QuietError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Observer(_) => f.write_str("the server could not be asked what is left"),
            Self::Remains { locks, sessions } => write!(f, "not quiet: locks {locks:?}, sessions {sessions:?}"),
        }
    }
}

impl std::error::Error for QuietError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Observer(error) => Some(error),
            Self::Remains { .. } => None,
        }
    }
}

/// `objsubid` is 1 for `bigint` keys, whose halves are in `classid` and `objid`, and 2 for pairs of integers.
const ADVISORY_LOCKS: &str = "
    SELECT l.pid,
           CASE WHEN l.objsubid OPERATOR(pg_catalog.=) 1 THEN
               ((l.classid::pg_catalog.int8 OPERATOR(pg_catalog.<<) 32)
                OPERATOR(pg_catalog.|) l.objid::pg_catalog.int8)
           END,
           l.granted, l.mode, a.application_name, a.state,
           CASE WHEN l.objsubid OPERATOR(pg_catalog.=) 2 THEN l.classid::pg_catalog.int8 END,
           CASE WHEN l.objsubid OPERATOR(pg_catalog.=) 2 THEN l.objid::pg_catalog.int8 END
    FROM pg_catalog.pg_locks l
    LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
    WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory'
      AND l.database OPERATOR(pg_catalog.=) (
          SELECT d.oid FROM pg_catalog.pg_database d
          WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
    ORDER BY l.granted DESC, l.waitstart, l.pid";

const SESSIONS: &str = "
    SELECT a.pid, a.state, a.application_name, a.wait_event, a.query
    FROM pg_catalog.pg_stat_activity a
    WHERE a.backend_type OPERATOR(pg_catalog.=) 'client backend'
      AND a.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
      AND a.application_name OPERATOR(pg_catalog.<>) $1::pg_catalog.text
    ORDER BY a.pid";
