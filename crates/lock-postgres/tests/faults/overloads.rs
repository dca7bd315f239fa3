//! Look-alikes of everything our statements name, before the server's own in the search path of the role.

use std::time::Duration;

use distributed_lock::{
    Backend, Contention, Fencing, Inspect, LockKey, LockerExt, ScopedLockerExt, ScopedOptions, Ttl, Wait,
};
use libtest_mimic::Trial;
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresScopedLocker};
use lock_testkit::wait_until;
use tokio::time::timeout;
use tokio_postgres::NoTls;

use crate::bench::{AMPLE, SHORT_TTL, Server, contention, ms, shortened, trial};

/// Each says what would please a careless locker most.
const LOOK_ALIKES: &str = "
    CREATE FUNCTION public.pg_try_advisory_lock(bigint) RETURNS bool LANGUAGE sql AS 'SELECT true';
    CREATE FUNCTION public.pg_try_advisory_lock(integer) RETURNS bool LANGUAGE sql AS 'SELECT true';
    CREATE FUNCTION public.pg_try_advisory_lock(integer, integer) RETURNS bool LANGUAGE sql AS 'SELECT true';
    CREATE FUNCTION public.pg_advisory_lock(bigint) RETURNS text LANGUAGE sql AS 'SELECT ''''::text';
    CREATE FUNCTION public.pg_advisory_unlock(bigint) RETURNS bool LANGUAGE sql AS 'SELECT true';
    CREATE FUNCTION public.pg_advisory_unlock(integer, integer) RETURNS bool LANGUAGE sql AS 'SELECT true';
    CREATE FUNCTION public.pg_try_advisory_xact_lock(bigint) RETURNS bool LANGUAGE sql AS 'SELECT true';
    CREATE FUNCTION public.pg_advisory_xact_lock(bigint) RETURNS text LANGUAGE sql AS 'SELECT ''''::text';
    CREATE FUNCTION public.pg_is_in_recovery() RETURNS bool LANGUAGE sql AS 'SELECT false';
    CREATE FUNCTION public.pg_backend_pid() RETURNS int4 LANGUAGE sql AS 'SELECT 1';
    CREATE FUNCTION public.set_config(text, text, bool) RETURNS text LANGUAGE sql AS 'SELECT $2';
    CREATE FUNCTION public.current_setting(text) RETURNS text LANGUAGE sql AS 'SELECT ''0''::text';
    CREATE FUNCTION public.current_database() RETURNS text LANGUAGE sql AS 'SELECT ''elsewhere''::text';
    CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''2000-01-01''::timestamptz';
    CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''2000-01-01''::timestamptz';
    CREATE FUNCTION public.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS 'SELECT ''3''::xid8';
    CREATE FUNCTION public.pg_current_wal_lsn() RETURNS pg_lsn LANGUAGE sql AS 'SELECT ''0/0''::pg_lsn';
    CREATE FUNCTION public.pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql AS 'SELECT ''000000010000000000000001''::text';
    CREATE FUNCTION public.concat_ws(text, text, pg_lsn, xid8) RETURNS text LANGUAGE sql
        AS 'SELECT ''000000010000000000000001 0/28 3''::text';
    CREATE FUNCTION public.count() RETURNS int8 LANGUAGE sql AS 'SELECT 0::int8';
    CREATE FUNCTION public.pg_stat_get_activity(int4, OUT pid int4, OUT backend_start timestamptz, OUT state_change timestamptz)
        RETURNS SETOF record LANGUAGE sql AS 'SELECT 1, pg_catalog.now(), pg_catalog.now()';
    CREATE FUNCTION public.pg_terminate_backend(int4) RETURNS bool LANGUAGE sql AS 'SELECT true';
    CREATE FUNCTION public.pg_notify(text, text) RETURNS text LANGUAGE sql AS 'SELECT ''''::text';
    CREATE FUNCTION public.host(inet) RETURNS text LANGUAGE sql AS 'SELECT ''elsewhere''::text';
    CREATE FUNCTION public.make_interval(secs float8) RETURNS interval LANGUAGE sql AS 'SELECT ''0''::interval';
    CREATE VIEW public.pg_locks AS SELECT 'none'::text AS locktype, 0 AS pid WHERE false;
    GRANT SELECT ON public.pg_locks TO PUBLIC;
    CREATE FUNCTION public.always(int4, int4) RETURNS bool LANGUAGE sql AS 'SELECT true';
    CREATE FUNCTION public.always(text, text) RETURNS bool LANGUAGE sql AS 'SELECT true';
    CREATE OPERATOR public.= (LEFTARG = int4, RIGHTARG = int4, FUNCTION = public.always);
    CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.always);
    CREATE OPERATOR public.>= (LEFTARG = int4, RIGHTARG = int4, FUNCTION = public.always);
    CREATE DOMAIN public.int8 AS pg_catalog.text;
    CREATE DOMAIN public.int4 AS pg_catalog.text;
    CREATE DOMAIN public.text AS pg_catalog.int8;";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("overloads::case_08_look_alikes_deceive_a_careless_session", careless),
        trial("overloads::case_08_session_locker_is_not_deceived", |server| session(server, "evil_session")),
        trial("overloads::case_08_scoped_locker_is_not_deceived", |server| scoped(server, "evil_scoped")),
        trial("overloads::case_08_operator_and_watchdog_are_not_deceived", |server| inspect(server, "evil_inspect")),
    ]
}

/// The URL of a role before whose eyes the look-alikes stand.
async fn deceived(server: &Server, role: &str) -> String {
    let admin = server.admin().await;
    admin.batch_execute(LOOK_ALIKES).await.unwrap();
    let database: String =
        admin.query_one("SELECT pg_catalog.current_database()::pg_catalog.text", &[]).await.unwrap().get(0);
    let create = format!("CREATE ROLE {role} LOGIN; ALTER ROLE {role} IN DATABASE {database} SET search_path");
    admin.batch_execute(&format!("{create} = public, pg_catalog")).await.unwrap();
    server.url_of(role)
}

/// Without this, nothing would show that the others can fail.
async fn careless(server: Server) {
    let url = deceived(&server, "evil_careless").await;
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..2 {
        let row = client.query_one("SELECT pg_try_advisory_lock(5), now() < '2001-01-01'", &[]).await.unwrap();
        assert!(row.get::<_, bool>(0) && row.get::<_, bool>(1));
    }
    let locks = client.query("SELECT FROM pg_locks", &[]).await.unwrap();
    assert!(locks.is_empty() && server.observer.holders(5).await.unwrap().is_empty());
}

async fn session(server: Server, role: &str) {
    let config = shortened(PostgresConfig::from_url(deceived(&server, role).await));
    let lockers = [PostgresLocker::new(&config).unwrap(), PostgresLocker::new(&config).unwrap()];
    let [locker, other] = &lockers;
    locker.ping().await.unwrap();
    let mut guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let first = guard.fencing_token().unwrap();
    server.holder().await;
    assert_eq!(locker.guarantees().world.unwrap().database, server.admin.get_dbname().unwrap());
    assert_eq!(contention(other.try_acquire("k", SHORT_TTL).await.unwrap()), Contention::Held);
    let waited = other.acquire_within("k", SHORT_TTL, ms(50)).await.unwrap();
    assert_eq!(contention(waited), Contention::WaitElapsed);
    // Heartbeats for longer than the session's TTL, and a renewal of each kind.
    assert!(timeout(SHORT_TTL + ms(500), guard.lost()).await.is_err());
    guard.renew(ms(3_000)).await.unwrap();
    guard.renew(Ttl::UNTIL_RELEASED).await.unwrap();
    let release = async {
        server.waiters(1).await;
        guard.release().await.unwrap().exclusive().unwrap();
    };
    let (next, ()) = tokio::join!(other.acquire_within("k", SHORT_TTL, AMPLE), release);
    let next = next.unwrap().acquired().unwrap();
    assert!(next.fencing_token().unwrap() > first);
    // Its TTL is over in the server too.
    next.lost().await;
    let free = wait_until(AMPLE, "the key is free", async || server.observer.key_locks().await.unwrap().is_empty());
    free.await.unwrap();
    drop(next);
    // A session whose wait elapsed was proven clean, and is there for the next.
    other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap().release().await.unwrap().exclusive().unwrap();
    for locker in lockers {
        locker.close().await.unwrap();
    }
    server.quiet().await;
}

async fn scoped(server: Server, role: &str) {
    let config = shortened(PostgresConfig::from_url(deceived(&server, role).await));
    let lockers = [PostgresScopedLocker::new(&config).unwrap(), PostgresScopedLocker::new(&config).unwrap()];
    let [locker, other] = &lockers;
    locker.ping().await.unwrap();
    let options = ScopedOptions::new(Wait::Forever).with_fencing(Fencing::On);
    let body = async |hold: distributed_lock::Hold| {
        server.holder().await;
        assert_eq!(contention(other.try_with_lock("k", async |_| ()).await.unwrap()), Contention::Held);
        assert_eq!(
            contention(other.with_lock_within("k", ms(50), async |_| ()).await.unwrap()),
            Contention::WaitElapsed
        );
        let wait = Wait::UpTo(ms(50));
        let tried = other.with_transaction("k", wait, |_| Box::pin(async { Ok::<_, ()>(()) })).await.unwrap();
        assert_eq!(contention(tried), Contention::WaitElapsed);
        assert!(timeout(SHORT_TTL + ms(500), hold.lost()).await.is_err());
        hold.fencing_token().unwrap()
    };
    let first = locker.with_lock_opts("k", options.clone(), body).await.unwrap().acquired().unwrap();
    let next = other.with_lock_opts("k", options, async |hold| hold.fencing_token().unwrap()).await.unwrap();
    assert!(next.acquired().unwrap() > first);
    let run = locker.with_transaction("k", Wait::UpTo(Duration::from_secs(5)), |tx| {
        Box::pin(async move { tx.batch_execute("CREATE TEMP TABLE t ()").await })
    });
    run.await.unwrap().acquired().unwrap().unwrap();
    let failed = locker.with_transaction("k", Wait::Forever, |tx| {
        Box::pin(async move {
            tx.batch_execute("COMMIT; BEGIN").await.unwrap();
            Ok::<_, ()>(())
        })
    });
    assert_eq!(failed.await.unwrap_err().error.kind(), distributed_lock::ErrorKind::Lost);
    for locker in lockers {
        locker.close().await.unwrap();
    }
    server.quiet().await;
}

async fn inspect(server: Server, role: &str) {
    let config = shortened(PostgresConfig::from_url(deceived(&server, role).await)).with_hand_over(true);
    let [locker, other] = [PostgresLocker::new(&config).unwrap(), PostgresLocker::new(&config).unwrap()];
    let key = LockKey::new("k").unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let holders = other.holders(&key).await.unwrap();
    assert!(holders[0].session.as_str().starts_with(&format!("{}.", server.holder().await)), "{holders:?}");
    assert_eq!((holders.len(), holders[0].host.as_deref()), (1, Some("127.0.0.1")));
    let asked = wait_until(AMPLE, "the holder is asked", async || {
        assert!(other.request_step_down(&key).await.unwrap());
        timeout(ms(20), async { guard.hold().step_down_requested().await }).await.is_ok()
    });
    asked.await.unwrap();
    // Through some rounds of the watchdog.
    let waited = other.acquire_within("k", Ttl::UNTIL_RELEASED, SHORT_TTL).await.unwrap();
    assert_eq!(contention(waited), Contention::WaitElapsed);
    let waiting = other.acquire("k", Ttl::UNTIL_RELEASED);
    let ended = async {
        server.waiters(1).await;
        assert_eq!(locker.waiters(&key).await.unwrap().len(), 1);
        guard.ensure_valid().unwrap();
        assert!(other.end_holder(&key, &holders[0]).await.unwrap());
        guard.lost().await
    };
    let (next, loss) = tokio::join!(timeout(AMPLE, waiting), timeout(AMPLE, ended));
    assert_eq!(loss.unwrap().cause(), distributed_lock::LossCause::SessionEnded);
    next.unwrap().unwrap().release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    other.close().await.unwrap();
    server.quiet().await;
}
