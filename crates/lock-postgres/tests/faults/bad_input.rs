//! Input and surroundings that cannot work: refused with a reason that says what to do, before any lock is touched, and without
//! the secret.

use std::{
    fmt::{self, Write},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use distributed_lock::{Backend, Error, ErrorKind, LockKey, LockerExt, ScopedLockerExt, Ttl, Wait};
use libtest_mimic::Trial;
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresScopedLocker};
use lock_testkit::Cluster;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use crate::bench::{AMPLE, Server, contention, ms, trial, trial_alone};

/// Looked for in all that is printed.
const CANARY: &str = "canary-7f3a";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("bad_input::connection_strings_are_refused_with_what_is_wrong_in_them", connection_strings),
        trial("bad_input::ttls_out_of_range_are_refused_with_their_numbers_before_anything_connects", ttls),
        trial("bad_input::keys_out_of_range_are_refused_before_anything_connects", keys),
        trial("bad_input::case_68_odd_names_are_ordinary_distinct_keys", odd_names),
        trial("bad_input::server_that_is_not_there_is_unavailable_and_its_address_is_said", unreachable),
        trial("bad_input::role_without_rights_is_denied_and_leaves_nothing", without_rights),
        trial("bad_input::role_that_can_only_connect_and_read_can_lock", plain_role),
        trial_alone(
            "bad_input::wrong_password_is_denied_and_never_printed",
            |builder| builder.password_auth(),
            wrong_password,
        ),
        trial_alone("bad_input::server_in_recovery_is_refused_and_passed_over", |builder| builder, in_recovery),
    ]
}

/// All that the program logs.
static LOG: Mutex<String> = Mutex::new(String::new());

/// Collects what is logged, for the whole program.
pub(crate) fn collect_log() {
    tracing::subscriber::set_global_default(Collector).unwrap();
}

pub(crate) fn log() -> String {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        attributes.record(&mut Line);
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut Line);
    }
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Line);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Line;

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(log, "{field}={value:?}").unwrap();
    }
}

/// All that an error and its sources say.
fn all_of(error: &Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        write!(text, " {source} {source:?}").unwrap();
        next = source.source();
    }
    text
}

fn never_shows_the_secret(error: &Error) {
    let text = all_of(error);
    assert!(!text.contains(CANARY), "{text}");
}

async fn connection_strings(server: Server) {
    for (text, says) in [
        (format!("postgres://app:{CANARY}@[::1/db"), ""),
        (format!("postgres://app:{CANARY}@127.0.0.1:99999/db"), "port"),
        (format!("postgres://app:{CANARY}@127.0.0.1:port/db"), "port"),
        (format!("postgres://app:{CANARY}%zz@127.0.0.1/db"), ""),
        (format!("postgres://app:{CANARY}@127.0.0.1/db?sslmode=maybe"), "sslmode"),
        (format!("postgres://app:{CANARY}@127.0.0.1/db?sslmode=VERIFY-FULL"), "sslmode"),
        (format!("postgres://app:{CANARY}@127.0.0.1/db?no_such_option=1"), "no_such_option"),
        (format!("postgres://app:{CANARY}@127.0.0.1/db?connect_timeout=soon"), "connect_timeout"),
        (format!("mysql://app:{CANARY}@127.0.0.1/db"), ""),
        (format!("host=127.0.0.1 password='{CANARY}"), ""),
        (format!("host=127.0.0.1 user=app password={CANARY} sslmode=none"), "sslmode"),
        (CANARY.to_owned(), ""),
        (String::new(), ""),
    ] {
        // Some say what is missing only when it is looked for.
        let error = match PostgresLocker::from_url(&text) {
            Err(error) => error,
            Ok(locker) => locker.try_acquire("k", Ttl::UNTIL_RELEASED).await.expect_err(&text),
        };
        assert!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Misconfigured), "{text}: {error:?}");
        assert!(all_of(&error).contains(says), "{text}: {error:?}");
        never_shows_the_secret(&error);
        never_shows_the_secret(&PostgresScopedLocker::from_url(&text).map(|_| ()).err().unwrap_or(error));
        assert!(!format!("{:?}", PostgresConfig::from_url(&text)).contains(CANARY));
    }
    assert!(!log().contains(CANARY));
    server.quiet().await;
}

