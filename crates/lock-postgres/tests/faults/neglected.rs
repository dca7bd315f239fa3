//! Futures and runtimes that nobody polls for a while.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use distributed_lock::{Backend, Contention, ErrorKind, Inspect, LockKey, LockerExt, Ttl};
use libtest_mimic::{Failed, Trial};
use lock_postgres::PostgresLocker;
use lock_testkit::{Cluster, proxy::Flow, requirement, wait_until};
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};

use crate::bench::{AMPLE, SHORT_TTL, Server, contention, shortened, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let on_cluster = |name: &'static str, test: fn(&Cluster)| {
        requirement::trial(name, Cluster::shared, move |cluster| {
            test(cluster);
            Ok::<_, Failed>(())
        })
    };
    vec![
        trial("neglected::grant_that_is_read_when_its_lease_is_over_is_no_hold_and_hides_nobody", late_grant),
        on_cluster("neglected::session_of_a_runtime_that_is_not_polled_is_not_used_from_another", unpolled),
        on_cluster("neglected::question_never_waits_for_a_session_that_nobody_opens", unpolled_opening),
        on_cluster("neglected::hold_after_a_suspend_has_its_heartbeats", after_suspend),
        on_cluster("neglected::wait_never_depends_on_a_runtime_that_is_not_polled", unpolled_wait),
    ]
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> bool {
    matches!(future.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
}

async fn late_grant(server: Server) {
    let locker = PostgresLocker::new(&shortened(server.config()).with_pool_size(2)).unwrap();
    locker.ping().await.unwrap();
    let mut neglected = pin!(locker.acquire("k", SHORT_TTL));
    assert!(!poll_once(neglected.as_mut()));
    let locks = async || server.observer.key_locks().await.unwrap().len();
    wait_until(AMPLE, "the server granted it", async || locks().await == 1).await.unwrap();
    wait_until(AMPLE, "the server gave it up again", async || locks().await == 0).await.unwrap();

    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    assert_eq!(neglected.await.unwrap_err().kind(), ErrorKind::Unavailable);
    // The hold is still known, and closing ends it.
    let why = contention(locker.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap());
    assert_eq!(why, Contention::HeldHere);
    guard.ensure_valid().unwrap();
    locker.close().await.unwrap();
    assert_eq!(guard.ensure_valid().unwrap_err().kind(), ErrorKind::Lost);
    server.quiet().await;
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn many_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// As in a program that blocks: each thread polls its runtime only while it waits for something.
fn unpolled(cluster: &Cluster) {
    let (main, first, second) = (many_threads(), one_thread(), one_thread());
    let server = main.block_on(Server::on(cluster));
    let locker = PostgresLocker::new(&server.config().with_pool_size(1)).unwrap();
    for runtime in [&first, &second, &first] {
        runtime.block_on(async {
            // Well below the query timeout of ten seconds.
            let acquired = timeout(AMPLE / 4, locker.acquire("k", Ttl::UNTIL_RELEASED)).await;
            acquired.unwrap().unwrap().release().await.unwrap().exclusive().unwrap();
        });
    }
    first.block_on(locker.close()).unwrap();
    main.block_on(server.quiet());
}

fn unpolled_wait(cluster: &Cluster) {
    let (main, first) = (many_threads(), one_thread());
    let server = main.block_on(Server::on(cluster));
    let locker = Arc::new(PostgresLocker::new(&shortened(server.config()).with_pool_size(1)).unwrap());
    // The session is opened here.
    first.block_on(locker.ping()).unwrap();
    main.block_on(async {
        let other = server.locker();
        let guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
        let waiting = Arc::clone(&locker);
        let waiter = tokio::spawn(async move { waiting.acquire("k", Ttl::UNTIL_RELEASED).await });
        server.waiters(1).await;
        guard.release().await.unwrap().exclusive().unwrap();
        let acquired = timeout(AMPLE, waiter).await.expect("the waiter hangs");
        acquired.unwrap().unwrap().release().await.unwrap().exclusive().unwrap();
        locker.close().await.unwrap();
        other.close().await.unwrap();
        server.quiet().await;
    });
}

/// The first who asks, while nothing answers, is on a runtime that is then not polled any more.
fn unpolled_opening(cluster: &Cluster) {
    let (main, first) = (many_threads(), one_thread());
    let server = main.block_on(Server::on(cluster));
    let (proxy, config) = server.proxy();
    let locker = Arc::new(PostgresLocker::new(&shortened(config)).unwrap());
    let key = LockKey::new("k").unwrap();
    proxy.down(Flow::Hold);
    first.block_on(async {
        let (asking, key) = (Arc::clone(&locker), key.clone());
        tokio::spawn(async move { asking.holders(&key).await });
        wait_until(AMPLE, "it is being opened", async || proxy.connections() > 0).await.unwrap();
    });
    proxy.pass();
    main.block_on(async {
        let asked = timeout(AMPLE, locker.holders(&key)).await.expect("the question hangs");
        assert!(asked.unwrap().is_empty());
    });
    drop(first);
    main.block_on(async {
        locker.close().await.unwrap();
        drop(proxy);
        server.quiet().await;
    });
}

/// For that long the timers of this thread's runtime stand still, while our own clock goes on.
#[expect(clippy::disallowed_methods, reason = "nothing else may run meanwhile")]
fn suspend(duration: Duration) {
    tokio::time::pause();
    std::thread::sleep(duration);
    tokio::time::resume();
}

/// The alarm for the first hold's heartbeat, which stays after it, goes off later by our clock than it was set for.
fn after_suspend(cluster: &Cluster) {
    one_thread().block_on(async {
        let server = Server::on(cluster).await;
        let (proxy, config) = server.proxy();
        let locker = PostgresLocker::new(&config.with_pool_size(1).with_watchdog(false)).unwrap();
        // Its first heartbeat is due after an eighth of its TTL.
        let guard = locker.acquire("k", SHORT_TTL * 8).await.unwrap();
        let pid = server.holder().await;
        guard.release().await.unwrap().exclusive().unwrap();
        suspend(SHORT_TTL);
        let guard = locker.acquire("k", SHORT_TTL).await.unwrap();
        proxy.reset_counts();
        assert_eq!(server.holder().await, pid, "on the same session");
        let beats = wait_until(AMPLE, "a heartbeat", async || proxy.counts().frontend(b'B') > 0);
        beats.await.unwrap();
        guard.ensure_valid().expect("the first heartbeat comes before the deadline");
        guard.release().await.unwrap().exclusive().unwrap();
        locker.close().await.unwrap();
        drop(proxy);
        server.quiet().await;
    });
}
