//! Losing what is held: sessions that end, servers that restart, networks that fail, and TTLs that run out.

use std::time::Duration;

use distributed_lock::{Backend, ErrorKind, LockerExt, LossCause, Release, Ttl};
use libtest_mimic::Trial;
use lock_postgres::PostgresLocker;
use lock_testkit::{
    Cluster, Observer, Proxy,
    proxy::{AfterLoss, Flow},
    wait_until,
};
use tokio::time::{Instant, sleep, timeout};

use crate::bench::{
    AMPLE, CHECK_INTERVAL, SHORT_CUT_WAITER, SHORT_DETECTION, SHORT_TTL, Server, Watch, ms, shortened, state_of, trial,
    trial_alone, with_short_waits,
};

pub(crate) fn trials() -> Vec<Trial> {
    let black_hole = |name: &str, switch: fn(&Proxy)| {
        trial(&format!("loss::{name}_is_told_before_another_gets_in"), move |server| black_hole(server, switch))
    };
    let broken_off = |name: &str, switch: fn(&Proxy)| {
        trial(&format!("loss::{name}_is_told_at_once"), move |server| broken_off(server, switch))
    };
    vec![
        trial("loss::terminated_holder_is_told_at_once_with_57p01", terminated_holder),
        trial("loss::terminated_waiter_gets_the_server_s_word_and_leaves_nothing", terminated_waiter),
        trial("loss::session_terminated_in_the_middle_of_a_release_is_never_a_release", terminated_in_release),
        trial("loss::release_whose_answer_is_lost_is_unavailable_and_frees_the_key", unanswered_release),
        trial("loss::confirmed_release_stays_one_when_its_session_then_closes", closed_after_unlock),
        trial("loss::confirmed_release_stays_one_when_its_session_is_over_before_it_is_read", over_after_unlock),
        trial_alone("loss::immediate_restart_is_told_at_once_and_tokens_rise", |builder| builder, restart),
        broken_off("cut", Proxy::cut),
        broken_off("reset", Proxy::reset),
        black_hole("black_hole", |proxy| proxy.both(Flow::Drop)),
        black_hole("black_hole_towards_the_server", |proxy| proxy.up(Flow::Drop)),
        black_hole("black_hole_towards_the_holder", |proxy| proxy.down(Flow::Drop)),
        trial("loss::waiter_that_is_cut_off_does_not_block_those_behind_it", cut_off_waiter),
        trial("loss::ttl_is_ended_by_the_holder_s_own_timer_and_its_session_lives", own_timer),
        trial("loss::ttl_of_a_holder_cut_off_after_a_late_heartbeat_ends_in_time", late_heartbeat),
        trial("loss::lease_of_a_holder_cut_off_is_its_own_whatever_the_session_had_before", earlier_limits),
        trial("loss::delay_within_the_query_timeout_loses_nothing", slow_network),
        trial("loss::answers_that_take_four_fifths_of_the_query_timeout_lose_nothing", slow_answers),
        trial("loss::heartbeats_without_an_answer_are_few_however_short_their_interval", unanswered_heartbeats),
    ]
}

async fn terminated_holder(server: Server) {
    // Default times: no heartbeat would notice within five seconds.
    let locker = PostgresLocker::new(&server.config()).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let pid = server.holder().await;
    let watch = Watch::start();
    assert!(server.observer.terminate(pid).await.unwrap());
    let loss = guard.lost().await;
    watch.within(ms(100), "a terminated session is noticed");
    assert_eq!(loss.cause(), LossCause::SessionEnded);
    assert_eq!(state_of(&loss).as_deref(), Some("57P01"), "{loss:?}");
    let error = guard.ensure_valid().unwrap_err();
    assert_eq!((error.kind(), state_of(&error).as_deref()), (ErrorKind::Lost, Some("57P01")));
    let released = guard.release().await.unwrap();
    assert_eq!(released.exclusive().unwrap_err().cause(), LossCause::SessionEnded);
    let again = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    assert_ne!(server.holder().await, pid);
    again.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn terminated_waiter(server: Server) {
    let (holder, waiter) = (server.locker(), server.locker());
    let guard = holder.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let held_by = server.holder().await;
    let acquire = waiter.acquire("k", Ttl::UNTIL_RELEASED);
    let terminate = async {
        let pid = server.waiters(1).await[0];
        assert!(server.observer.terminate(pid).await.unwrap());
        Watch::start()
    };
    let (acquired, watch) = tokio::join!(acquire, terminate);
    watch.within(ms(100), "a terminated wait returns");
    let error = acquired.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, Some("57P01")), "{error:?}");
    server.waiters(0).await;
    assert_eq!(server.holder().await, held_by);
    guard.ensure_valid().unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    waiter.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap().release().await.unwrap().exclusive().unwrap();
    close([holder, waiter]).await;
    server.quiet().await;
}

