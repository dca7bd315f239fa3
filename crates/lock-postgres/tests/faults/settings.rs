//! Settings that a role or a database brings, and those that we must not leave behind.

use std::{sync::Arc, time::Duration};

use distributed_lock::{Attempt, Backend, Contention, LockerExt, ScopedLockerExt, Ttl, Wait};
use libtest_mimic::Trial;
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresScopedLocker};
use lock_testkit::wait_until;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::bench::{AMPLE, SHORT_TTL, Server, contention, ms, shortened, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let isolated = |level: &'static str| {
        trial(&format!("settings::case_26_{}_role_loses_no_update", level.replace(' ', "_")), move |server| {
            isolation(server, level)
        })
    };
    vec![
        trial("settings::case_14_idle_timeouts_of_the_role_do_not_end_a_holder", idle_timeouts),
        trial("settings::case_54_timeouts_of_the_role_do_not_cut_a_wait", statement_timeouts),
        trial("settings::case_54_cancel_by_an_operator_is_not_a_wait_that_elapsed", operator_s_cancel),
        trial("settings::case_64_sessions_leave_a_storm_as_they_entered_it", nothing_leaks),
        trial("settings::case_64_connections_of_a_pool_that_was_handed_in_come_back_as_they_were", pool_handed_in),
        isolated("repeatable read"),
        isolated("serializable"),
    ]
}

/// Roles are the whole server's, so each test has its own.
async fn role(server: &Server, name: &str, settings: &[(&str, &str)]) -> PostgresConfig {
    let admin = server.admin().await;
    admin.batch_execute(&format!("CREATE ROLE {name} LOGIN")).await.unwrap();
    for (setting, value) in settings {
        admin.batch_execute(&format!("ALTER ROLE {name} SET {setting} = '{value}'")).await.unwrap();
    }
    PostgresConfig::from_url(server.url_of(name))
}

async fn idle_timeouts(server: Server) {
    let settings = [("idle_session_timeout", "1s"), ("idle_in_transaction_session_timeout", "1s")];
    // Default times: a heartbeat after five seconds, so that only the session's own setting keeps it.
    let config = role(&server, "case_14", &settings).await;
    let (session, scoped) = (PostgresLocker::new(&config).unwrap(), PostgresScopedLocker::new(&config).unwrap());
    let guard = session.acquire("session", Ttl::UNTIL_RELEASED).await.unwrap();
    let body = async |hold: distributed_lock::Hold| {
        assert!(timeout(ms(3_000), hold.lost()).await.is_err(), "lost");
        let holders = server.observer.advisory_locks().await.unwrap();
        let state = |pid| holders.iter().filter(move |lock| lock.pid == pid).find_map(|lock| lock.state.clone());
        let pids: Vec<_> = holders.iter().filter(|lock| lock.key.is_some()).map(|lock| lock.pid).collect();
        let mut states: Vec<_> = pids.iter().map(|pid| state(*pid).unwrap()).collect();
        states.sort();
        assert_eq!(states, ["idle", "idle in transaction"], "a session that holds a lock is in no transaction");
    };
    scoped.with_lock("scoped", body).await.unwrap();
    guard.ensure_valid().unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    session.close().await.unwrap();
    scoped.close().await.unwrap();
    server.quiet().await;
}

