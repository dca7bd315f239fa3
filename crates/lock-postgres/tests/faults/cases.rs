//! Faults that others had in public, by their number in the list of cases.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use distributed_lock::{
    Attempt, Backend, Contention, Error, ErrorKind, LockerExt, LossCause, Release, ScopedLockerExt, Ttl, Wait,
};
use libtest_mimic::Trial;
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresScopedLocker};
use lock_testkit::{Detector, Observer, proxy::Flow, requirement::rounds, wait_until};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    bench::{AMPLE, SHORT_DETECTION, SHORT_TTL, Server, Watch, contention, ms, shortened, trial},
    intruder::Intruder,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("cases::case_13_view_of_a_hold_is_over_before_the_unlock_is_sent", view_is_over_first),
        trial("cases::case_13_lock_is_kept_while_a_lost_body_still_runs_elsewhere", body_outlives_its_run),
        trial("cases::case_17_lease_of_a_waiter_starts_at_its_grant", lease_starts_at_the_grant),
        trial("cases::case_18_release_after_the_end_touches_nobody_else", late_release),
        trial("cases::case_18_release_after_closing_says_closed", release_after_closing),
        trial("cases::case_23_scoped_lock_lives_in_a_transaction_of_its_own", in_a_transaction),
        trial("cases::case_30_waits_that_elapse_at_the_edge_leave_nothing", waits_at_the_edge),
        trial("cases::case_31_acquires_dropped_at_random_poison_no_connection", random_drops),
        trial("cases::case_32_thousand_cycles_leave_nothing_behind_any_of_them", cycles),
        trial("cases::case_32_unlock_of_everything_behind_its_back_is_a_loss", unlocked_behind_its_back),
        trial("cases::case_32_release_that_finds_nothing_is_a_loss", release_finds_nothing),
        trial("cases::case_32_session_that_still_has_the_key_after_a_release_is_not_kept", held_twice),
        trial("cases::case_33_what_a_transaction_leaves_in_its_session_reaches_nobody", tainted_session),
        trial("cases::case_38_server_probes_a_silent_client", keepalives),
        trial("cases::case_52_nothing_queues_behind_a_stuck_connection", stuck_connection),
        trial("cases::case_59_holders_are_told_apart_over_the_whole_range_of_keys", key_range),
    ]
}

async fn view_is_over_first(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&config).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let view = guard.hold();
    view.ensure_valid().unwrap();
    proxy.reset_counts();
    proxy.up(Flow::Hold);
    let check = async {
        let sent = wait_until(AMPLE, "the unlock is under way", async || proxy.counts().frontend(b'B') == 1);
        sent.await.unwrap();
        assert!(view.ensure_valid().is_err(), "valid while the key is given back");
        server.holder().await;
        proxy.pass();
    };
    let (released, ()) = tokio::join!(guard.release(), check);
    released.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

