//! Waits that elapse, acquires that are dropped, locks that come and go: nothing is left of any of them.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use distributed_lock::{Attempt, Backend, Error, ErrorKind, LockerExt, ScopedLockerExt, Ttl, Wait};
use libtest_mimic::Trial;
use lock_postgres::{PostgresLocker, PostgresScopedLocker};
use lock_testkit::{Detector, Observer, proxy::Flow, requirement::rounds, wait_until};
use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::bench::{AMPLE, Server, ms, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("leftovers::case_30_waits_that_elapse_at_the_edge_leave_nothing", waits_at_the_edge),
        trial("leftovers::case_31_acquires_dropped_at_random_poison_no_connection", random_drops),
        trial("leftovers::case_32_thousand_cycles_leave_nothing_behind_any_of_them", cycles),
        trial("leftovers::waits_for_a_place_that_are_given_up_leave_no_task", no_tasks),
        trial("leftovers::contention_over_a_slow_network_costs_no_session", slow_contention),
        trial("leftovers::session_at_rest_has_one_beacon_and_nothing_else", one_beacon),
    ]
}

async fn waits_at_the_edge(server: Server) {
    /// A connection that could not be made in time is no failure here: destroyed ones are replaced all the time.
    fn unless_unconnected<T>(attempt: Result<Attempt<T>, Error>) -> Option<T> {
        match attempt {
            Ok(attempt) => attempt.acquired(),
            Err(error) if error.kind() == ErrorKind::Unavailable => None,
            Err(error) => panic!("{error:?}"),
        }
    }
    let session = Arc::new(PostgresLocker::new(&server.config().with_pool_size(6)).unwrap());
    let scoped = Arc::new(PostgresScopedLocker::new(&server.config().with_pool_size(6)).unwrap());
    let detector = Detector::in_memory();
    let mut tasks = JoinSet::new();
    for n in 0..12 {
        let (session, scoped, detector) = (Arc::clone(&session), Arc::clone(&scoped), detector.clone());
        tasks.spawn(async move {
            let mut acquired = 0;
            for round in 0..rounds(60) {
                let owner = format!("{n} {round}");
                let inside = async {
                    let inside = detector.enter("k", &owner).await.unwrap();
                    sleep(ms(1)).await;
                    inside.leave().await.unwrap();
                };
                if n % 2 == 0 {
                    let waited = session.acquire_within("k", Ttl::UNTIL_RELEASED, ms(2)).await;
                    let Some(guard) = unless_unconnected(waited) else { continue };
                    inside.await;
                    guard.release().await.unwrap().exclusive().unwrap();
                    acquired += 1;
                } else {
                    let ran = scoped.with_lock_within("k", ms(2), async |_| inside.await).await;
                    acquired += u64::from(unless_unconnected(ran.map_err(Error::from)).is_some());
                }
            }
            acquired
        });
    }
    let acquired: u64 = tasks.join_all().await.iter().sum();
    println!("{acquired} of {} waits of 2 ms acquired", 12 * rounds(60));
    assert!(acquired > 0);
    assert_eq!(detector.violations().await.unwrap(), 0);
    assert_eq!(server.observer.key_locks().await.unwrap(), [], "somebody still holds or waits");
    session.close().await.unwrap();
    scoped.close().await.unwrap();
    server.quiet().await;
}

async fn random_drops(server: Server) {
    let session = PostgresLocker::new(&server.short().with_pool_size(2)).unwrap();
    let scoped = PostgresScopedLocker::new(&server.short().with_pool_size(2)).unwrap();
    let third = server.locker();
    let mut finished = [0_u32; 3];
    for round in 0..rounds(60) {
        let guard = match round % 2 {
            0 => third.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap().acquired(),
            _ => None,
        };
        let patience = Duration::from_micros(RandomState::new().hash_one(round) % 5_000);
        let acquire = async {
            let guard = session.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
            guard.release().await.unwrap().exclusive().unwrap();
        };
        finished[0] += u32::from(timeout(patience, acquire).await.is_ok());
        finished[1] += u32::from(timeout(patience, scoped.with_lock("k", async |_| ())).await.is_ok());
        let run = scoped
            .with_transaction("k", Wait::Forever, |tx| Box::pin(async move { tx.batch_execute("SELECT 1").await }));
        finished[2] += u32::from(timeout(patience, run).await.is_ok());
        drop(guard);
        for locker in [&session as &dyn Backend, &scoped] {
            locker.ping().await.unwrap();
        }
    }
    println!("ended in time: {finished:?} of {}", rounds(60));
    // Nothing that was dropped holds or waits any more, but for what the server needs to see that.
    let left = wait_until(AMPLE, "no lock is left", async || server.observer.key_locks().await.unwrap().is_empty());
    left.await.unwrap();
    let idle = wait_until(AMPLE, "every session is idle", async || {
        server.observer.sessions().await.unwrap().iter().all(|session| session.state.as_deref() == Some("idle"))
    });
    idle.await.unwrap();
    session.close().await.unwrap();
    scoped.close().await.unwrap();
    third.close().await.unwrap();
    server.quiet().await;
}