async fn ttls(server: Server) {
    let locker = server.locker();
    for (ttl, says) in [
        (Duration::ZERO, "0ns"),
        (Duration::from_nanos(1), "1ns"),
        (Duration::from_micros(999), "999µs"),
        (ms(1), "1ms"),
        (ms(999), "999ms"),
        // Too short for the heartbeat and the query timeout that are set.
        (ms(1_000), "heartbeat_interval 200ms + query_timeout 500ms"),
        (Duration::from_millis(1 << 31), "24 days"),
        (Duration::from_secs(400 * 24 * 60 * 60), "366 days"),
        (Duration::MAX, "366 days"),
    ] {
        let error = locker.try_acquire("k", ttl).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{ttl:?}: {error:?}");
        assert!(all_of(&error).contains(says), "{ttl:?}: {}", all_of(&error));
    }
    assert_eq!(server.observer.sessions().await.unwrap(), [], "it connected");
    // The longest that the server can say, and as refused when a hold is renewed.
    let mut guard = locker.acquire("k", Duration::from_millis((1 << 31) - 1)).await.unwrap();
    assert!(guard.remaining().unwrap() > Duration::from_secs(20 * 24 * 60 * 60), "{:?}", guard.remaining());
    for ttl in [ms(999), Duration::from_millis(1 << 31)] {
        assert_eq!(guard.renew(ttl).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    guard.ensure_valid().unwrap();
    guard.release().await.unwrap().exclusive().unwrap();

    for config in [
        server.config().with_session_ttl(ms(900)),
        server.config().with_session_ttl(Duration::MAX),
        server.config().with_heartbeat_interval(Duration::ZERO),
        server.config().with_query_timeout(Duration::from_nanos(1)),
        server.config().with_pool_size(0),
        server.config().with_conn_wait_timeout(Duration::ZERO),
        server.config().with_close_timeout(Duration::MAX),
        server.config().with_heartbeat_interval(Duration::from_secs(3)).with_session_ttl(Duration::from_secs(3)),
    ] {
        assert_eq!(PostgresLocker::new(&config).unwrap_err().kind(), ErrorKind::InvalidInput, "{config:?}");
        assert_eq!(PostgresScopedLocker::new(&config).unwrap_err().kind(), ErrorKind::InvalidInput, "{config:?}");
    }
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn keys(server: Server) {
    let (locker, scoped) = (server.locker(), server.scoped());
    for name in [String::new(), "x".repeat(513), "é".repeat(257), "x".repeat(1 << 20)] {
        let errors = [
            locker.try_acquire(name.as_str(), Ttl::UNTIL_RELEASED).await.unwrap_err(),
            scoped.try_with_lock(name.as_str(), async |_| ()).await.unwrap_err().error,
            scoped
                .with_transaction::<(), (), _>(name.as_str(), Wait::Never, |_| Box::pin(async { Ok(()) }))
                .await
                .unwrap_err()
                .error,
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
            let text = all_of(&error);
            assert!(text.contains(&name.len().to_string()) && text.len() < 2_000, "{text}");
        }
    }
    assert_eq!(server.observer.sessions().await.unwrap(), [], "it connected");
    server.quiet().await;
}

async fn odd_names(server: Server) {
    let admin = server.admin().await;
    admin.batch_execute("CREATE TABLE public.cs ()").await.unwrap();
    let long = "x".repeat(512);
    let names = [
        "'; DROP TABLE cs; --",
        "\"; DROP TABLE cs; --",
        "*/ SELECT pg_sleep(5) /*",
        "a\nlevel=error msg=x",
        "a\r\nb",
        "\0",
        "a\0",
        "a",
        "A",
        "a ",
        "{x}y",
        "../../etc",
        "\u{202e}gnp.exe",
        "%s%n",
        "$1",
        "\u{1b}[31mred",
        "\u{e9}",
        "e\u{301}",
        "\u{fffd}",
        long.as_str(),
    ];
    let [locker, other] = [(); 2].map(|()| PostgresLocker::new(&server.config().with_pool_size(names.len())).unwrap());
    let mut guards = Vec::new();
    for name in names {
        let guard = locker.try_acquire(name, Ttl::UNTIL_RELEASED).await.unwrap();
        guards.push(guard.acquired().unwrap_or_else(|| panic!("{name:?} is not a key of its own")));
    }
    for (name, guard) in names.iter().zip(&guards) {
        assert_eq!(guard.key().as_str(), *name);
        contention(other.try_acquire(*name, Ttl::UNTIL_RELEASED).await.unwrap());
        // Whatever shows a name shows it on one line, without codes of a terminal.
        let error = Error::new(ErrorKind::Other, "x").with_key(&LockKey::new(*name).unwrap());
        for shown in [format!("{guard:?}"), format!("{error}"), format!("{error:?}")] {
            assert!(!shown.contains(char::is_control), "{shown:?}");
        }
    }
    for guard in guards {
        guard.release().await.unwrap().exclusive().unwrap();
    }
    assert_eq!(admin.query("SELECT FROM public.cs", &[]).await.unwrap().len(), 0);
    locker.close().await.unwrap();
    other.close().await.unwrap();
    server.quiet().await;
}

async fn unreachable(server: Server) {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (text, address) in [
        (format!("postgres://app:{CANARY}@{closed}/db"), closed.to_string()),
        (format!("postgres://app:{CANARY}@no-such-host.invalid/db"), "no-such-host.invalid".to_owned()),
        (format!("host=/no/such/folder user=app password={CANARY}"), "/no/such/folder".to_owned()),
    ] {
        let (locker, scoped) =
            (PostgresLocker::from_url(&text).unwrap(), PostgresScopedLocker::from_url(&text).unwrap());
        let errors = [
            locker.ping().await.unwrap_err(),
            locker.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap_err(),
            scoped.try_with_lock("k", async |_| ()).await.unwrap_err().error,
        ];
        for error in errors {
            assert!(error.kind() == ErrorKind::Unavailable && error.is_retryable(), "{error:?}");
            assert!(error.to_string().contains(&address), "{error}");
            never_shows_the_secret(&error);
        }
        for shown in [format!("{locker} {locker:?} {locker:#?}"), format!("{scoped} {scoped:?} {scoped:#?}")] {
            assert!(!shown.contains(CANARY), "{shown}");
        }
        locker.close().await.unwrap();
        scoped.close().await.unwrap();
    }
    server.quiet().await;
}

async fn wrong_password(cluster: Cluster, server: Server) {
    let admin = cluster.admin().await.unwrap();
    admin.batch_execute("CREATE ROLE app LOGIN PASSWORD 'right'").await.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), CANARY).unwrap();
    // So that something is logged of it.
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let url =
        |login: &str| PostgresConfig::from_url(format!("postgres://{login}@127.0.0.1:{}/postgres", cluster.port()));
    for (config, source) in [
        (url(&format!("app:{CANARY}")), "url: Some("),
        (url("app").with_password_file(file.path()), "password_file: Some("),
        (
            url("app").with_password_callback(|| async { Ok::<_, std::io::Error>(CANARY.to_owned()) }),
            "password_callback: Some(",
        ),
    ] {
        wrong_password_from(&config).await;
        let shown = format!("{config:?} {config:#?}");
        assert!(!shown.contains(CANARY) && shown.contains(source), "{shown}");
    }
    assert!(log().contains(file.path().to_str().unwrap()), "nothing was logged of the file that others can read");
    assert!(!log().contains(CANARY) && !cluster.log().contains(CANARY));
    drop(server);
}

async fn wrong_password_from(config: &PostgresConfig) {
    let (locker, scoped) = (PostgresLocker::new(config).unwrap(), PostgresScopedLocker::new(config).unwrap());
    let errors = [
        locker.ping().await.unwrap_err(),
        locker.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap_err(),
        locker.acquire_within("k", Ttl::UNTIL_RELEASED, AMPLE).await.unwrap_err(),
        scoped.with_lock("k", async |_| ()).await.unwrap_err().error,
        scoped
            .with_transaction::<(), (), _>("k", Wait::Forever, |_| Box::pin(async { Ok(()) }))
            .await
            .unwrap_err()
            .error,
    ];
    for error in errors {
        assert_eq!((error.kind(), error.code()), (ErrorKind::Denied, Some("28P01")), "{error:?}");
        assert!(!error.is_retryable());
        never_shows_the_secret(&error);
    }
    let shown = format!("{locker} {locker:?} {locker:#?} {scoped} {scoped:?} {scoped:#?} {}", locker.guarantees());
    assert!(!shown.contains(CANARY), "{shown}");
}

async fn in_recovery(cluster: Cluster, server: Server) {
    let standby = tokio::task::block_in_place(|| cluster.standby()).unwrap();
    let url = standby.url();
    let locker = PostgresLocker::from_url(&url).unwrap();
    let scoped = PostgresScopedLocker::from_url(&url).unwrap();
    let errors = [
        locker.ping().await.unwrap_err(),
        locker.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap_err(),
        scoped.try_with_lock("k", async |_| ()).await.unwrap_err().error,
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error:?}");
        assert!(error.to_string().contains("recovery") && error.to_string().contains("primary"), "{error}");
    }
    // Among several hosts the primary is found, wherever it stands.
    let (first, second) = (format!("127.0.0.1:{}", standby.port()), format!("127.0.0.1:{}", cluster.port()));
    for hosts in [format!("{first},{second}"), format!("{second},{first}")] {
        let locker = PostgresLocker::from_url(&format!("postgres://postgres@{hosts}/postgres")).unwrap();
        let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
        let admin = cluster.admin().await.unwrap();
        let query = "SELECT pg_catalog.count(*) FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND objsubid = 1";
        let held: i64 = admin.query_one(query, &[]).await.unwrap().get(0);
        assert_eq!(held, 1, "{hosts}");
        guard.release().await.unwrap().exclusive().unwrap();
        locker.close().await.unwrap();
    }
    server.quiet().await;
}

