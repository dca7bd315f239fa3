//! Observers on a real server.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test; clippy knows only those of the standard harness")]

mod common;

use std::process::ExitCode;
use std::time::Duration;

use common::block_on;
use lock_testkit::observe::{AdvisoryLock, QuietError};
use lock_testkit::{Cluster, Observer, wait_until};
use tokio_postgres::{Client, NoTls};

fn main() -> ExitCode {
    common::run(&[
        ("holders_are_found_for_every_key", holders_are_found_for_every_key),
        ("holder_and_waiter_are_told_apart", holder_and_waiter_are_told_apart),
        ("pair_keys_and_other_databases_are_not_holders", pair_keys_and_other_databases_are_not_holders),
        ("sessions_are_listed_and_terminated", sessions_are_listed_and_terminated),
        ("quiet_names_what_remains_and_waits_for_its_end", quiet_names_what_remains_and_waits_for_its_end),
        ("look_alikes_deceive_no_observer", look_alikes_deceive_no_observer),
    ])
}

/// A database of its own, an observer of it, and its URL.
async fn setting() -> (String, Observer) {
    let cluster = Cluster::shared().unwrap();
    let database = cluster.create_database().await.unwrap();
    let observer = Observer::connect(&cluster.admin_config(&database)).await.unwrap();
    (cluster.url_for("postgres", &database), observer)
}

async fn connect(url: &str) -> (Client, i32) {
    let (client, connection) = tokio_postgres::connect(&format!("{url}?application_name=app"), NoTls).await.unwrap();
    tokio::spawn(connection);
    let pid = client.query_one("SELECT pg_catalog.pg_backend_pid()", &[]).await.unwrap().get(0);
    (client, pid)
}

fn pids(locks: &[AdvisoryLock]) -> Vec<Option<i32>> {
    locks.iter().map(|lock| lock.pid).collect()
}

fn holders_are_found_for_every_key() {
    block_on(async {
        let (url, observer) = setting().await;
        let (client, pid) = connect(&url).await;
        let keys = [0, 1, -1, i64::MIN, i64::MAX, 1 << 32, (1 << 32) - 1, -(1 << 32)];
        for key in keys {
            assert_eq!(observer.holders(key).await.unwrap(), []);
            client.execute("SELECT pg_catalog.pg_advisory_lock($1)", &[&key]).await.unwrap();
            let holders = observer.holders(key).await.unwrap();
            assert_eq!(pids(&holders), [Some(pid)]);
            assert_eq!(
                (holders[0].key, holders[0].granted, holders[0].mode.as_str()),
                (Some(key), true, "ExclusiveLock")
            );
            assert_eq!(holders[0].application_name.as_deref(), Some("app"));
        }
        assert_eq!(observer.advisory_locks().await.unwrap().len(), keys.len());
    });
}

fn holder_and_waiter_are_told_apart() {
    block_on(async {
        let (url, observer) = setting().await;
        let ((holder, holding), (waiter, waiting)) = (connect(&url).await, connect(&url).await);
        holder.execute("SELECT pg_catalog.pg_advisory_lock(5)", &[]).await.unwrap();
        let waits = tokio::spawn(async move { waiter.execute("SELECT pg_catalog.pg_advisory_lock(5)", &[]).await });
        let queued = wait_until(Duration::from_secs(10), "the waiter queues", async || {
            observer.holders(5).await.unwrap().len() == 2
        });
        queued.await.unwrap();
        let locks = observer.holders(5).await.unwrap();
        assert_eq!(pids(&locks), [Some(holding), Some(waiting)]);
        assert_eq!((locks[0].granted, locks[1].granted), (true, false));
        let sessions = observer.sessions().await.unwrap();
        let session = sessions.iter().find(|session| session.pid == waiting).unwrap();
        assert_eq!(session.wait_event.as_deref(), Some("advisory"));
        assert!(observer.terminate(holding).await.unwrap());
        waits.await.unwrap().unwrap();
    });
}

