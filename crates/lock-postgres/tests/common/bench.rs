//! What the tests share: a database of their own, lockers with short times, and a watch for latencies.

use std::{error::Error, future::Future, net::Ipv4Addr, time::Duration};

use distributed_lock::{Attempt, Contention, Hold, LockGuard, LockerExt, Ttl};
use libtest_mimic::{Failed, Trial};
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresScopedLocker};
use lock_testkit::{
    Cluster, Observer, Proxy, StallProbe,
    observe::{AdvisoryLock, Session},
    postgres::{Builder, StartError},
    requirement,
    stall::Mark,
};
use tokio::{
    runtime::Runtime,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_postgres::{Client, NoTls, error::DbError};

/// Ample for a machine under load.
pub(crate) const AMPLE: Duration = Duration::from_secs(20);

/// What a latency may exceed its bound by on a machine that is busy with other tests.
const SLACK: Duration = Duration::from_millis(600);

/// T of [`Server::short`].
pub(crate) const SHORT_TTL: Duration = Duration::from_secs(2);

/// h + tau + delta of [`Server::short`].
pub(crate) const SHORT_DETECTION: Duration = Duration::from_millis(800);

/// How often the server looks for the client of a session that waits.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A trial in a database of its own on the cluster that all share.
pub(crate) fn trial<F: Future<Output = ()>>(name: &str, body: impl FnOnce(Server) -> F + Send + 'static) -> Trial {
    requirement::trial(name, Cluster::shared, move |cluster| {
        Runtime::new()?.block_on(async { body(Server::on(cluster).await).await });
        Ok::<_, Failed>(())
    })
}

/// A trial on a cluster of its own.
pub(crate) fn trial_alone<F: Future<Output = ()>>(
    name: &str,
    cluster: fn(Builder) -> Builder,
    body: impl FnOnce(Cluster, Server) -> F + Send + 'static,
) -> Trial {
    let start = move || -> Result<Cluster, StartError> { cluster(Cluster::builder()).start() };
    requirement::trial(name, start, move |cluster| {
        Runtime::new()?.block_on(async {
            let server = Server::on(&cluster).await;
            body(cluster, server).await;
        });
        Ok::<_, Failed>(())
    })
}

/// A database on a server, and a look at it from outside.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) observer: Observer,
    pub(crate) admin: tokio_postgres::Config,
    pub(crate) url: String,
    port: u16,
}

impl Server {
    pub(crate) async fn on(cluster: &Cluster) -> Self {
        let database = cluster.create_database().await.unwrap();
        let admin = cluster.admin_config(&database);
        let observer = Observer::connect(&admin).await.unwrap();
        Self { observer, admin, url: cluster.url_for("postgres", &database), port: cluster.port() }
    }

    /// The same database for another role.
    pub(crate) fn url_of(&self, role: &str) -> String {
        self.url.replace("//postgres@", &format!("//{role}@"))
    }