async fn terminated_in_release(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&config).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    proxy.reset_counts();
    proxy.up(Flow::Hold);
    let terminate = async {
        let sent = wait_until(AMPLE, "the unlock is under way", async || proxy.counts().frontend(b'B') == 1);
        sent.await.unwrap();
        server.observer.terminate(server.holder().await).await.unwrap();
    };
    let (released, ()) = tokio::join!(guard.release(), terminate);
    match released {
        Err(error) => {
            assert_eq!((error.kind(), state_of(&error).as_deref()), (ErrorKind::Unavailable, Some("57P01")));
        }
        Ok(released) => assert!(matches!(released, Release::Lost(_)), "{released:?}"),
    }
    proxy.pass();
    locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap().release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn unanswered_release(server: Server) {
    for after in [AfterLoss::Close, AfterLoss::Silence] {
        let (proxy, config) = server.proxy();
        let locker = PostgresLocker::new(&config.with_query_timeout(ms(500))).unwrap();
        let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
        let hold = guard.hold();
        let rival = server.rival("k", &hold).await;
        proxy.lose_reply(1, after);
        let watch = Watch::start();
        let error = guard.release().await.unwrap_err();
        watch.within(ms(500), "an unanswered release returns");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.is_retryable() && error.key().is_some(), "{error:?}");
        let (guard, _) = rival.granted().await;
        guard.release().await.unwrap().exclusive().unwrap();
        // The proxy passes the end of the session on only if its connection can still be used for it.
        drop((locker, proxy));
        server.quiet().await;
    }
}

/// After the unlock the session is brought back from its TTL, and does not survive that.
async fn closed_after_unlock(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&config).unwrap();
    let guard = locker.acquire("k", Duration::from_secs(60)).await.unwrap();
    let pid = server.holder().await;
    proxy.lose_reply(2, AfterLoss::Close);
    guard.release().await.unwrap().exclusive().unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    assert_ne!(server.holder().await, pid, "the proxy closed it");
    guard.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

/// The answer and the end of the session arrive together.
async fn over_after_unlock(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&config).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let pid = server.holder().await;
    proxy.down(Flow::Hold);
    let end = async {
        let unlocked = async || server.observer.key_locks().await.unwrap().is_empty();
        wait_until(AMPLE, "the unlock is carried out", unlocked).await.unwrap();
        assert!(server.observer.terminate(pid).await.unwrap());
        let gone = async || server.pooled().await.iter().all(|session| session.pid != pid);
        wait_until(AMPLE, "the session is gone", gone).await.unwrap();
        proxy.pass();
    };
    let (released, ()) = tokio::join!(guard.release(), end);
    released.unwrap().exclusive().unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn restart(cluster: Cluster, server: Server) {
    let (holder, waiter) = (server.locker(), server.locker());
    let guard = holder.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let other = holder.acquire("other", Duration::from_secs(60)).await.unwrap();
    let before = guard.fencing_token().unwrap();
    let waiting = tokio::spawn(async move {
        let error = waiter.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap_err();
        (waiter, error)
    });
    server.waiters(1).await;
    let watch = Watch::start();
    tokio::task::block_in_place(|| cluster.stop_immediate()).unwrap();
    for guard in [&guard, &other] {
        assert_eq!(guard.lost().await.cause(), LossCause::SessionEnded);
        assert_eq!(guard.ensure_valid().unwrap_err().kind(), ErrorKind::Lost);
    }
    let (waiter, error) = waiting.await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    // The stop itself is in this time.
    watch.within(Duration::from_secs(3), "a crash of the server is noticed");
    let refused = waiter.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Unavailable && refused.is_retryable(), "{refused:?}");
    tokio::task::block_in_place(|| cluster.restart_immediate()).unwrap();
    let again = waiter.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    assert!(again.fencing_token().unwrap() > before, "the token went back");
    assert!(matches!(guard.release().await, Ok(Release::Lost(_))));
    again.ensure_valid().unwrap();
    again.release().await.unwrap().exclusive().unwrap();
    drop(other);
    close([holder, waiter]).await;
    Observer::connect(&server.admin).await.unwrap().quiet(AMPLE).await.unwrap();
}

