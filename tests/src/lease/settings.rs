//! How a replica is set up. The same in its process and in the one that judges it.

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    Locker,
    lease::{LeaseConfig, LeaseRunner},
};
use lock_postgres::PostgresConfig;
use tokio::runtime::{Builder, Runtime};

use super::{Failure, locker::LockerKind};

/// The times of a replica, what it runs, and on what.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Under which locks.
    pub locker: LockerKind,
    /// How many jobs it runs.
    pub jobs: usize,
    /// T of the lease.
    pub ttl: Duration,
    /// The grace of the job.
    pub grace: Duration,
    /// h of the locker.
    pub heartbeat: Duration,
    /// tau of the locker.
    pub query_timeout: Duration,
    /// What the replica runs on.
    pub threads: Threads,
    /// Whether it ends holders that were cut off in the middle of a write, while it waits.
    pub watchdog: bool,
}

/// What a replica runs on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Threads {
    /// A current-thread runtime.
    One,
    /// A runtime with two workers.
    Two,
}

impl Settings {
    /// A locker with these times, and a runner on it.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn runner(&self, url: &str) -> Result<(Arc<dyn Locker>, LeaseRunner), Failure> {
        let config = PostgresConfig::from_url(url)
            .with_heartbeat_interval(self.heartbeat)
            .with_query_timeout(self.query_timeout)
            .with_watchdog(self.watchdog);
        let config = if self.jobs == 1 { config.with_pool_size(2) } else { config };
        let locker = self.locker.open(&config)?;
        let runner = LeaseRunner::new(Arc::clone(&locker), self.lease())?;
        Ok((locker, runner))
    }

    /// The configuration of its runner.
    #[must_use]
    pub fn lease(&self) -> LeaseConfig {
        let config = LeaseConfig::new().with_ttl(self.ttl).with_grace(self.grace);
        config.with_retry_interval(self.locker.retry_interval())
    }

    /// What it runs on.
    ///
    /// # Errors
    /// If the system has no threads left.
    pub fn runtime(self) -> std::io::Result<Runtime> {
        match self.threads {
            Threads::One => Builder::new_current_thread().enable_all().build(),
            Threads::Two => Builder::new_multi_thread().worker_threads(2).enable_all().build(),
        }
    }

    pub(super) fn arguments(self) -> [String; 8] {
        let [ttl, grace, heartbeat, query_timeout] =
            [self.ttl, self.grace, self.heartbeat, self.query_timeout].map(|time| time.as_millis().to_string());
        let threads = if self.threads == Threads::One { "1" } else { "2" };
        let (locker, jobs) = (self.locker.to_string(), self.jobs.to_string());
        [locker, jobs, ttl, grace, heartbeat, query_timeout, threads.into(), self.watchdog.to_string()]
    }

    pub(super) fn parse(arguments: &[String]) -> Option<Self> {
        let [locker, jobs, ttl, grace, heartbeat, query_timeout, threads, watchdog] = arguments else { return None };
        let time = |text: &String| text.parse().ok().map(Duration::from_millis);
        Some(Self {
            locker: LockerKind::parse(locker)?,
            jobs: jobs.parse().ok()?,
            ttl: time(ttl)?,
            grace: time(grace)?,
            heartbeat: time(heartbeat)?,
            query_timeout: time(query_timeout)?,
            threads: if threads == "1" { Threads::One } else { Threads::Two },
            watchdog: watchdog.parse().ok()?,
        })
    }
}