async fn statement_timeouts(server: Server) {
    let settings = [("statement_timeout", "300ms"), ("lock_timeout", "200ms")];
    let config = shortened(role(&server, "case_54", &settings).await);
    let (session, scoped) = (PostgresLocker::new(&config).unwrap(), PostgresScopedLocker::new(&config).unwrap());
    let other = server.locker();
    for wait in [Wait::UpTo(Duration::from_secs(10)), Wait::Forever] {
        let options = distributed_lock::AcquireOptions::new(Ttl::UNTIL_RELEASED).with_wait(wait);
        let key = distributed_lock::LockKey::new("k").unwrap();
        let ran = || Box::pin(async { Ok::<_, ()>(()) });
        let guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
        let waiters = async {
            let acquire = async {
                let acquired = distributed_lock::Locker::acquire_opts(&session, &key, &options).await.unwrap();
                acquired.acquired().unwrap().release().await.unwrap().exclusive().unwrap();
            };
            let run = scoped.with_lock_opts("k", distributed_lock::ScopedOptions::new(wait), async |_| ());
            let transaction = scoped.with_transaction("k", wait, |_| ran());
            let ((), run, transaction) = tokio::join!(acquire, run, transaction);
            assert!(matches!(run, Ok(Attempt::Acquired(()))) && matches!(transaction, Ok(Attempt::Acquired(Ok(())))));
        };
        let release = async {
            server.waiters(3).await;
            sleep(ms(700)).await;
            guard.release().await.unwrap().exclusive().unwrap();
        };
        tokio::join!(waiters, release);
    }
    // The end of our own wait is that, with the role's limit longer or shorter than ours.
    let guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    for wait in [ms(100), ms(500)] {
        let elapsed = session.acquire_within("k", Ttl::UNTIL_RELEASED, wait).await.unwrap();
        assert_eq!(contention(elapsed), Contention::WaitElapsed);
        let elapsed = scoped.with_lock_within("k", wait, async |_| ()).await.unwrap();
        assert_eq!(contention(elapsed), Contention::WaitElapsed);
    }
    guard.release().await.unwrap().exclusive().unwrap();
    for locker in [&session, &other] {
        locker.close().await.unwrap();
    }
    scoped.close().await.unwrap();
    server.quiet().await;
}

async fn operator_s_cancel(server: Server) {
    let (holder, waiter) = (server.locker(), server.locker());
    let guard = holder.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let admin = server.admin().await;
    let cancel = async {
        let pid = server.waiters(1).await[0];
        admin.query_one("SELECT pg_catalog.pg_cancel_backend($1)", &[&pid]).await.unwrap();
    };
    let (waited, ()) = tokio::join!(waiter.acquire_within("k", Ttl::UNTIL_RELEASED, AMPLE), cancel);
    let error = waited.unwrap_err();
    assert_eq!(error.code(), Some("57014"), "{error:?}");
    guard.ensure_valid().unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    holder.close().await.unwrap();
    waiter.close().await.unwrap();
    server.quiet().await;
}

/// What a session of ours says of its own settings: through the transaction form, on the only connection.
async fn settings(locker: &PostgresScopedLocker) -> Vec<String> {
    let run = locker.with_transaction("settings", Wait::Forever, |tx| {
        Box::pin(async move {
            let query = "SELECT pg_catalog.concat_ws(' ', name, setting) FROM pg_catalog.pg_settings
                WHERE source OPERATOR(pg_catalog.=) 'session' ORDER BY name";
            let rows = tx.query(query, &[]).await?;
            let backend: i32 = tx.query_one("SELECT pg_catalog.pg_backend_pid()", &[]).await?.get(0);
            Ok::<_, tokio_postgres::Error>((rows.iter().map(|row| row.get(0)).collect::<Vec<String>>(), backend))
        })
    });
    run.await.unwrap().acquired().unwrap().unwrap().0
}

