//! What the server says of the job's lock.

use std::time::SystemTime;

use distributed_lock::LockKey;
use lock_postgres::KeyScheme;
use lock_testkit::{Observer, wait_until};
use tokio_postgres::{Client, Config, NoTls};

use super::{AMPLE, Failure, JOB, clock, standbys::Line};

/// A look at one database of the server.
#[derive(Debug)]
pub struct Server {
    admin: Client,
    observer: Observer,
    id: i64,
}

impl Server {
    /// Looks as the kit does, which its observer does not count.
    ///
    /// # Errors
    /// If there is no connection to be had.
    pub async fn connect(config: &Config) -> Result<Self, Failure> {
        let (admin, connection) = config.connect(NoTls).await?;
        // Ends with the client.
        tokio::spawn(connection);
        let id = KeyScheme::default().id(0, &LockKey::new(JOB)?);
        Ok(Self { admin, observer: Observer::connect(config).await?, id })
    }

    /// The id of the job's lock.
    #[must_use]
    pub fn id(&self) -> i64 {
        self.id
    }

    /// For looks of another kind.
    #[must_use]
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Who holds the job's lock and who stands by.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn line(&self) -> Result<Line, Failure> {
        Ok(Line::of(&self.observer.advisory_locks().await?, |key| key == self.id))
    }

    /// Waits until one holds the job's lock and one stands by.
    ///
    /// # Errors
    /// If that does not come true.
    pub async fn has_a_standby(&self) -> Result<(), Failure> {
        self.has_standbys(1).await
    }

    /// Waits until one holds the job's lock and so many stand by.
    ///
    /// # Errors
    /// If that does not come true.
    pub async fn has_standbys(&self, count: usize) -> Result<(), Failure> {
        let waited = wait_until(AMPLE, format!("a holder and {count} standbys"), async || {
            self.line().await.unwrap_or_default().led_before(count).is_some()
        });
        Ok(waited.await?)
    }

    /// The server's time.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn now(&self) -> Result<SystemTime, Failure> {
        Ok(self.admin.query_one("select pg_catalog.clock_timestamp()", &[]).await?.get(0))
    }

    /// Waits until one holds the job's lock and somebody stands by who began to do so after that time: the server shows a waiter that is
    /// gone for a while.
    ///
    /// # Errors
    /// If that does not come true.
    pub async fn has_a_standby_since(&self, since: SystemTime) -> Result<(), Failure> {
        let query = "select exists (select from pg_catalog.pg_locks as l where l.locktype operator(pg_catalog.=) 'advisory' \
                     and l.pid operator(pg_catalog.=) any ($1::pg_catalog.int4[]) \
                     and l.waitstart operator(pg_catalog.>) $2::pg_catalog.timestamptz)";
        let waited = wait_until(AMPLE, "a holder and a standby", async || {
            let Line { holders, standbys } = self.line().await.unwrap_or_default();
            let waits = self.admin.query_one(query, &[&standbys, &since]).await;
            holders.len() == 1 && waits.is_ok_and(|waits| waits.get(0))
        });
        Ok(waited.await?)
    }

    /// The backend that holds the job's lock.
    ///
    /// # Errors
    /// If nobody does.
    pub async fn holder(&self) -> Result<i32, Failure> {
        let holder = self.line().await?.holders.first().copied();
        Ok(holder.ok_or("nobody holds the job's lock")?)
    }

    /// When the holder's session last began or ended a statement, which it had been sent just before.
    ///
    /// # Errors
    /// If nobody holds the job's lock.
    pub async fn last_statement(&self) -> Result<i64, Failure> {
        let pid = self.holder().await?;
        let query = "select (extract(epoch from pg_catalog.clock_timestamp() operator(pg_catalog.-) a.state_change) \
                     operator(pg_catalog.*) 1000000)::pg_catalog.int8 \
                     from pg_catalog.pg_stat_activity as a where a.pid operator(pg_catalog.=) $1::pg_catalog.int4";
        let row = self.admin.query_one(query, &[&pid]).await?;
        Ok(clock::now() - row.get::<_, i64>(0) * 1_000)
    }
}
