//! Passwords that come from a file or from code, and change while the process runs.

use std::{
    fs,
    future::pending,
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use distributed_lock::{Backend, ErrorKind, LockerExt, ScopedLockerExt, Ttl};
use libtest_mimic::Trial;
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresScopedLocker};
use lock_testkit::Cluster;
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_postgres::{Client, NoTls};

use crate::{AMPLE, gone, seen, trial};

const OLD: &str = "canary-old-51c0";
const NEW: &str = "canary-new-9e44";

pub(crate) fn trials() -> Vec<Trial> {
    let with_password = || Cluster::builder().password_auth().start();
    vec![
        trial("password::file_that_changed_is_read_at_the_next_connect", with_password, changed_file),
        trial("password::callback_is_asked_once_per_connect", with_password, asked_once),
        trial("password::callback_that_fails_does_not_spoil_the_next_connect", with_password, failing_callback),
        trial("password::callback_that_never_answers_ends_within_the_connect_timeout", with_password, silent_callback),
        trial("password::two_sources_are_refused_before_anything_connects", with_password, two_sources),
    ]
}

async fn alter(admin: &Client, password: &str) {
    admin.batch_execute(&format!("ALTER ROLE app PASSWORD '{password}'")).await.unwrap();
}

/// As an administrator of a role `app` whose password is [`OLD`].
async fn with_app(cluster: &Cluster) -> (Client, PostgresConfig) {
    let admin = cluster.admin().await.unwrap();
    admin.batch_execute("CREATE ROLE app LOGIN").await.unwrap();
    alter(&admin, OLD).await;
    let stored: String = admin
        .query_one("SELECT rolpassword FROM pg_catalog.pg_authid WHERE rolname = 'app'", &[])
        .await
        .unwrap()
        .get(0);
    assert!(stored.starts_with("SCRAM-SHA-256$"));
    (admin, PostgresConfig::from_url(cluster.url_for("app", "postgres")))
}

struct Secret(TempDir);

impl Secret {
    fn new(password: &str) -> Self {
        let secret = Self(tempfile::tempdir().unwrap());
        secret.write(password);
        secret
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("password")
    }

    /// In one step.
    fn write(&self, password: &str) {
        let next = self.0.path().join("next");
        fs::write(&next, format!("{password}\n")).unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(next, self.path()).unwrap();
    }
}

async fn changed_file(cluster: Cluster) {
    let (admin, config) = with_app(&cluster).await;
    let secret = Secret::new(OLD);
    let config = config.with_password_file(secret.path());
    let (locker, scoped) = (PostgresLocker::new(&config).unwrap(), PostgresScopedLocker::new(&config).unwrap());
    let before = locker.acquire("before", Ttl::UNTIL_RELEASED).await.unwrap();

    alter(&admin, NEW).await;
    let error = locker.acquire("between", Ttl::UNTIL_RELEASED).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Denied, Some("28P01")), "{error:?}");
    let what_to_do = format!("wrong password or user; check both, and what password_file {:?} gives", secret.path());
    assert!(error.to_string().contains(&what_to_do), "{error}");

    secret.write(NEW);
    let after = locker.acquire("after", Ttl::UNTIL_RELEASED).await.unwrap();
    scoped.with_lock("scoped", async |_| ()).await.unwrap();
    assert_ne!(before.fencing_token(), after.fencing_token());
    before.ensure_valid().unwrap();
    let shown =
        format!("{locker} {locker:?} {scoped:?} {before:?} {error} {error:#?} {config:?} {}", locker.guarantees());
    assert!(!shown.contains("canary"), "{shown}");
    assert!(format!("{config:?}").contains("password_file: Some("), "{config:?}");
    before.release().await.unwrap().exclusive().unwrap();
    after.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    scoped.close().await.unwrap();
    gone(&admin).await;
    assert!(!cluster.log().contains("canary"), "the server logged a password");
}