/// A child of the body outlives a run that was dropped: its view says so before anybody else can get the key.
async fn body_outlives_its_run(server: Server) {
    let locker = server.scoped();
    let (tell, told) = tokio::sync::oneshot::channel();
    let view = {
        let run = locker.with_lock("k", async |hold| {
            tell.send(hold).unwrap();
            std::future::pending::<()>().await;
        });
        tokio::pin!(run);
        let begin = async {
            let view = told.await.unwrap();
            // Its assertion is what this is about.
            (server.rival("k", &view).await, view)
        };
        tokio::select! {
            ended = &mut run => panic!("{ended:?}"),
            begun = begin => begun,
        }
    };
    let (rival, view) = view;
    view.ensure_valid().unwrap_err();
    let (guard, _) = rival.granted().await;
    guard.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn lease_starts_at_the_grant(server: Server) {
    let (holder, waiter) =
        (PostgresLocker::new(&server.config()).unwrap(), PostgresLocker::new(&server.config()).unwrap());
    let guard = holder.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let token = guard.fencing_token().unwrap();
    let release = async {
        server.waiters(1).await;
        // Longer than the waiter's TTL.
        sleep(ms(1_500)).await;
        guard.release().await.unwrap().exclusive().unwrap();
    };
    let (waited, ()) = tokio::join!(waiter.acquire("k", ms(1_000)), release);
    let watch = Watch::start();
    let waited = waited.unwrap();
    waited.ensure_valid().unwrap();
    assert!(waited.remaining().unwrap() > ms(300), "{:?}", waited.remaining());
    assert!(waited.fencing_token().unwrap() > token);
    let rival = server.rival("k", &waited.hold()).await;
    let (rival, at) = rival.granted().await;
    watch.at_within(at, ms(1_000), "the TTL of a waiter is over");
    rival.release().await.unwrap().exclusive().unwrap();
    drop(waited);
    holder.close().await.unwrap();
    waiter.close().await.unwrap();
    server.quiet().await;
}

async fn late_release(server: Server) {
    let [a, b, c] = [(); 3].map(|()| server.locker());
    let first = a.acquire("k", ms(1_200)).await.unwrap();
    // One who lost has nothing to give back: it cannot even be said.
    drop(c.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap());
    assert_eq!(contention(c.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap()), Contention::Held);
    let second = b.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let pid = server.holder().await;
    assert!(matches!(first.release().await, Ok(Release::Lost(_))));
    assert_eq!(contention(c.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap()), Contention::Held);
    assert_eq!(server.holder().await, pid);
    second.ensure_valid().unwrap();
    second.release().await.unwrap().exclusive().unwrap();
    for locker in [a, b, c] {
        locker.close().await.unwrap();
    }
    server.quiet().await;
}

async fn release_after_closing(server: Server) {
    let locker = server.locker();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let rival = server.rival("k", &guard.hold()).await;
    locker.close().await.unwrap();
    guard.ensure_valid().unwrap_err();
    assert_eq!(timeout(AMPLE, guard.lost()).await.expect("it is told").cause(), LossCause::Closed);
    let released = guard.release().await;
    match released {
        Ok(released) => assert_eq!(released.exclusive().unwrap_err().cause(), LossCause::Closed),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Closed, "{error:?}"),
    }
    let (rival, _) = rival.granted().await;
    rival.release().await.unwrap().exclusive().unwrap();
    assert_eq!(locker.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap_err().kind(), ErrorKind::Closed);
    server.quiet().await;
}

async fn in_a_transaction(server: Server) {
    let locker = server.scoped();
    let body = async |_| {
        let locks = server.observer.advisory_locks().await.unwrap();
        let states: Vec<_> = locks.iter().map(|lock| lock.state.as_deref()).collect();
        assert_eq!(states, [Some("idle in transaction")], "one lock, and its transaction is open: {locks:?}");
    };
    locker.with_lock("k", body).await.unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
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
    assert_eq!(server.observer.advisory_locks().await.unwrap(), [], "somebody still holds or waits");
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
        let sessions = server.observer.sessions().await.unwrap();
        let in_a_transaction = sessions.iter().any(|session| session.state.as_deref() == Some("idle in transaction"));
        assert!(!in_a_transaction || sessions.len() > 1, "{sessions:?}");
    }
    println!("ended in time: {finished:?} of {}", rounds(60));
    // Nothing that was dropped holds or waits any more, but for what the server needs to see that.
    let left =
        wait_until(AMPLE, "no lock is left", async || server.observer.advisory_locks().await.unwrap().is_empty());
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
                    observer.advisory_locks().await.unwrap();
                }
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(observer.advisory_locks().await.unwrap(), []);
    locker.close().await.unwrap();
    server.quiet().await;
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
            // It takes the prepared statements too.
            assert!(matches!(loss.cause(), LossCause::NotOurs | LossCause::SessionEnded), "{loss:?}");
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