    /// A session of the superuser that counts as the kit's own.
    pub(crate) async fn admin(&self) -> Client {
        let (client, connection) = self.admin.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// A session that a locker knows nothing of, and the kit does not leave out.
    pub(crate) async fn stranger(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// Default times.
    pub(crate) fn config(&self) -> PostgresConfig {
        PostgresConfig::from_url(&self.url)
    }

    /// Times short enough for a test that waits for them: see [`shortened`].
    pub(crate) fn short(&self) -> PostgresConfig {
        shortened(self.config())
    }

    pub(crate) fn locker(&self) -> PostgresLocker {
        PostgresLocker::new(&self.short()).unwrap()
    }

    pub(crate) fn scoped(&self) -> PostgresScopedLocker {
        PostgresScopedLocker::new(&self.short()).unwrap()
    }

    /// A proxy before the server, and default times for what goes through it.
    pub(crate) fn proxy(&self) -> (Proxy, PostgresConfig) {
        let proxy = Proxy::start((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        let config = PostgresConfig::from_url(format!("{}?sslmode=disable", proxy.url(&self.url)));
        (proxy, config)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Those that hold or wait for a lock, beacons left out.
    async fn locks(&self) -> Vec<AdvisoryLock> {
        self.observer.key_locks().await.unwrap()
    }

    /// Sessions of clients but for those that keep house for a locker, of which each locker has one beside its pool at most.
    pub(crate) async fn pooled(&self) -> Vec<Session> {
        let (house, pooled): (Vec<_>, Vec<_>) = self.sessions().await.into_iter().partition(is_housekeeping);
        assert!(house.len() <= 2, "more than one for each of two lockers: {house:?}");
        pooled
    }

    /// Backends of the sessions that keep house.
    pub(crate) async fn housekeepers(&self) -> Vec<i32> {
        self.sessions().await.iter().filter(|session| is_housekeeping(session)).map(|session| session.pid).collect()
    }

    async fn sessions(&self) -> Vec<Session> {
        self.observer.sessions().await.unwrap()
    }

    /// The backend of the only holder.
    pub(crate) async fn holder(&self) -> i32 {
        let locks = self.locks().await;
        let holders: Vec<_> = locks.iter().filter(|lock| lock.granted).collect();
        let [holder] = holders[..] else { panic!("not one holder: {locks:?}") };
        holder.pid.unwrap()
    }

    /// Waits until so many queue in the server, and gives their backends.
    pub(crate) async fn waiters(&self, count: usize) -> Vec<i32> {
        // A loop of its own: with `wait_until`, whose condition borrows, this future could not be sent.
        let seen = timeout(AMPLE, async {
            loop {
                let locks = self.locks().await;
                let pids: Vec<_> = locks.iter().filter(|lock| !lock.granted).filter_map(|lock| lock.pid).collect();
                if pids.len() == count {
                    return pids;
                }
                sleep(ms(2)).await;
            }
        });
        seen.await.unwrap_or_else(|_| panic!("there never were {count} waiters"))
    }

    /// One who takes the key as soon as the server lets anybody have it, already in the queue. Watches that the holder does not
    /// think then that it still holds.
    pub(crate) async fn rival(&self, key: &'static str, holder: &Hold) -> Rival {
        self.queue(key, Some(holder.clone())).await
    }

    /// The same behind a holder in another process.
    pub(crate) async fn rival_of_another_process(&self, key: &'static str) -> Rival {
        self.queue(key, None).await
    }

    async fn queue(&self, key: &'static str, holder: Option<Hold>) -> Rival {
        let locker = self.locker();
        let task = tokio::spawn(async move {
            let guard = locker.acquire(key, Ttl::UNTIL_RELEASED).await.unwrap();
            let at = Instant::now();
            assert!(holder.is_none_or(|holder| holder.ensure_valid().is_err()), "two holders at once");
            (guard, at)
        });
        self.waiters(1).await;
        Rival(task)
    }

    /// Nothing is left in the server.
    pub(crate) async fn quiet(&self) {
        self.observer.quiet(AMPLE).await.unwrap();
    }
}

fn is_housekeeping(session: &Session) -> bool {
    session.application_name.as_deref().is_some_and(|name| name.ends_with(" housekeeping"))
}

/// h 200 ms, tau 500 ms, T 2 s, hence T_w 1 s.
pub(crate) fn shortened(config: PostgresConfig) -> PostgresConfig {
    config.with_heartbeat_interval(ms(200)).with_query_timeout(ms(500)).with_session_ttl(SHORT_TTL)
}

/// The same with a T that is far from T_w, which stays 1 s.
pub(crate) fn with_short_waits(config: PostgresConfig) -> PostgresConfig {
    shortened(config).with_session_ttl(Duration::from_secs(8))
}

/// T_w + check interval: for how long a waiter that is cut off or frozen keeps the key from those behind it.
pub(crate) const SHORT_CUT_WAITER: Duration = Duration::from_millis(1_500);

#[derive(Debug)]
pub(crate) struct Rival(JoinHandle<(LockGuard, Instant)>);

impl Rival {
    pub(crate) fn is_waiting(&self) -> bool {
        !self.0.is_finished()
    }

    /// The guard and when it came. Panics if the former holder thought then that it still held.
    pub(crate) async fn granted(self) -> (LockGuard, Instant) {
        self.0.await.unwrap()
    }
}

/// Measures how late something comes, beside how late the machine was.
#[derive(Debug)]
pub(crate) struct Watch {
    probe: StallProbe,
    mark: Mark,
    pub(crate) start: Instant,
}

impl Watch {
    pub(crate) fn start() -> Self {
        let probe = StallProbe::start().unwrap();
        Self { mark: probe.mark(), probe, start: Instant::now() }
    }

    /// What happens now is not later than the bound, but for what a busy machine takes.
    pub(crate) fn within(&self, bound: Duration, what: &str) {
        self.at_within(Instant::now(), bound, what);
    }

    /// Prints the figure too.
    pub(crate) fn at_within(&self, at: Instant, bound: Duration, what: &str) {
        let (took, stall) = (at.duration_since(self.start), self.probe.longest_since(self.mark));
        println!("{what}: {took:?}, bound {bound:?}, longest stall {stall:?}");
        self.ensure(at, bound, what);
    }

    pub(crate) fn ensure(&self, at: Instant, bound: Duration, what: &str) {
        let (took, stall) = (at.duration_since(self.start), self.probe.longest_since(self.mark));
        assert!(took <= bound + SLACK + stall, "{what}: {took:?} is later than {bound:?}; longest stall {stall:?}");
    }
}

/// The SQLSTATE in an error's sources.
pub(crate) fn state_of(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<DbError>() {
            return Some(error.code().code().to_owned());
        }
        next = error.source();
    }
    None
}

pub(crate) fn contention<T>(attempt: Attempt<T>) -> Contention {
    match attempt {
        Attempt::Acquired(_) => panic!("acquired"),
        Attempt::Contended(why) => why,
    }
}
