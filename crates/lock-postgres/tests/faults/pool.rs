//! The pool: one place, no place, and a thousand waits that are given up.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    error::Error as _,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use distributed_lock::{Backend, Contention, ErrorKind, LockGuard, LockerExt, LossCause, ScopedLockerExt, Ttl};
use futures_util::FutureExt;
use libtest_mimic::Trial;
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresScopedLocker};
use lock_testkit::{Detector, Proxy, observe::Session, proxy::Flow, requirement::rounds, wait_until};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_postgres::NoTls;

use crate::bench::{AMPLE, CHECK_INTERVAL, SHORT_DETECTION, Server, Watch, contention, ms, shortened, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("pool::pool_of_one_says_that_it_has_no_connection_within_its_bound", pool_of_one),
        trial("pool::ping_does_not_queue_behind_holders", ping_while_saturated),
        trial("pool::thousand_cancelled_waits_never_exceed_the_pool_and_leave_nothing", cancelled_waits),
        trial("pool::thousand_cancelled_scoped_waits_never_exceed_the_pool_and_leave_nothing", cancelled_scoped_waits),
        trial("pool::case_45_bodies_progress_whatever_the_lock_s_pool_does", case_45),
        trial("pool::case_45_pool_of_one_for_everything_is_bounded", case_45_pool_of_one),
        trial("pool::pool_handed_in_loses_and_frees_as_our_own", handed_in),
        trial(
            "pool::place_of_a_hold_renewed_to_a_longer_ttl_comes_back_only_with_the_end_of_its_session",
            renewed_place,
        ),
        trial(
            "pool::place_of_a_hold_with_two_changes_under_way_comes_back_only_with_the_end_of_its_session",
            changing_place,
        ),
        trial("pool::session_ended_while_it_lay_in_the_pool_is_replaced_unseen", ended_in_the_pool),
    ]
}

