//! What happens to a session behind its locker's back, and what a body leaves in it.

use std::{collections::BTreeMap, time::Duration};

use distributed_lock::{Backend, ErrorKind, LockerExt, LossCause, Release, Ttl, Wait};
use libtest_mimic::Trial;
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresScopedLocker};
use lock_testkit::{Proxy, proxy::Flow, wait_until};

use crate::{
    bench::{AMPLE, SHORT_DETECTION, SHORT_TTL, Server, Watch, shortened, state_of, trial},
    intruder::Intruder,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("meddling::case_32_unlock_of_everything_behind_its_back_is_a_loss", unlocked_behind_its_back),
        trial("meddling::case_32_release_that_finds_nothing_is_a_loss", release_finds_nothing),
        trial("meddling::case_32_session_that_still_has_the_key_after_a_release_ends_with_its_idle_limit", held_twice),
        trial("meddling::session_without_its_beacon_is_not_used_after_a_contended_try", beaconless_try),
        trial("meddling::session_without_its_beacon_is_not_used_after_a_wait_that_elapsed", beaconless_wait),
        trial("meddling::session_without_its_beacon_is_not_used_after_a_release", beaconless_release),
        trial("meddling::session_without_its_beacon_is_not_used_after_a_refused_acquire", beaconless_grant),
        trial("meddling::case_33_what_a_transaction_leaves_in_its_session_reaches_nobody", tainted_session),
    ]
}

async fn intruded(server: &Server) -> (Intruder, PostgresConfig) {
    let intruder = Intruder::start(server.port()).await;
    let direct = format!("127.0.0.1:{}", server.port());
    let url = server.url.replace(&direct, &intruder.address.to_string());
    (intruder, PostgresConfig::from_url(format!("{url}?sslmode=disable")).with_pool_size(1))
}

async fn unlocked_behind_its_back(server: Server) {
    for statements in ["SELECT pg_advisory_unlock_all()", "DISCARD ALL"] {
        let (intruder, config) = intruded(&server).await;
        let locker = PostgresLocker::new(&shortened(config)).unwrap();
        let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
        let pid = server.holder().await;
        let watch = Watch::start();
        intruder.run(statements).await;
        let loss = guard.lost().await;
        watch.within(SHORT_DETECTION, "an unlock behind its back is noticed");
        if statements == "DISCARD ALL" {
            // It takes the prepared statements too, so that the server refuses the heartbeat and says nothing of the lock.
            assert_eq!((loss.cause(), state_of(&loss).as_deref()), (LossCause::HeartbeatTimeout, Some("26000")));
        } else {
            assert_eq!(loss.cause(), LossCause::NotOurs);
        }
        assert!(matches!(guard.release().await, Ok(Release::Lost(_))));
        let gone = wait_until(AMPLE, "the session is destroyed", async || {
            server.observer.sessions().await.unwrap().iter().all(|session| session.pid != pid)
        });
        gone.await.unwrap();
        locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap().release().await.unwrap().exclusive().unwrap();
        locker.close().await.unwrap();
        server.quiet().await;
    }
}