/// Without a heartbeat's help: the times are the defaults.
async fn broken_off(server: Server, switch: fn(&Proxy)) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&config).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let watch = Watch::start();
    switch(&proxy);
    assert_eq!(guard.lost().await.cause(), LossCause::SessionEnded);
    watch.within(ms(100), "a broken connection is noticed");
    let next = PostgresLocker::new(&server.config()).unwrap();
    let next_guard = next.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    watch.within(ms(200), "the key is free");
    assert!(matches!(guard.release().await, Ok(Release::Lost(_))));
    next_guard.ensure_valid().unwrap();
    let error = locker.try_acquire("x", Ttl::UNTIL_RELEASED).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    proxy.pass();
    assert!(!locker.try_acquire("x", Ttl::UNTIL_RELEASED).await.unwrap().is_contended());
    next_guard.release().await.unwrap().exclusive().unwrap();
    close([locker, next]).await;
    server.quiet().await;
}

async fn black_hole(server: Server, switch: fn(&Proxy)) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&shortened(config).with_pool_size(1)).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let rival = server.rival("k", &guard.hold()).await;
    // Longer than the server would keep a silent session.
    sleep(SHORT_TTL + ms(500)).await;
    guard.ensure_valid().unwrap();
    assert!(rival.is_waiting());

    let watch = Watch::start();
    switch(&proxy);
    let loss = guard.lost().await;
    watch.within(SHORT_DETECTION, "a black hole is noticed");
    assert_eq!(loss.cause(), LossCause::HeartbeatTimeout);
    let (rival, at) = rival.granted().await;
    watch.at_within(at, SHORT_TTL + CHECK_INTERVAL, "the key is free");
    assert!(matches!(guard.release().await, Ok(Release::Lost(_))));

    // The only place comes back by its bound although the end of its session was never seen.
    proxy.pass();
    let place = wait_until(
        AMPLE,
        "a place",
        async || matches!(locker.try_acquire("x", SHORT_TTL).await, Ok(got) if !got.is_contended()),
    );
    place.await.unwrap();
    watch.within(SHORT_DETECTION + SHORT_TTL + CHECK_INTERVAL, "the place is back");
    rival.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn cut_off_waiter(server: Server) {
    let (proxy, config) = server.proxy();
    let (holder, cut_off) = (server.locker(), PostgresLocker::new(&with_short_waits(config)).unwrap());
    let guard = holder.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let waiting = tokio::spawn(async move {
        let acquired = cut_off.acquire("k", Ttl::UNTIL_RELEASED).await;
        (cut_off, acquired)
    });
    let first = server.waiters(1).await;
    let behind = {
        let locker = server.locker();
        tokio::spawn(async move { (locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap(), locker) })
    };
    assert!(server.waiters(2).await.contains(&first[0]));
    proxy.both(Flow::Drop);
    let watch = Watch::start();
    guard.release().await.unwrap().exclusive().unwrap();
    let (behind, _) = behind.await.unwrap();
    watch.within(SHORT_CUT_WAITER, "the next behind a waiter that was cut off is granted");
    behind.release().await.unwrap().exclusive().unwrap();
    // It has not heard of anything, and waits for ever as it was told: only its own cancellation ends that.
    assert!(!waiting.is_finished());
    waiting.abort();
    holder.close().await.unwrap();
    server.quiet().await;
}