async fn pool_of_one(server: Server) {
    let locker = PostgresLocker::new(&server.short().with_pool_size(1).with_conn_wait_timeout(ms(300))).unwrap();
    // The connection is there, so that only the wait for it is measured.
    locker.ping().await.unwrap();
    let guard = locker.acquire("a", Ttl::UNTIL_RELEASED).await.unwrap();
    let watch = Watch::start();
    let refused = contention(locker.try_acquire("b", Ttl::UNTIL_RELEASED).await.unwrap());
    watch.within(ms(300), "a try without a connection returns");
    assert_eq!(refused, Contention::NoConnection);
    // The acquire's own budget can only shorten the wait for a connection.
    for (budget, bound) in [(ms(100), ms(100)), (ms(10_000), ms(300))] {
        let watch = Watch::start();
        let refused = contention(locker.acquire_within("b", Ttl::UNTIL_RELEASED, budget).await.unwrap());
        watch.within(bound, "a wait without a connection returns");
        assert_eq!(refused, Contention::NoConnection);
    }
    // Its own key is no other matter.
    assert_eq!(contention(locker.try_acquire("a", Ttl::UNTIL_RELEASED).await.unwrap()), Contention::NoConnection);
    // A place that comes in time is taken.
    let (freed, acquired) = tokio::join!(guard.release(), locker.acquire("b", Ttl::UNTIL_RELEASED));
    freed.unwrap().exclusive().unwrap();
    let guard = acquired.unwrap();
    assert_eq!(server.observer.sessions().await.unwrap().len(), 1);
    guard.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn ping_while_saturated(server: Server) {
    let locker = PostgresLocker::new(&server.config().with_pool_size(2).with_conn_wait_forever()).unwrap();
    let holds = [
        locker.acquire("a", Ttl::UNTIL_RELEASED).await.unwrap(),
        locker.acquire("b", Ttl::UNTIL_RELEASED).await.unwrap(),
    ];
    let watch = Watch::start();
    locker.ping().await.unwrap();
    watch.within(ms(500), "a ping beside a saturated pool answers");
    let left = wait_until(AMPLE, "the extra session goes", async || {
        server.observer.sessions().await.unwrap().len() == holds.len()
    });
    left.await.unwrap();
    for guard in holds {
        guard.release().await.unwrap().exclusive().unwrap();
    }
    locker.close().await.unwrap();
    server.quiet().await;
}

const PLACES: usize = 4;

async fn cancelled_waits(server: Server) {
    let config =
        server.short().with_pool_size(PLACES).with_watchdog(false).with_conn_wait_timeout(Duration::from_secs(30));
    let (locker, detector) = (Arc::new(PostgresLocker::new(&config).unwrap()), Detector::in_memory());
    give_up(&server, &detector, |name| {
        let (locker, detector) = (Arc::clone(&locker), detector.clone());
        async move {
            let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
            let inside = detector.enter("k", &name).await.unwrap();
            sleep(ms(1)).await;
            inside.leave().await.unwrap();
            guard.release().await.unwrap().exclusive().unwrap();
        }
    })
    .await;
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn cancelled_scoped_waits(server: Server) {
    let config =
        server.short().with_pool_size(PLACES).with_watchdog(false).with_conn_wait_timeout(Duration::from_secs(30));
    let (locker, detector) = (Arc::new(PostgresScopedLocker::new(&config).unwrap()), Detector::in_memory());
    give_up(&server, &detector, |name| {
        let (locker, detector) = (Arc::clone(&locker), detector.clone());
        async move {
            let body = async |_| {
                let inside = detector.enter("k", &name).await.unwrap();
                sleep(ms(1)).await;
                inside.leave().await.unwrap();
            };
            locker.with_lock("k", body).await.unwrap();
        }
    })
    .await;
    locker.close().await.unwrap();
    server.quiet().await;
}

/// Gives a thousand waits up after random times: for a place, in the server's queue, or as a holder. Meanwhile somebody else
/// takes the key again and again.
async fn give_up<F>(server: &Server, detector: &Detector, wait: impl Fn(String) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    const OTHERS: usize = 1;
    // Nobody keeps house here, since such a session cannot be told from another one while it starts.
    let other = PostgresLocker::new(&server.config().with_watchdog(false)).unwrap();
    let compete = async {
        loop {
            let guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
            let inside = detector.enter("k", "other").await.unwrap();
            sleep(ms(20)).await;
            inside.leave().await.unwrap();
            guard.release().await.unwrap().exclusive().unwrap();
        }
    };
    let (most, waited) = (Cell::new(0), RefCell::new(BTreeSet::new()));
    let sample = async {
        loop {
            let sessions = server.pooled().await;
            assert!(sessions.len() <= PLACES + OTHERS, "{} sessions: {sessions:?}", sessions.len());
            most.set(most.get().max(sessions.len()));
            let queued = |session: &&Session| session.wait_event.as_deref() == Some("advisory");
            waited.borrow_mut().extend(sessions.iter().filter(queued).map(|session| session.pid));
            sleep(ms(2)).await;
        }
    };
    let finished = Cell::new(0);
    let churn = async {
        let mut waits = JoinSet::new();
        let total = rounds(1_000);
        for round in 0..total {
            while waits.len() >= 16 {
                let ended = waits.join_next().await.unwrap().unwrap();
                finished.set(finished.get() + u64::from(ended));
            }
            // A `RandomState` differs from call to call.
            let (wait, patience) = (wait(round.to_string()), ms(RandomState::new().hash_one(()) % 150));
            waits.spawn(async move { timeout(patience, wait).await.is_ok() });
        }
        for ended in waits.join_all().await {
            finished.set(finished.get() + u64::from(ended));
        }
    };
    tokio::select! {
        () = churn => {}
        () = compete => {}
        () = sample => {}
    }
    let (most, waited) = (most.get(), waited.into_inner());
    println!("at most {most} sessions, {} of them queued, {} acquired", waited.len(), finished.get());
    assert!(!waited.is_empty(), "no wait reached the server's queue");
    assert_eq!(detector.violations().await.unwrap(), 0);
    other.close().await.unwrap();
}

/// The lock's connections are its own: bodies that use the application's pool never wait for one another's locks.
async fn case_45(server: Server) {
    let mut config = deadpool_postgres::Config::new();
    config.url = Some(server.url.clone());
    config.pool = Some(deadpool_postgres::PoolConfig::new(5));
    let app = config.create_pool(Some(deadpool_postgres::Runtime::Tokio1), NoTls).unwrap();
    let locker = Arc::new(PostgresScopedLocker::new(&server.config().with_conn_wait_forever()).unwrap());
    let mut runs = JoinSet::new();
    let watch = Watch::start();
    for n in 0..20 {
        let (locker, app) = (Arc::clone(&locker), app.clone());
        // Ten keys, and ten waiters for one more.
        let key = if n < 10 { format!("key {n}") } else { "one".into() };
        runs.spawn(async move {
            let body = async |_| app.get().await.unwrap().query_one("SELECT 1", &[]).await.unwrap().get::<_, i32>(0);
            locker.with_lock(key, body).await.unwrap()
        });
    }
    assert_eq!(runs.join_all().await, [1; 20]);
    watch.within(Duration::from_secs(5), "twenty runs end");
    locker.close().await.unwrap();
    app.close();
    server.quiet().await;
}

/// A body that needs the only connection for another lock is refused within the bound.
async fn case_45_pool_of_one(server: Server) {
    let config = server.short().with_pool_size(1).with_conn_wait_timeout(ms(300));
    let locker = PostgresScopedLocker::new(&config).unwrap();
    locker.ping().await.unwrap();
    let watch = Watch::start();
    let nested = locker.with_lock("a", async |_| locker.with_lock("b", async |_| ()).await).await.unwrap();
    watch.within(ms(300), "a nested run without a connection returns");
    let error = nested.unwrap_err().error;
    assert_eq!(error.kind(), ErrorKind::Contended, "{error:?}");
    let why = error.source().unwrap().downcast_ref::<Contention>();
    assert_eq!(why, Some(&Contention::NoConnection), "{error:?}");
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn handed_in(server: Server) {
    let mut own = deadpool_postgres::Config::new();
    own.url = Some(server.url.clone());
    own.pool = Some(deadpool_postgres::PoolConfig::new(2));
    let pool = own.create_pool(Some(deadpool_postgres::Runtime::Tokio1), NoTls).unwrap();
    let config = shortened(PostgresConfig::for_pool());
    let locker = PostgresLocker::with_pool(pool.clone(), &config).unwrap();
    // A session that ends.
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let watch = Watch::start();
    server.observer.terminate(server.holder().await).await.unwrap();
    assert_eq!(guard.lost().await.cause(), LossCause::SessionEnded);
    watch.within(SHORT_DETECTION, "the end of a session of a pool that was handed in is noticed");
    drop(guard);
    // A guard that is dropped.
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let rival = server.rival("k", &guard.hold()).await;
    let watch = Watch::start();
    drop(guard);
    let (guard, at) = rival.granted().await;
    watch.at_within(at, ms(100), "the key of a dropped guard on a pool that was handed in is free");
    guard.release().await.unwrap().exclusive().unwrap();
    // Nothing free in the pool.
    let used = [pool.get().await.unwrap(), pool.get().await.unwrap()];
    let impatient = PostgresLocker::with_pool(pool.clone(), &config.with_conn_wait_timeout(ms(300))).unwrap();
    let watch = Watch::start();
    let refused = contention(impatient.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap());
    watch.within(ms(300), "a try on a saturated pool that was handed in returns");
    assert_eq!(refused, Contention::NoConnection);
    drop(used);
    locker.close().await.unwrap();
    pool.close();
    server.quiet().await;
}

/// The server keeps the session for the new TTL, which is longer than it would have kept it before. Nothing tells us of its end.
async fn renewed_place(server: Server) {
    let renewed = ms(3_000);
    let change = async |guard: &mut LockGuard, proxy: &Proxy| {
        guard.renew(renewed).await.unwrap();
        proxy.both(Flow::Drop);
    };
    place_comes_back(server, ms(1_000), renewed, change).await;
}

/// Neither has reached the server, which keeps the session for the first TTL.
async fn changing_place(server: Server) {
    let first = ms(5_000);
    let change = async |guard: &mut LockGuard, proxy: &Proxy| {
        proxy.both(Flow::Drop);
        for ttl in [ms(1_500), ms(1_600)] {
            proxy.reset_counts();
            assert!(guard.renew(ttl).now_or_never().is_none());
            let is_sent = wait_until(AMPLE, "it is sent", async || proxy.counts().frontend(b'B') > 0);
            is_sent.await.unwrap();
        }
    };
    place_comes_back(server, first, first, change).await;
}

/// Of a hold that is dropped after a change; `longest` is what the server keeps its session for.
async fn place_comes_back(
    server: Server,
    ttl: Duration,
    longest: Duration,
    change: impl AsyncFnOnce(&mut LockGuard, &Proxy),
) {
    let (proxy, config) = server.proxy();
    let config = config.with_heartbeat_interval(ms(100)).with_query_timeout(ms(500)).with_session_ttl(ms(1_000));
    let config = config.with_pool_size(1).with_conn_wait_timeout(ms(20)).with_watchdog(false);
    let locker = PostgresLocker::new(&config).unwrap();
    let mut guard = locker.acquire("k", ttl).await.unwrap();
    let pid = server.holder().await;
    change(&mut guard, &proxy).await;
    let destroyed = Instant::now();
    drop(guard);
    // With the place a try gets as far as connecting, which nobody answers.
    let refused = timeout(AMPLE, async {
        loop {
            match locker.try_acquire("x", Ttl::UNTIL_RELEASED).await {
                Ok(attempt) => assert_eq!(contention(attempt), Contention::NoConnection),
                Err(error) => return error,
            }
        }
    });
    assert_eq!(refused.await.expect("the place comes back").kind(), ErrorKind::Unavailable);
    let (sessions, took) = (server.pooled().await, destroyed.elapsed());
    let is_gone = sessions.iter().all(|session| session.pid != pid);
    assert!(is_gone || took >= longest + CHECK_INTERVAL, "the place came back after {took:?}: {sessions:?}");
    proxy.pass();
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn ended_in_the_pool(server: Server) {
    let locker = server.locker();
    for round in 0..2 {
        locker
            .try_acquire("k", Ttl::UNTIL_RELEASED)
            .await
            .unwrap()
            .acquired()
            .unwrap()
            .release()
            .await
            .unwrap()
            .exclusive()
            .unwrap();
        // One that ends can be seen for a moment more.
        let mut pid = 0;
        let one = wait_until(AMPLE, "there is one session", async || match &server.pooled().await[..] {
            [session] => {
                pid = session.pid;
                true
            }
            _ => false,
        });
        one.await.unwrap();
        match round {
            0 => assert!(server.observer.terminate(pid).await.unwrap()),
            // By the server's own timer, since nobody used it.
            _ => server.quiet().await,
        }
        locker
            .try_acquire("k", Ttl::UNTIL_RELEASED)
            .await
            .unwrap()
            .acquired()
            .unwrap()
            .release()
            .await
            .unwrap()
            .exclusive()
            .unwrap();
    }
    locker.close().await.unwrap();
    server.quiet().await;
}