/// The body had the connection for itself. Whatever it left there, the next to use it must not meet.
async fn tainted_session(server: Server) {
    let taints = [
        ("SET idle_in_transaction_session_timeout = 0", "idle_in_transaction_session_timeout"),
        ("SET idle_session_timeout = 0", "idle_session_timeout"),
        ("SET client_connection_check_interval = 0", "client_connection_check_interval"),
        ("SET statement_timeout = '1ms'", "statement_timeout"),
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

async fn keepalives(server: Server) {
    let locker = server.scoped();
    let run = locker.with_transaction("k", Wait::Forever, |tx| {
        Box::pin(async move {
            let query = "SELECT pg_catalog.concat_ws(' ', pg_catalog.current_setting('tcp_keepalives_idle'),
                pg_catalog.current_setting('tcp_keepalives_interval'), pg_catalog.current_setting('tcp_keepalives_count'))";
            Ok::<String, tokio_postgres::Error>(tx.query_one(query, &[]).await?.get(0))
        })
    });
    assert_eq!(run.await.unwrap().acquired().unwrap().unwrap(), "5 2 3");
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn stuck_connection(server: Server) {
    let (proxy, config) = server.proxy();
    let config = shortened(config).with_close_timeout(Duration::from_secs(3));
    let locker = Arc::new(PostgresLocker::new(&config).unwrap());
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let view = guard.hold();
    proxy.reset_counts();
    proxy.both(Flow::Drop);
    let beat = wait_until(AMPLE, "a heartbeat is in flight", async || proxy.counts().frontend(b'B') == 1);
    beat.await.unwrap();
    let watch = Watch::start();
    let asked = async {
        for _ in 0..1_000 {
            let _valid = view.ensure_valid();
            let _left = view.remaining();
            tokio::task::yield_now().await;
        }
        watch.within(ms(100), "a thousand looks at a hold are taken");
    };
    let released = async {
        let released = guard.release().await;
        watch.within(ms(1_000), "a release over a stuck connection returns");
        assert!(!matches!(released, Ok(Release::Released | Release::Lapsed(_))), "{released:?}");
    };
    let closed = async {
        // Its end is never seen, so all that can be waited for is the bound of the session.
        let closed = locker.close().await;
        watch.within(Duration::from_secs(3), "closing over a stuck connection returns");
        closed
    };
    let ((), (), _closed) = tokio::join!(asked, released, closed);
    let free = wait_until(SHORT_TTL * 3, "the key is free", async || {
        server.observer.advisory_locks().await.unwrap().is_empty()
    });
    free.await.unwrap();
    drop((locker, proxy));
    server.quiet().await;
}

async fn key_range(server: Server) {
    let stranger = server.stranger().await;
    let elsewhere = server.admin().await;
    let keys = [i64::MIN, -1, 0, 1, i64::from(u32::MAX), i64::MAX];
    for key in keys {
        stranger.execute("SELECT pg_catalog.pg_advisory_lock($1)", &[&key]).await.unwrap();
        // The same bits in the space of two integers.
        let (high, low) = ((key >> 32) as i32, key as i32);
        elsewhere.execute("SELECT pg_catalog.pg_advisory_lock($1, $2)", &[&high, &low]).await.unwrap();
    }
    let pid: i32 = stranger.query_one("SELECT pg_catalog.pg_backend_pid()", &[]).await.unwrap().get(0);
    for key in keys {
        let holders = server.observer.holders(key).await.unwrap();
        assert!(matches!(&holders[..], [holder] if holder.pid == Some(pid) && holder.granted), "{key}: {holders:?}");
    }
    drop(stranger);

    // Ids of ours are spread over the range, so half of them are negative.
    let (locker, other) = (PostgresLocker::new(&server.config().with_pool_size(20)).unwrap(), server.locker());
    let mut signs = [0, 0];
    for n in 0..16 {
        let name = format!("name {n}");
        let guard = locker.acquire(name.as_str(), Ttl::UNTIL_RELEASED).await.unwrap();
        let locks = wait_for_one(&server).await;
        let key = locks.key.unwrap();
        signs[usize::from(key < 0)] += 1;
        let waiting = other.acquire(name.as_str(), Ttl::UNTIL_RELEASED);
        let check = async {
            let waiter = server.waiters(1).await[0];
            let found = server.observer.holders(key).await.unwrap();
            let found: Vec<_> = found.iter().map(|lock| (lock.pid.unwrap(), lock.granted)).collect();
            assert_eq!(found, [(locks.pid.unwrap(), true), (waiter, false)]);
            guard.release().await.unwrap().exclusive().unwrap();
        };
        let (waited, ()) = tokio::join!(waiting, check);
        waited.unwrap().release().await.unwrap().exclusive().unwrap();
    }
    assert!(signs[0] > 0 && signs[1] > 0, "{signs:?}");
    locker.close().await.unwrap();
    other.close().await.unwrap();
    drop(elsewhere);
    server.quiet().await;
}

async fn wait_for_one(server: &Server) -> lock_testkit::observe::AdvisoryLock {
    let mut one = None;
    let seen = wait_until(AMPLE, "one lock", async || {
        let locks = server.observer.advisory_locks().await.unwrap();
        let mut ours = locks.into_iter().filter(|lock| lock.key.is_some());
        one = ours.next();
        one.is_some() && ours.next().is_none()
    });
    seen.await.unwrap();
    one.unwrap()
}