async fn own_timer(server: Server) {
    let ttl = ms(1_000);
    let locker = PostgresLocker::new(&server.config()).unwrap();
    let watch = Watch::start();
    let guard = locker.acquire("k", ttl).await.unwrap();
    let pid = server.holder().await;
    let rival = server.rival("k", &guard.hold()).await;
    assert!(rival.is_waiting());
    let loss = guard.lost().await;
    assert_eq!(loss.cause(), LossCause::DeadlinePassed);
    let (rival, at) = rival.granted().await;
    watch.at_within(at, ttl, "the key of a TTL that is over is free");
    // Our own timer did it: the server's would have ended the session.
    assert!(server.observer.sessions().await.unwrap().iter().any(|session| session.pid == pid));
    assert!(matches!(guard.release().await, Ok(Release::Lost(_))));
    rival.ensure_valid().unwrap();
    rival.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

/// Were each heartbeat to give the session its whole TTL again, it would last until 3.5 s.
async fn late_heartbeat(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&shortened(config)).unwrap();
    let watch = Watch::start();
    let guard = locker.acquire("k", SHORT_TTL).await.unwrap();
    let rival = server.rival("k", &guard.hold()).await;
    proxy.reset_counts();
    // The last heartbeat comes before the margin of 250 ms.
    tokio::time::sleep_until(watch.start + ms(1_450)).await;
    assert!(proxy.counts().frontend(b'B') >= 3, "there are heartbeats: {:?}", proxy.counts());
    proxy.both(Flow::Drop);
    guard.ensure_valid().unwrap();
    guard.lost().await;
    let (rival, at) = rival.granted().await;
    watch.at_within(at, SHORT_TTL + ms(100), "the key of a TTL that is over is free");
    rival.release().await.unwrap().exclusive().unwrap();
    drop(guard);
    drop((locker, proxy));
    server.quiet().await;
}

/// A session may keep the idle limit of an earlier hold, up to twice its own.
async fn earlier_limits(server: Server) {
    for earlier in [SHORT_TTL * 2, SHORT_TTL * 5] {
        let (proxy, config) = server.proxy();
        // No heartbeat may set the limit before the cut.
        let config = shortened(config).with_pool_size(1).with_heartbeat_interval(ms(1_100));
        let locker = PostgresLocker::new(&config).unwrap();
        let guard = locker.acquire("k", earlier).await.unwrap();
        let pid = server.holder().await;
        guard.release().await.unwrap().exclusive().unwrap();
        let watch = Watch::start();
        let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
        assert_eq!(server.holder().await, pid, "on the same session");
        let rival = server.rival("k", &guard.hold()).await;
        proxy.both(Flow::Drop);
        guard.lost().await;
        let (rival, at) = rival.granted().await;
        watch.at_within(at, SHORT_TTL + ms(100), "the key of a session with an earlier limit is free");
        rival.release().await.unwrap().exclusive().unwrap();
        drop(guard);
        drop((locker, proxy));
        server.quiet().await;
    }
}

async fn slow_network(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&shortened(config)).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    proxy.both(Flow::Delay(ms(100)));
    assert!(timeout(SHORT_TTL * 2, guard.lost()).await.is_err());
    guard.ensure_valid().unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    proxy.pass();
    locker.close().await.unwrap();
    server.quiet().await;
}

/// One answer after the other would prove ownership every 1.92 s, too late for a deadline 1.73 s after each proof.
async fn slow_answers(server: Server) {
    const TAU: Duration = ms(1_200);
    // One renewal after the other, so that two answers must fit.
    const RENEWED: Duration = ms(3_000);
    let (proxy, config) = server.proxy();
    let config = config.with_heartbeat_interval(ms(250)).with_query_timeout(TAU).with_session_ttl(SHORT_TTL);
    let locker = PostgresLocker::new(&config).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let mut renewed = locker.acquire("renewed", RENEWED).await.unwrap();
    proxy.down(Flow::Delay(TAU * 4 / 5));
    let until = Instant::now() + TAU * 4;
    while Instant::now() < until {
        // Behind a heartbeat it would take 1.92 s.
        timeout(ms(1_600), renewed.renew(RENEWED)).await.expect("a renewal waits for no answer but its own").unwrap();
        guard.ensure_valid().unwrap();
    }
    renewed.release().await.unwrap().exclusive().unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    proxy.pass();
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn unanswered_heartbeats(server: Server) {
    let (proxy, config) = server.proxy();
    let config = config.with_heartbeat_interval(ms(5)).with_query_timeout(ms(800)).with_session_ttl(SHORT_TTL);
    let locker = PostgresLocker::new(&config).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    proxy.down(Flow::Hold);
    proxy.reset_counts();
    assert_eq!(guard.lost().await.cause(), LossCause::HeartbeatTimeout);
    let sent = proxy.counts().frontend(b'B');
    assert!((2..=8).contains(&sent), "{sent} heartbeats without an answer");
    proxy.pass();
    drop(guard);
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn close<const N: usize>(lockers: [PostgresLocker; N]) {
    for locker in lockers {
        locker.close().await.unwrap();
    }
}