async fn nothing_leaks(server: Server) {
    // The longest T, so that the session does not end while it lies idle.
    let config = server.config().with_pool_size(1);
    let (scoped, other) = (PostgresScopedLocker::new(&config).unwrap(), server.locker());
    let before = settings(&scoped).await;
    assert!(before.iter().any(|setting| setting == "lock_timeout 0"), "{before:?}");
    let [session] = &server.observer.sessions().await.unwrap()[..] else { panic!("not one session") };
    let guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    for _ in 0..5 {
        assert!(scoped.try_with_lock("k", async |_| ()).await.unwrap().is_contended());
        assert!(scoped.with_lock_within("k", ms(20), async |_| ()).await.unwrap().is_contended());
        let wait = Wait::UpTo(ms(20));
        let waited = scoped.with_transaction("k", wait, |_| Box::pin(async { Ok::<_, ()>(()) })).await.unwrap();
        assert!(waited.is_contended());
        scoped.with_lock("free", async |_| ()).await.unwrap();
        let failed = scoped.with_transaction("free", Wait::Never, |tx| {
            Box::pin(async move { tx.batch_execute("SET LOCAL lock_timeout = '1s'; SELECT 1/0").await })
        });
        failed.await.unwrap().acquired().unwrap().unwrap_err();
    }
    guard.release().await.unwrap().exclusive().unwrap();
    assert_eq!(settings(&scoped).await, before);
    let after = server.observer.sessions().await.unwrap();
    assert!(after.iter().any(|after| after.pid == session.pid), "it was another session: {after:?}");
    scoped.close().await.unwrap();
    other.close().await.unwrap();

    // A session lock's own session: its idle limit follows the hold, and is back after it.
    let session = PostgresLocker::new(&config).unwrap();
    let url = server.url.clone();
    for ttl in [Ttl::UNTIL_RELEASED, Ttl::new(ms(1_500)).unwrap(), Ttl::UNTIL_RELEASED] {
        let guard = session.acquire("k", ttl).await.unwrap();
        guard.release().await.unwrap().exclusive().unwrap();
    }
    // Were the TTL's limit still there, the session would have ended.
    sleep(ms(2_500)).await;
    assert_eq!(server.observer.sessions().await.unwrap().len(), 1, "{url}");
    session.close().await.unwrap();
    server.quiet().await;
}

/// Its connections are everybody's: the application finds its own settings there.
async fn pool_handed_in(server: Server) {
    let settings = [("statement_timeout", "7s"), ("lock_timeout", "6s"), ("idle_session_timeout", "50s")];
    role(&server, "case_64", &settings).await;
    let config = shortened(PostgresConfig::for_pool());
    let mut own = deadpool_postgres::Config::new();
    own.url = Some(server.url_of("case_64"));
    own.pool = Some(deadpool_postgres::PoolConfig::new(2));
    let pool = own.create_pool(Some(deadpool_postgres::Runtime::Tokio1), tokio_postgres::NoTls).unwrap();
    // By backend, so that a connection that was replaced is not taken for one that was put back.
    let on_all = || async {
        let connections = [pool.get().await.unwrap(), pool.get().await.unwrap()];
        let mut seen = std::collections::BTreeMap::new();
        for connection in &connections {
            let query = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.concat_ws(' ', name, setting)
                FROM pg_catalog.pg_settings
                WHERE name LIKE '%timeout' OR name LIKE 'tcp%' OR name LIKE '%isolation' OR name LIKE 'client_conn%'
                OR name IN ('search_path', 'synchronous_commit') ORDER BY name";
            let rows = connection.query(query, &[]).await.unwrap();
            let settings: Vec<String> = rows.iter().map(|row| row.get(1)).collect();
            seen.insert(rows[0].get::<_, i32>(0), settings);
        }
        seen
    };
    let before = on_all().await;
    let settings = before.values().next().unwrap().clone();
    assert!(before.len() == 2 && settings.iter().any(|line| line == "statement_timeout 7000"), "{before:?}");
    let session = PostgresLocker::with_pool(pool.clone(), &config).unwrap();
    let scoped = PostgresScopedLocker::with_pool(pool.clone(), &config).unwrap();
    let other = server.locker();
    for ttl in [Ttl::UNTIL_RELEASED, Ttl::new(SHORT_TTL).unwrap()] {
        let mut guard = session.acquire("k", ttl).await.unwrap();
        guard.renew(ms(3_000)).await.unwrap();
        guard.release().await.unwrap().exclusive().unwrap();
    }
    // A wait that is granted.
    let guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let release = async {
        server.waiters(2).await;
        guard.release().await.unwrap().exclusive().unwrap();
    };
    let (waited, ran, ()) = tokio::join!(
        async { session.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap().release().await.unwrap().exclusive() },
        scoped.with_lock("k", async |_| ()),
        release
    );
    assert!(waited.is_ok() && ran.is_ok());
    assert_eq!(on_all().await, before, "the very connections that held and waited");
    // Tries, waits that elapse, waits that are dropped, bodies that fail.
    let guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    for _ in 0..3 {
        assert!(session.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap().is_contended());
        assert!(session.acquire_within("k", Ttl::UNTIL_RELEASED, ms(20)).await.unwrap().is_contended());
        assert!(scoped.try_with_lock("k", async |_| ()).await.unwrap().is_contended());
        assert!(scoped.with_lock_within("k", ms(20), async |_| ()).await.unwrap().is_contended());
        let wait = Wait::UpTo(ms(20));
        let waited = scoped.with_transaction("k", wait, |_| Box::pin(async { Ok::<_, ()>(()) })).await.unwrap();
        assert!(waited.is_contended());
        let failed = scoped
            .with_transaction("free", Wait::Never, |tx| Box::pin(async move { tx.batch_execute("SELECT 1/0").await }));
        failed.await.unwrap().acquired().unwrap().unwrap_err();
        timeout(ms(30), session.acquire("k", Ttl::UNTIL_RELEASED)).await.unwrap_err();
        assert!(timeout(ms(30), scoped.with_lock("k", async |_| ())).await.is_err());
    }
    // The body's statements run under the settings of the application.
    let run = scoped.with_transaction("free", Wait::Never, |tx| {
        Box::pin(async move { tx.query_one("SHOW statement_timeout", &[]).await.map(|row| row.get::<_, String>(0)) })
    });
    assert_eq!(run.await.unwrap().acquired().unwrap().unwrap(), "7s");
    guard.release().await.unwrap().exclusive().unwrap();
    assert!(on_all().await.values().all(|now| *now == settings));
    session.close().await.unwrap();
    scoped.close().await.unwrap();
    other.close().await.unwrap();
    assert!(on_all().await.values().all(|now| *now == settings), "the pool is the application's, and open");
    pool.close();
    server.quiet().await;
}