async fn cycles(server: Server) {
    let locker = Arc::new(server.locker());
    let observer = Arc::new(Observer::connect(&server.admin).await.unwrap());
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let (locker, observer) = (Arc::clone(&locker), Arc::clone(&observer));
        tasks.spawn(async move {
            for round in 0..rounds(1_000).div_ceil(6) {
                // Each task has keys of its own, of twenty in all.
                let key = format!("{}", task + 6 * (round % 3));
                let guard = locker.acquire(key, Ttl::UNTIL_RELEASED).await.unwrap();
                guard.release().await.unwrap().exclusive().unwrap();
                if round % 10 == 0 {
                    observer.key_locks().await.unwrap();
                }
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(observer.key_locks().await.unwrap(), []);
    locker.close().await.unwrap();
    server.quiet().await;
}

/// Also with a TTL that the session must be brought to, and back from.
async fn slow_contention(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&config.with_pool_size(1)).unwrap();
    let other = server.locker();
    let minute = Ttl::new(Duration::from_secs(60)).unwrap();
    let guard = locker.acquire("k", minute).await.unwrap();
    let pid = server.holder().await;
    guard.release().await.unwrap().exclusive().unwrap();
    let guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    proxy.both(Flow::Delay(ms(90)));
    for ttl in [Ttl::UNTIL_RELEASED, minute] {
        assert!(locker.try_acquire("k", ttl).await.unwrap().is_contended());
        assert!(locker.acquire_within("k", ttl, ms(1_000)).await.unwrap().is_contended());
    }
    proxy.pass();
    guard.release().await.unwrap().exclusive().unwrap();
    let guard = locker.acquire("k", minute).await.unwrap();
    assert_eq!(server.holder().await, pid, "a session that answered was thrown away");
    guard.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    other.close().await.unwrap();
    drop(proxy);
    server.quiet().await;
}

/// Whatever TTL was asked for, and whether it was granted, contended or waited for in vain.
async fn one_beacon(server: Server) {
    let locker = PostgresLocker::new(&server.config().with_pool_size(1)).unwrap();
    let other = server.locker();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let pid = server.holder().await;
    // What the only session of the first locker has: beacons with their T, and `None` for each key.
    let has = async || {
        let locks = server.observer.advisory_locks().await.unwrap();
        locks.iter().filter(|lock| lock.pid == Some(pid)).map(|lock| lock.first).collect::<Vec<_>>()
    };
    assert_eq!(has().await.len(), 2, "the lock and one beacon");
    guard.release().await.unwrap().exclusive().unwrap();
    assert_eq!(has().await, [Some(17_000)]);
    for seconds in [1_u32, 20, 17, 60, 5, 30] {
        let ttl = Ttl::new(Duration::from_secs(seconds.into())).unwrap();
        let at_rest = [Some(i64::from(if (17..=34).contains(&seconds) { seconds } else { 17 }) * 1_000)];
        let guard = locker.acquire("k", ttl).await.unwrap();
        assert_eq!(server.holder().await, pid);
        assert_eq!(has().await.len(), 2, "the lock and one beacon");
        guard.release().await.unwrap().exclusive().unwrap();
        assert_eq!(has().await, at_rest, "after a hold of {ttl}");

        let guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
        assert!(locker.try_acquire("k", ttl).await.unwrap().is_contended());
        assert_eq!(has().await, at_rest, "after a try of {ttl}");
        assert!(locker.acquire_within("k", ttl, ms(5)).await.unwrap().is_contended());
        assert_eq!(has().await, at_rest, "after a wait of {ttl}");
        guard.release().await.unwrap().exclusive().unwrap();
    }
    locker.close().await.unwrap();
    other.close().await.unwrap();
    server.quiet().await;
}

/// However long a place may be waited for, whoever gives up is gone.
async fn no_tasks(server: Server) {
    const GIVEN_UP: usize = 200;
    let locker = PostgresLocker::new(&server.config().with_pool_size(1).with_conn_wait_forever()).unwrap();
    let guard = locker.acquire("a", Ttl::UNTIL_RELEASED).await.unwrap();
    let before = Handle::current().metrics().num_alive_tasks();
    // Saturating: what connected may end only now.
    let left = || Handle::current().metrics().num_alive_tasks().saturating_sub(before);
    for _ in 0..GIVEN_UP {
        timeout(ms(1), locker.acquire("b", Ttl::UNTIL_RELEASED)).await.unwrap_err();
    }
    let gone = wait_until(ms(1_000), "nobody waits for a place", async || left() < GIVEN_UP / 10);
    gone.await.unwrap_or_else(|_| panic!("{} tasks are left of {GIVEN_UP} waits that were given up", left()));
    guard.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}