async fn without_rights(server: Server) {
    let admin = server.admin().await;
    let statements = "CREATE ROLE without_rights LOGIN;
        REVOKE EXECUTE ON FUNCTION pg_catalog.pg_try_advisory_lock(bigint) FROM PUBLIC;
        REVOKE EXECUTE ON FUNCTION pg_catalog.pg_try_advisory_xact_lock(bigint) FROM PUBLIC";
    admin.batch_execute(statements).await.unwrap();
    let url = server.url_of("without_rights");
    let (locker, scoped) = (PostgresLocker::from_url(&url).unwrap(), PostgresScopedLocker::from_url(&url).unwrap());
    let errors = [
        locker.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap_err(),
        locker.acquire_within("k", Ttl::UNTIL_RELEASED, AMPLE).await.unwrap_err(),
        scoped.try_with_lock("k", async |_| ()).await.unwrap_err().error,
        scoped.with_transaction::<(), (), _>("k", Wait::Never, |_| Box::pin(async { Ok(()) })).await.unwrap_err().error,
    ];
    for error in errors {
        assert_eq!((error.kind(), error.code()), (ErrorKind::Denied, Some("42501")), "{error:?}");
        assert!(all_of(&error).contains("pg_try_advisory"), "{error:?}");
    }
    assert_eq!(server.observer.key_locks().await.unwrap(), []);
    locker.close().await.unwrap();
    scoped.close().await.unwrap();
    server.quiet().await;
}

/// What is asked of a role is no more than this.
async fn plain_role(server: Server) {
    let admin = server.admin().await;
    let create = "CREATE ROLE plain_role LOGIN; ALTER ROLE plain_role SET default_transaction_read_only = on";
    admin.batch_execute(create).await.unwrap();
    let url = server.url_of("plain_role");
    let (locker, scoped) = (PostgresLocker::from_url(&url).unwrap(), PostgresScopedLocker::from_url(&url).unwrap());
    let guard = locker.acquire("k", Duration::from_secs(5)).await.unwrap();
    assert!(guard.fencing_token().is_some());
    assert!(scoped.with_lock_within("k", ms(50), async |_| ()).await.unwrap().is_contended());
    guard.release().await.unwrap().exclusive().unwrap();
    scoped.with_lock("k", async |_| ()).await.unwrap();
    locker.close().await.unwrap();
    scoped.close().await.unwrap();
    server.quiet().await;
}
