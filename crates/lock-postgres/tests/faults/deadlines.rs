//! One deadline for pool, connection and queue, whatever the budget and whatever the store does.

use std::time::Duration;

use distributed_lock::{
    AcquireOptions, Attempt, Backend, Contention, ErrorKind, LockKey, Locker, LockerExt, Result, ScopedLocker,
    ScopedLockerExt, ScopedOptions, Ttl, Wait,
};
use libtest_mimic::Trial;
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresScopedLocker};
use lock_testkit::proxy::Flow;
use tokio::time::{Instant, timeout};

use crate::bench::{AMPLE, Server, Watch, ms, shortened, trial};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Around every edge: of rounding, and of what a setting of the server can say (24.8 days).
const SHORT: [Duration; 5] =
    [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(400), ms(1), Duration::from_secs(1)];
const LONG: [Duration; 4] = [
    DAY.saturating_mul(249).checked_div(10).unwrap(),
    DAY.saturating_mul(25),
    Duration::from_secs(u64::MAX),
    Duration::MAX,
];

const CONN_WAIT: Duration = ms(300);

/// What each way to a lock makes of a budget: whether it got the lock, which it then gives back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Session,
    Scoped,
    Transaction,
}

struct Lockers {
    session: PostgresLocker,
    scoped: PostgresScopedLocker,
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for way in [Way::Session, Way::Scoped, Way::Transaction] {
        let name = |state: &str| format!("deadlines::case_49_{}_{state}", format!("{way:?}").to_lowercase());
        trials.push(trial(&name("free_key_is_acquired_whatever_the_budget"), move |server| free(server, way)));
        trials.push(trial(&name("held_key_is_contended_in_time_or_waited_for"), move |server| held(server, way)));
        trials.push(trial(&name("full_pool_is_contended_in_time"), move |server| full(server, way)));
        trials.push(trial(&name("silent_server_is_unavailable_in_time"), move |server| silent(server, way, true)));
        trials.push(trial(&name("silent_server_is_no_connection_in_time"), move |server| silent(server, way, false)));
    }
    trials
}

impl Lockers {
    /// With their connections made, so that only what is asked for is measured.
    async fn new(config: &PostgresConfig) -> Self {
        let lockers =
            Self { session: PostgresLocker::new(config).unwrap(), scoped: PostgresScopedLocker::new(config).unwrap() };
        lockers.session.ping().await.unwrap();
        lockers.scoped.ping().await.unwrap();
        lockers
    }

    async fn acquire(&self, way: Way, key: &str, wait: Duration) -> Result<Attempt<()>> {
        let (key, wait) = (LockKey::new(key)?, Wait::UpTo(wait));
        match way {
            Way::Session => {
                let options = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_wait(wait);
                match self.session.acquire_opts(&key, &options).await? {
                    Attempt::Acquired(guard) => Ok(Attempt::Acquired(guard.release().await?.exclusive()?)),
                    Attempt::Contended(why) => Ok(Attempt::Contended(why)),
                }
            }
            Way::Scoped => {
                let options = ScopedOptions::new(wait);
                let run = self.scoped.run_scoped(&key, &options, Box::new(|_| Box::pin(async {})));
                Ok(run.await?.map(|release| release.exclusive().unwrap()))
            }
            Way::Transaction => {
                let run = self.scoped.with_transaction(key, wait, |_| Box::pin(async { Ok::<_, ()>(()) }));
                Ok(run.await.map_err(|failed| failed.error)?.map(Result::unwrap))
            }
        }
    }

    async fn close(self) {
        self.session.close().await.unwrap();
        self.scoped.close().await.unwrap();
    }
}

async fn free(server: Server, way: Way) {
    let lockers = Lockers::new(&server.short()).await;
    for wait in SHORT.into_iter().chain(LONG) {
        let watch = Watch::start();
        let attempt = lockers.acquire(way, "k", wait).await.unwrap();
        watch.ensure(Instant::now(), ms(250), &format!("{way:?}, free, {wait:?}"));
        assert!(!attempt.is_contended(), "{wait:?}: {attempt:?}");
    }
    lockers.close().await;
    server.quiet().await;
}

async fn held(server: Server, way: Way) {
    let (lockers, other) = (Lockers::new(&server.short()).await, server.locker());
    let mut guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    for wait in SHORT {
        let watch = Watch::start();
        let attempt = lockers.acquire(way, "k", wait).await.unwrap();
        watch.ensure(Instant::now(), wait + ms(250), &format!("{way:?}, held, {wait:?}"));
        let expected = if wait.is_zero() { Contention::Held } else { Contention::WaitElapsed };
        assert!(matches!(attempt, Attempt::Contended(why) if why == expected), "{wait:?}");
        assert!(watch.start.elapsed() >= wait, "{wait:?}: it came back early");
    }
    for wait in LONG {
        let acquire = lockers.acquire(way, "k", wait);
        let release = async {
            server.waiters(1).await;
            guard.release().await.unwrap().exclusive().unwrap();
        };
        let (attempt, ()) = tokio::join!(timeout(AMPLE, acquire), release);
        assert!(!attempt.expect("the key was free").unwrap().is_contended(), "{wait:?}");
        guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    }
    guard.release().await.unwrap().exclusive().unwrap();
    other.close().await.unwrap();
    lockers.close().await;
    server.quiet().await;
}

async fn full(server: Server, way: Way) {
    let config = server.short().with_pool_size(1).with_conn_wait_timeout(CONN_WAIT);
    let lockers = Lockers::new(&config).await;
    let guard = lockers.session.acquire("other", Ttl::UNTIL_RELEASED).await.unwrap();
    let test = async {
        for wait in SHORT.into_iter().chain(LONG) {
            let watch = Watch::start();
            let attempt = lockers.acquire(way, "k", wait).await.unwrap();
            let bound = if wait.is_zero() { CONN_WAIT } else { CONN_WAIT.min(wait) };
            watch.ensure(Instant::now(), bound + ms(250), &format!("{way:?}, full, {wait:?}"));
            assert!(matches!(attempt, Attempt::Contended(Contention::NoConnection)), "{wait:?}: {attempt:?}");
        }
    };
    lockers.scoped.with_lock("another", async |_| test.await).await.unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    lockers.close().await;
    server.quiet().await;
}

/// With a connection that is there, or with one that has to be made.
async fn silent(server: Server, way: Way, connected: bool) {
    const QUERY_TIMEOUT: Duration = ms(500);
    for wait in SHORT.into_iter().chain(LONG) {
        let (proxy, config) = server.proxy();
        let config = shortened(config).with_conn_wait_timeout(CONN_WAIT);
        let lockers = match connected {
            true => Lockers::new(&config).await,
            false => Lockers {
                session: PostgresLocker::new(&config).unwrap(),
                scoped: PostgresScopedLocker::new(&config).unwrap(),
            },
        };
        proxy.both(Flow::Drop);
        let watch = Watch::start();
        let error = lockers.acquire(way, "k", wait).await.unwrap_err();
        let limit = if connected { QUERY_TIMEOUT } else { CONN_WAIT };
        let bound = if wait.is_zero() { limit } else { limit.min(wait) };
        watch.ensure(Instant::now(), bound + ms(250), &format!("{way:?}, silent, {wait:?}"));
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{wait:?}: {error:?}");
        drop((lockers, proxy));
    }
    server.quiet().await;
}
