//! Faults that others had in public, by their number in the list of cases.

use std::{sync::Arc, time::Duration};

use distributed_lock::{Backend, Contention, ErrorKind, LockerExt, LossCause, Release, ScopedLockerExt, Ttl, Wait};
use libtest_mimic::Trial;
use lock_postgres::{PostgresLocker, PostgresScopedLocker};
use lock_testkit::{Proxy, proxy::Flow, wait_until};
use tokio::time::{Instant, sleep, timeout};

use crate::bench::{AMPLE, CHECK_INTERVAL, SHORT_TTL, Server, Watch, contention, ms, shortened, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("cases::case_13_view_of_a_hold_is_over_before_the_unlock_is_sent", view_is_over_first),
        trial("cases::case_13_view_that_outlives_its_run_is_over_before_another_gets_in", body_outlives_its_run),
        trial("cases::case_17_lease_of_a_waiter_starts_at_its_grant", lease_starts_at_the_grant),
        trial("cases::case_18_release_after_the_end_touches_nobody_else", late_release),
        trial("cases::case_18_release_after_closing_says_closed", release_after_closing),
        trial("cases::case_23_scoped_lock_lives_in_a_transaction_of_its_own", in_a_transaction),
        trial("cases::case_38_server_probes_a_silent_client", keepalives),
        trial("cases::case_38_packets_lost_for_a_moment_lose_no_hold", lossy_network),
        trial("cases::case_38_transaction_over_a_half_open_connection_gives_its_key_up", |server| {
            half_open(server, |proxy| proxy.both(Flow::Drop))
        }),
        trial("cases::case_38_transaction_whose_requests_are_lost_gives_its_key_up", |server| {
            half_open(server, |proxy| proxy.up(Flow::Drop))
        }),
        trial("cases::case_38_transaction_whose_answers_are_lost_gives_its_key_up", |server| {
            half_open(server, |proxy| proxy.down(Flow::Drop))
        }),
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
        let locks = server.observer.key_locks().await.unwrap();
        let states: Vec<_> = locks.iter().map(|lock| lock.state.as_deref()).collect();
        assert_eq!(states, [Some("idle in transaction")], "one lock, and its transaction is open: {locks:?}");
    };
    locker.with_lock("k", body).await.unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
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

/// Packets that are lost on the way come late and in order, since TCP repeats them. The proxy does as much, in one direction after the
/// other: the kernels that run this test need not have `netem`, which loses real ones.
async fn lossy_network(server: Server) {
    let (proxy, config) = server.proxy();
    // A request and its answer can each be late once: 400 ms of a second.
    let locker = PostgresLocker::new(&shortened(config).with_query_timeout(ms(1_000))).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let rival = server.rival("k", &guard.hold()).await;
    proxy.reset_counts();
    let (start, mut rounds) = (Instant::now(), 0);
    // No heartbeat of before is left to live on.
    while start.elapsed() < SHORT_TTL * 2 {
        for lose in [Proxy::up as fn(&Proxy, Flow), Proxy::down] {
            lose(&proxy, Flow::Hold);
            // Each time another part of a heartbeat's way.
            sleep(ms(200 - rounds % 7 * 25)).await;
            lose(&proxy, Flow::Pass);
            sleep(ms(rounds % 5 * 10)).await;
            guard.ensure_valid().unwrap();
            rounds += 1;
        }
    }
    assert!(proxy.counts().frontend(b'B') > 5, "no heartbeats went over the network: {:?}", proxy.counts());
    assert!(rival.is_waiting());
    guard.release().await.unwrap().exclusive().unwrap();
    let (rival, _) = rival.granted().await;
    rival.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

/// As when a cable is pulled, or one direction of a way is lost: no end is seen. The server frees the key by its own timer, and
/// nothing that the body did is kept. Ownership is proven before the commit is sent, so no run is left in doubt.
async fn half_open(server: Server, switch: fn(&Proxy)) {
    let admin = server.admin().await;
    admin.batch_execute("CREATE TABLE public.written (n int4)").await.unwrap();
    let (proxy, config) = server.proxy();
    let (locker, next) = (PostgresScopedLocker::new(&shortened(config)).unwrap(), server.locker());
    let proxy = Arc::new(proxy);
    let switched = Arc::clone(&proxy);
    let run = locker.with_transaction("k", Wait::Forever, move |tx| {
        Box::pin(async move {
            tx.batch_execute("INSERT INTO public.written VALUES (1)").await?;
            let watch = Watch::start();
            switch(&switched);
            // What it sends meanwhile is lost, or its answer is.
            let again = timeout(ms(200), tx.batch_execute("INSERT INTO public.written VALUES (2)")).await;
            assert!(!matches!(again, Ok(Ok(()))), "the connection is whole");
            let next = timeout(AMPLE, next.acquire("k", Ttl::UNTIL_RELEASED)).await;
            let guard = next.expect("its key is never free").unwrap();
            watch.within(SHORT_TTL + CHECK_INTERVAL, "the key of a half-open transaction is free");
            Ok::<_, tokio_postgres::Error>(guard)
        })
    });
    let failed = timeout(AMPLE, run).await.expect("a run over a half-open connection hangs").unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Lost, "{:?}", failed.error);
    let guard = failed.value.unwrap().unwrap();
    let rows = admin.query("SELECT n FROM public.written", &[]).await.unwrap();
    assert_eq!(rows.len(), 0, "it was written without the lock");
    guard.ensure_valid().unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    drop((locker, proxy));
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
    let free =
        wait_until(SHORT_TTL * 3, "the key is free", async || server.observer.key_locks().await.unwrap().is_empty());
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
        let locks = server.observer.key_locks().await.unwrap();
        let mut ours = locks.into_iter().filter(|lock| lock.key.is_some());
        one = ours.next();
        one.is_some() && ours.next().is_none()
    });
    seen.await.unwrap();
    one.unwrap()
}