async fn release_finds_nothing(server: Server) {
    let (intruder, config) = intruded(&server).await;
    // Default times: no heartbeat finds it before the release does.
    let locker = PostgresLocker::new(&config).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let pid = server.holder().await;
    intruder.run("SELECT pg_advisory_unlock_all()").await;
    guard.ensure_valid().unwrap();
    let released = guard.release().await.unwrap();
    assert_eq!(released.exclusive().unwrap_err().cause(), LossCause::NotOurs);
    let again = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    assert_ne!(server.holder().await, pid, "it went back into the pool");
    again.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn held_twice(server: Server) {
    let (intruder, config) = intruded(&server).await;
    let locker = PostgresLocker::new(&shortened(config)).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let locks = server.observer.advisory_locks().await.unwrap();
    let key = locks.iter().find_map(|lock| lock.key).unwrap();
    intruder.run(&format!("SELECT pg_advisory_lock({key})")).await;
    let _how = guard.release().await;
    // At the latest by the idle limit of a session that nobody uses.
    let free =
        wait_until(SHORT_TTL * 2, "the key is free", async || server.observer.holders(key).await.unwrap().is_empty());
    free.await.unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

/// Longer than a session at rest may publish, so that it is brought to it, and back from it.
const MINUTE: Duration = Duration::from_secs(60);

const TAKE_BEACON: &str = "\
    SELECT pg_advisory_unlock(classid::int4, objid::int4), pg_advisory_unlock(classid::int4, objid::int4) \
    FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND pid = pg_backend_pid()";

/// A locker with one session, whose backend is known, and nothing to do.
async fn rested(config: &PostgresConfig, server: &Server) -> (PostgresLocker, i32) {
    let locker = PostgresLocker::new(&config.clone().with_watchdog(false)).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let pid = server.holder().await;
    guard.release().await.unwrap().exclusive().unwrap();
    (locker, pid)
}

/// The next hold is on another session than that.
async fn is_replaced(locker: &PostgresLocker, pid: i32, server: &Server) {
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    assert_ne!(server.holder().await, pid, "it went back into the pool");
    guard.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
}

/// Taken after the try was answered, and before it is brought back from the TTL.
async fn beaconless_try(server: Server) {
    let intruder = Intruder::start(server.port()).await;
    let proxy = Proxy::start(intruder.address).unwrap();
    let direct = format!("127.0.0.1:{}", server.port());
    let url = server.url.replace(&direct, &proxy.address().to_string());
    let config = PostgresConfig::from_url(format!("{url}?sslmode=disable")).with_pool_size(1);
    let ((locker, pid), other) = (rested(&config, &server).await, server.locker());
    let guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    proxy.reset_counts();
    proxy.down(Flow::Hold);
    let intrude = async {
        let answered = wait_until(AMPLE, "beacon and try are answered", async || proxy.round_trips() == Some(2));
        answered.await.unwrap();
        intruder.run("SELECT pg_advisory_unlock_all()").await;
        proxy.pass();
    };
    let (tried, ()) = tokio::join!(locker.try_acquire("k", MINUTE), intrude);
    assert!(tried.unwrap().is_contended());
    guard.release().await.unwrap().exclusive().unwrap();
    is_replaced(&locker, pid, &server).await;
    other.close().await.unwrap();
    server.quiet().await;
}

async fn beaconless_wait(server: Server) {
    let (intruder, config) = intruded(&server).await;
    let ((locker, pid), other) = (rested(&config, &server).await, server.locker());
    let guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    intruder.run("SELECT pg_advisory_unlock_all()").await;
    let waited = locker.acquire_within("k", Ttl::UNTIL_RELEASED, Duration::from_millis(500)).await;
    assert!(waited.unwrap().is_contended());
    guard.release().await.unwrap().exclusive().unwrap();
    is_replaced(&locker, pid, &server).await;
    other.close().await.unwrap();
    server.quiet().await;
}

/// The key was ours to the end, so the release is one.
async fn beaconless_release(server: Server) {
    let (intruder, config) = intruded(&server).await;
    let (locker, pid) = rested(&config, &server).await;
    let guard = locker.acquire("k", MINUTE).await.unwrap();
    intruder.run(TAKE_BEACON).await;
    assert_eq!(server.observer.advisory_locks().await.unwrap().len(), 1, "the key, and no beacon");
    guard.release().await.unwrap().exclusive().unwrap();
    is_replaced(&locker, pid, &server).await;
    server.quiet().await;
}

/// A hold without a beacon would be lost with its first heartbeat.
async fn beaconless_grant(server: Server) {
    let (intruder, config) = intruded(&server).await;
    let (locker, pid) = rested(&config, &server).await;
    intruder.run("SELECT pg_advisory_unlock_all()").await;
    let refused = locker.acquire("k", MINUTE).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Unavailable && refused.is_retryable(), "{refused:?}");
    is_replaced(&locker, pid, &server).await;
    server.quiet().await;
}

/// The body had the connection for itself. Whatever it left there, the next to use it must not meet.
async fn tainted_session(server: Server) {
    let taints = [
        ("SET idle_in_transaction_session_timeout = 0", "idle_in_transaction_session_timeout"),
        ("SET idle_session_timeout = 0", "idle_session_timeout"),
        ("SET client_connection_check_interval = 0", "client_connection_check_interval"),
        ("SET statement_timeout = '9s'", "statement_timeout"),
        ("SET search_path = public", "search_path"),
        ("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE", "default_transaction_isolation"),
        ("LISTEN something", ""),
        ("SET ROLE pg_monitor", "role"),
        ("CREATE TEMP TABLE leftover ()", ""),
        ("DECLARE leftover CURSOR WITH HOLD FOR SELECT 1", ""),
        ("SELECT pg_catalog.pg_advisory_lock(5)", ""),
    ];
    let mut tainted = Vec::new();
    for (statement, setting) in taints {
        let config = server.config().with_pool_size(1);
        let locker = PostgresScopedLocker::new(&config).unwrap();
        let before = state(&locker).await;
        let run = locker
            .with_transaction("k", Wait::Forever, |tx| Box::pin(async move { tx.batch_execute(statement).await }));
        run.await.unwrap().acquired().unwrap().unwrap();
        let after = state(&locker).await;
        if before != after {
            let changed: Vec<_> = after.iter().filter(|(name, value)| before.get(*name) != Some(value)).collect();
            tainted.push(format!("{statement}: {changed:?}, expected of {setting:?}"));
        }
        locker.close().await.unwrap();
        server.quiet().await;
    }
    assert!(tainted.is_empty(), "{tainted:#?}");
}

/// What the next user of the only connection finds there.
async fn state(locker: &PostgresScopedLocker) -> BTreeMap<String, String> {
    const QUERY: &str = "
        SELECT name::text, setting::text FROM pg_catalog.pg_settings WHERE source = 'session'
        UNION ALL SELECT 'listens', channel FROM pg_catalog.pg_listening_channels() AS l(channel)
        UNION ALL SELECT 'role', current_user::text
        UNION ALL SELECT 'temporary', relname::text FROM pg_catalog.pg_class WHERE relpersistence = 't'
        UNION ALL SELECT 'cursor', name FROM pg_catalog.pg_cursors WHERE is_holdable
        UNION ALL SELECT 'locks', pg_catalog.count(*)::text FROM pg_catalog.pg_locks
            WHERE locktype = 'advisory' AND pid = pg_catalog.pg_backend_pid()";
    let run = locker.with_transaction("state", Wait::Forever, |tx| {
        Box::pin(async move {
            tx.batch_execute("SET LOCAL statement_timeout = 0").await?;
            tx.query(QUERY, &[]).await
        })
    });
    let rows = run.await.unwrap().acquired().unwrap().unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}