fn pair_keys_and_other_databases_are_not_holders() {
    block_on(async {
        let ((url, observer), (other_url, other)) = (setting().await, setting().await);
        let ((client, _), (elsewhere, _)) = (connect(&url).await, connect(&other_url).await);
        client.execute("SELECT pg_catalog.pg_advisory_lock(7, 5)", &[]).await.unwrap();
        elsewhere.execute("SELECT pg_catalog.pg_advisory_lock(5)", &[]).await.unwrap();
        assert_eq!(observer.holders(5).await.unwrap(), []);
        let locks = observer.advisory_locks().await.unwrap();
        assert_eq!((locks.len(), locks[0].key, locks[0].first, locks[0].second), (1, None, Some(7), Some(5)));
        assert_eq!(other.holders(5).await.unwrap().len(), 1);
    });
}

fn sessions_are_listed_and_terminated() {
    block_on(async {
        let (url, observer) = setting().await;
        assert_eq!(observer.sessions().await.unwrap(), [], "the observer does not see itself");
        let (client, pid) = connect(&url).await;
        client.batch_execute("BEGIN").await.unwrap();
        let sessions = observer.sessions().await.unwrap();
        assert_eq!(sessions.len(), 1);
        assert_eq!((sessions[0].pid, sessions[0].state.as_deref()), (pid, Some("idle in transaction")));
        assert_eq!(sessions[0].query.as_deref(), Some("BEGIN"));
        assert!(observer.terminate(pid).await.unwrap());
        observer.quiet(Duration::from_secs(10)).await.unwrap();
        assert!(client.query("SELECT 1", &[]).await.is_err());
        assert!(!observer.terminate(pid).await.unwrap());
    });
}

fn quiet_names_what_remains_and_waits_for_its_end() {
    block_on(async {
        let (url, observer) = setting().await;
        let (client, pid) = connect(&url).await;
        client.execute("SELECT pg_catalog.pg_advisory_lock(5)", &[]).await.unwrap();
        match observer.quiet(Duration::from_millis(50)).await {
            Err(QuietError::Remains { locks, sessions }) => {
                assert_eq!(pids(&locks), [Some(pid)]);
                assert_eq!(sessions.len(), 1);
            }
            other => panic!("{other:?}"),
        }
        client.execute("SELECT pg_catalog.pg_advisory_unlock(5)", &[]).await.unwrap();
        assert!(observer.quiet(Duration::from_millis(50)).await.is_err(), "an idle session is not quiet");
        drop(client);
        observer.quiet(Duration::from_secs(10)).await.unwrap();
        // An observer that cannot ask must not take silence for quiet.
        let (other, _) = connect(&url).await;
        let end = "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
                   WHERE datname = pg_catalog.current_database() AND application_name = 'lock-testkit'";
        other.execute(end, &[]).await.unwrap();
        assert!(matches!(observer.quiet(Duration::from_secs(10)).await, Err(QuietError::Observer(_))));
    });
}

fn look_alikes_deceive_no_observer() {
    block_on(async {
        let (url, observer) = setting().await;
        let (client, pid) = connect(&url).await;
        let evil = "
            CREATE SCHEMA evil;
            CREATE VIEW evil.pg_locks AS SELECT * FROM pg_catalog.pg_locks WHERE false;
            CREATE FUNCTION evil.no(text, text) RETURNS bool LANGUAGE sql AS 'SELECT false';
            CREATE OPERATOR evil.= (FUNCTION = evil.no, LEFTARG = text, RIGHTARG = text);
            ALTER ROLE postgres SET search_path = evil, pg_catalog";
        client.batch_execute(evil).await.unwrap();
        client.execute("SELECT pg_catalog.pg_advisory_lock(5)", &[]).await.unwrap();
        let database = url.rsplit_once('/').unwrap().1;
        let late = Observer::connect(&Cluster::shared().unwrap().admin_config(database)).await.unwrap();
        client.batch_execute("ALTER ROLE postgres RESET search_path").await.unwrap();
        for observer in [observer, late] {
            assert_eq!(pids(&observer.holders(5).await.unwrap()), [Some(pid)]);
            assert_eq!(observer.sessions().await.unwrap().len(), 1);
        }
    });
}
