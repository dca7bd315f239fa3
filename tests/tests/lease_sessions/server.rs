//! A server, and under which locks the replicas of a trial run on it.

use std::{future::Future, ops::Deref};

use distributed_lock::lease::{LeaseConfig, Term};
use libtest_mimic::Trial;
use lock_postgres::PostgresConfig;
use lock_testkit::{Cluster, Observer, postgres::Builder};
use tests::lease::{locker::LockerKind, standbys::Line};
use tokio::time::{sleep, timeout};

use crate::{backend, bench::Work, referee::Referee, replica::Replica};

pub(crate) use crate::backend::{AMPLE, Watch, ms, shortened, state_of};

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) locker: LockerKind,
    of: backend::Server,
}

/// A trial in a database of its own on the cluster that all share.
pub(crate) fn trial<F: Future<Output = ()>>(
    locker: LockerKind,
    name: &str,
    body: impl FnOnce(Server) -> F + Send + 'static,
) -> Trial {
    backend::trial(&format!("{locker}::{name}"), move |of| body(Server { locker, of }))
}

/// A trial on a cluster of its own.
pub(crate) fn trial_alone<F: Future<Output = ()>>(
    locker: LockerKind,
    name: &str,
    options: fn(Builder) -> Builder,
    body: impl FnOnce(Cluster, Server) -> F + Send + 'static,
) -> Trial {
    let name = format!("{locker}::{name}");
    backend::trial_alone(&name, options, move |cluster, of| body(cluster, Server { locker, of }))
}

impl Server {
    /// A replica that contends from now on.
    pub(crate) fn start(
        &self,
        name: &'static str,
        config: &PostgresConfig,
        lease: LeaseConfig,
        referee: &Referee,
        job: impl Fn(Term) -> Work + Send + Sync + 'static,
    ) -> Replica {
        let lease = match self.locker {
            LockerKind::Postgres => lease,
            shared => lease.with_retry_interval(shared.retry_interval()),
        };
        Replica::start(name, (self.locker, self.locker.open(config).unwrap()), lease, referee, job)
    }

    /// Waits until one holds the only key and so many stand by, and gives their backends.
    pub(crate) async fn standbys(&self, count: usize) -> Vec<i32> {
        // A loop of its own: with `wait_until`, whose condition borrows, this future could not be sent.
        let seen = timeout(AMPLE, async {
            loop {
                let line = self.line().await;
                if line.led_before(count).is_some() {
                    return line.standbys;
                }
                sleep(ms(2)).await;
            }
        });
        seen.await.unwrap_or_else(|_| panic!("there never were {count} standbys"))
    }

    /// Waits until this backend is gone from those that stand by.
    pub(crate) async fn stands_by_no_more(&self, pid: i32) {
        let gone = timeout(AMPLE, async {
            while self.line().await.standbys.contains(&pid) {
                sleep(ms(2)).await;
            }
        });
        gone.await.unwrap_or_else(|_| panic!("{pid} still stands by"));
    }

    pub(crate) async fn line(&self) -> Line {
        line(&self.of.observer).await
    }
}

/// Of the only key of a database.
pub(crate) async fn line(observer: &Observer) -> Line {
    Line::of(&observer.advisory_locks().await.unwrap(), |_| true)
}

impl Deref for Server {
    type Target = backend::Server;

    fn deref(&self) -> &backend::Server {
        &self.of
    }
}