/// Each run reads what the last one wrote: both forms under a role whose transactions look at an old snapshot by default.
async fn isolation(server: Server, level: &'static str) {
    const RUNS: i32 = 32;
    let name = format!("case_26_{}", level.replace(' ', "_"));
    let config = role(&server, &name, &[("default_transaction_isolation", level)]).await;
    let admin = server.admin().await;
    let create = "CREATE TABLE public.counter (n int4); INSERT INTO public.counter VALUES (0)";
    admin.batch_execute(&format!("{create}; GRANT ALL ON public.counter TO {name}")).await.unwrap();
    let locker = Arc::new(PostgresScopedLocker::new(&config.with_conn_wait_forever()).unwrap());
    let url = server.url_of(&name);
    let mut runs = JoinSet::new();
    for n in 0..RUNS {
        let (locker, url) = (Arc::clone(&locker), url.clone());
        runs.spawn(async move {
            if n % 2 == 0 {
                let run = locker.with_transaction("k", Wait::Forever, |tx| {
                    Box::pin(async move {
                        let seen: i32 = tx.query_one("SELECT n FROM public.counter", &[]).await?.get(0);
                        tx.execute("UPDATE public.counter SET n = $1", &[&(seen + 1)]).await
                    })
                });
                run.await.unwrap().acquired().unwrap().unwrap();
            } else {
                let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                let body = async |_| {
                    let seen: i32 = client.query_one("SELECT n FROM public.counter", &[]).await?.get(0);
                    client.execute("UPDATE public.counter SET n = $1", &[&(seen + 1)]).await
                };
                locker.with_lock("k", body).await.unwrap().unwrap();
            }
        });
    }
    runs.join_all().await;
    let counted: i32 = admin.query_one("SELECT n FROM public.counter", &[]).await.unwrap().get(0);
    assert_eq!(counted, RUNS);
    locker.close().await.unwrap();
    let left =
        wait_until(AMPLE, "the runs' own sessions end", async || server.observer.sessions().await.unwrap().is_empty());
    left.await.unwrap();
    server.quiet().await;
}
