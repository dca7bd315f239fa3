//! What the server says of the job's lock.

use std::time::Duration;

use distributed_lock::LockKey;
use lock_postgres::KeyScheme;
use lock_testkit::{Cluster, Observer, wait_until};
use tokio_postgres::Client;

use crate::{Failure, clock, replica::JOB};

/// For what must happen, on a busy machine as well.
pub(crate) const AMPLE: Duration = Duration::from_secs(30);

pub(crate) struct Server {
    admin: Client,
    observer: Observer,
    id: i64,
}

impl Server {
    pub(crate) async fn connect(cluster: &Cluster) -> Result<Self, Failure> {
        Ok(Self {
            admin: cluster.admin().await?,
            observer: Observer::connect(&cluster.admin_config("postgres")).await?,
            id: KeyScheme::default().id(0, &LockKey::new(JOB)?),
        })
    }

    /// Waits until one holds the job's lock and one waits for it.
    pub(crate) async fn has_a_standby(&self) -> Result<(), Failure> {
        let waited = wait_until(AMPLE, "a holder and a standby", async || {
            let locks = self.observer.holders(self.id).await.unwrap_or_default();
            locks.len() == 2 && locks.iter().filter(|lock| lock.granted).count() == 1
        });
        Ok(waited.await?)
    }

    /// When the holder's session last ended a statement, which it had been sent just before.
    pub(crate) async fn last_statement(&self) -> Result<i64, Failure> {
        let locks = self.observer.holders(self.id).await?;
        let pid =
            locks.iter().find(|lock| lock.granted).and_then(|lock| lock.pid).ok_or("nobody holds the job's lock")?;
        let query = "select (extract(epoch from pg_catalog.clock_timestamp() operator(pg_catalog.-) a.state_change) \
                     operator(pg_catalog.*) 1000000)::pg_catalog.int8 \
                     from pg_catalog.pg_stat_activity as a where a.pid operator(pg_catalog.=) $1::pg_catalog.int4";
        let row = self.admin.query_one(query, &[&pid]).await?;
        Ok(clock::now() - row.get::<_, i64>(0) * 1_000)
    }
}
