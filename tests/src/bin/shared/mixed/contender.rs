//! One that asks for the key again and again.

use std::{sync::Arc, time::Duration};

use distributed_lock::{LockGuard, LockerExt, ScopedLockerExt, Ttl};
use lock_postgres::{PostgresLocker, PostgresScopedLocker, PostgresSharedSession};
use lock_testkit::{Detector, detector::DetectorError};
use tests::lease::clock;
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::Failure;

/// With its id, frozen by golden vectors, so that a client that knows nothing of us can take it.
const KEY: (&str, i64) = ("k", -267_060_044_214_003_201);

/// How long a hold is: long beside what it takes to hand the key over, so that a process that the system lets wait for its turn misses
/// few grants.
const HOLD: Duration = Duration::from_millis(4);

/// From one try of the poller to the next.
const POLL: Duration = Duration::from_millis(5);

/// When it asked and when it was granted, by the clock of all processes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) asked: i64,
    pub(super) granted: i64,
}

/// When all of them ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    pub(super) from: i64,
    pub(super) until: i64,
}

pub(super) struct Contender {
    /// Nobody else's.
    pub(super) name: String,
    pub(super) way: Way,
    pub(super) detector: Detector,
    pub(super) time: Time,
}

/// How it comes to hold the key.
pub(super) enum Way {
    Queued(Arc<PostgresLocker>),
    Shared(Arc<PostgresSharedSession>),
    Scoped(Arc<PostgresScopedLocker>),
    Foreign(Client),
    Poller(Client),
    Intruder,
}

impl Contender {
    pub(super) async fn run(self) -> Result<Vec<Wait>, Failure> {
        self.connect().await?;
        sleep(Duration::from_nanos(u64::try_from(self.time.from - clock::now()).unwrap_or_default())).await;
        let mut waits = Vec::new();
        loop {
            let asked = clock::now();
            if asked >= self.time.until {
                return Ok(waits);
            }
            waits.push(Wait { asked, granted: self.hold_once().await? });
        }
    }

    /// By a key of its own, so that nobody waits for a connection later.
    async fn connect(&self) -> Result<(), Failure> {
        match &self.way {
            Way::Queued(locker) => release(locker.acquire(self.name.as_str(), Ttl::UNTIL_RELEASED).await?).await,
            Way::Shared(locker) => release(locker.acquire(self.name.as_str(), Ttl::UNTIL_RELEASED).await?).await,
            Way::Scoped(locker) => Ok(locker.with_lock(self.name.as_str(), async |_| ()).await?),
            Way::Foreign(_) | Way::Poller(_) | Way::Intruder => Ok(()),
        }
    }

    /// When it was granted.
    async fn hold_once(&self) -> Result<i64, Failure> {
        match &self.way {
            Way::Queued(locker) => self.under(locker.acquire(KEY.0, Ttl::UNTIL_RELEASED).await?).await,
            Way::Shared(locker) => self.under(locker.acquire(KEY.0, Ttl::UNTIL_RELEASED).await?).await,
            Way::Scoped(locker) => locker.with_lock(KEY.0, async |_| self.be_inside().await).await?,
            Way::Foreign(client) => {
                client.query_one(LOCK, &[&KEY.1]).await?;
                let granted = self.be_inside().await?;
                client.query_one(UNLOCK, &[&KEY.1]).await?;
                Ok(granted)
            }
            Way::Poller(client) => {
                while !client.query_one(TRY, &[&KEY.1]).await?.get::<_, bool>(0) {
                    sleep(POLL).await;
                }
                let granted = self.be_inside().await?;
                client.query_one(UNLOCK, &[&KEY.1]).await?;
                Ok(granted)
            }
            Way::Intruder => {
                sleep(POLL).await;
                self.be_inside().await
            }
        }
    }

    async fn under(&self, guard: LockGuard) -> Result<i64, Failure> {
        let granted = self.be_inside().await?;
        release(guard).await?;
        Ok(granted)
    }

    /// The work under the lock.
    async fn be_inside(&self) -> Result<i64, Failure> {
        let granted = clock::now();
        match self.detector.enter(KEY.0, &self.name).await {
            Ok(inside) => {
                sleep(HOLD).await;
                inside.leave().await?;
            }
            // Counted by the detector.
            Err(DetectorError::TwoHolders(_)) => {}
            Err(blind) => return Err(blind.into()),
        }
        Ok(granted)
    }
}

async fn release(guard: LockGuard) -> Result<(), Failure> {
    Ok(guard.release().await?.exclusive()?)
}

const LOCK: &str = "select pg_catalog.pg_advisory_lock($1::pg_catalog.int8)::pg_catalog.text";
const TRY: &str = "select pg_catalog.pg_try_advisory_lock($1::pg_catalog.int8)";
const UNLOCK: &str = "select pg_catalog.pg_advisory_unlock($1::pg_catalog.int8)";