async fn asked_once(cluster: Cluster) {
    let (admin, config) = with_app(&cluster).await;
    let (asked, password) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(OLD)));
    let (counted, given) = (Arc::clone(&asked), Arc::clone(&password));
    let config = config.with_password_callback(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let given = Arc::clone(&given);
        async move { Ok::<_, io::Error>((*given.lock().unwrap()).to_owned()) }
    });
    let locker = PostgresLocker::new(&config).unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 0, "nothing has connected");
    let first = locker.acquire("first", Ttl::UNTIL_RELEASED).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let second = locker.acquire("second", Ttl::UNTIL_RELEASED).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    second.release().await.unwrap().exclusive().unwrap();
    let again = locker.acquire("again", Ttl::UNTIL_RELEASED).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2, "asked for a connection that was there");

    alter(&admin, NEW).await;
    let error = locker.acquire("third", Ttl::UNTIL_RELEASED).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Denied, Some("28P01")), "{error:?}");
    assert!(error.to_string().contains("check both, and what password_callback gives"), "{error}");
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    *password.lock().unwrap() = NEW;
    let third = locker.acquire("third", Ttl::UNTIL_RELEASED).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 4);
    let shown = format!("{locker} {locker:?} {third:?} {error} {error:#?} {config:?} {}", locker.guarantees());
    assert!(!shown.contains("canary") && shown.contains("password_callback: Some(<code>)"), "{shown}");
    for guard in [first, again, third] {
        guard.release().await.unwrap().exclusive().unwrap();
    }
    locker.close().await.unwrap();
    gone(&admin).await;
    assert!(!cluster.log().contains("canary"), "the server logged a password");
}

async fn failing_callback(cluster: Cluster) {
    let (admin, config) = with_app(&cluster).await;
    let asked = AtomicUsize::new(0);
    let config = config.with_password_callback(move || {
        let answer = match asked.fetch_add(1, Ordering::SeqCst) {
            0 => Err(io::Error::other("the token service is away")),
            1 => panic!("a fault in the callback"),
            _ => Ok(OLD.to_owned()),
        };
        async { answer }
    });
    let locker = PostgresLocker::new(&config).unwrap();
    for says in ["the token service is away", "password_callback panicked"] {
        let error = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.is_retryable(), "{error:?}");
        assert!(format!("{error:?}").contains(says), "{error:?}");
    }
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    gone(&admin).await;
}

async fn silent_callback(cluster: Cluster) {
    let (admin, _) = with_app(&cluster).await;
    let url = format!("{}?connect_timeout=1", cluster.url_for("app", "postgres"));
    let never = || pending::<Result<String, io::Error>>();
    let locker = PostgresLocker::new(&PostgresConfig::from_url(url).with_password_callback(never)).unwrap();
    let started = Instant::now();
    let errors = [locker.ping().await.unwrap_err(), locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap_err()];
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(2) && took < AMPLE / 2, "{took:?}");
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("no password to log in with within 1s"), "{error}");
        assert!(error.to_string().contains("see what password_callback waits for"), "{error}");
    }
    assert_eq!(seen(&admin).await, "", "it connected without a password");
    locker.close().await.unwrap();
}

async fn two_sources(cluster: Cluster) {
    let (admin, config) = with_app(&cluster).await;
    let with_literal = PostgresConfig::from_url(format!("postgres://app:{OLD}@127.0.0.1:{}/postgres", cluster.port()));
    let token = || async { Ok::<_, io::Error>(OLD.to_owned()) };
    let pool = {
        let mut config = deadpool_postgres::Config::new();
        config.url = Some(cluster.url_for("app", "postgres"));
        config.create_pool(Some(deadpool_postgres::Runtime::Tokio1), NoTls).unwrap()
    };
    let beside_a_pool = |config: PostgresConfig| {
        let error = PostgresLocker::with_pool(pool.clone(), &config).map(|_| ()).unwrap_err();
        (error, PostgresScopedLocker::with_pool(pool.clone(), &config).map(|_| ()).unwrap_err())
    };
    let own = |config: PostgresConfig| {
        let error = PostgresLocker::new(&config).map(|_| ()).unwrap_err();
        (error, PostgresScopedLocker::new(&config).map(|_| ()).unwrap_err())
    };
    let file = Path::new("/run/secrets/db");
    for ((error, scoped), says) in [
        (own(with_literal.clone().with_password_file(file)), ["in the url", "password_file"]),
        (own(with_literal.with_password_callback(token)), ["in the url", "password_callback"]),
        (own(config.with_password_file(file).with_password_callback(token)), ["password_file", "password_callback"]),
        (beside_a_pool(PostgresConfig::for_pool().with_password_file(file)), ["password_file", "beside a pool"]),
        (
            beside_a_pool(PostgresConfig::for_pool().with_password_callback(token)),
            ["password_callback", "beside a pool"],
        ),
    ] {
        for error in [error, scoped] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
            let text = format!("{error:?}");
            assert!(says.iter().all(|says| text.contains(says)) && !text.contains("canary"), "{text}");
        }
    }
    assert_eq!(seen(&admin).await, "", "it connected");
}
