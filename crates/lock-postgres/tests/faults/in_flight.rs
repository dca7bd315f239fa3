//! Heartbeats and renewals that are on their way while their hold ends, or is given up.

use std::{
    future::Future,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use distributed_lock::{Backend, ErrorKind, Hold, LockerExt, LossCause, Release, Ttl};
use libtest_mimic::{Failed, Trial};
use lock_postgres::{PostgresConfig, PostgresLocker};
use lock_testkit::{Cluster, proxy::Flow, requirement, wait_until};
use tokio::{
    runtime::{Builder, Handle},
    sync::mpsc::{UnboundedSender, unbounded_channel},
    time::sleep,
};

use crate::bench::{AMPLE, SHORT_TTL, Server, ms, shortened, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let on_one_thread = |name, test: fn(&Cluster)| {
        requirement::trial(name, Cluster::shared, move |cluster| {
            test(cluster);
            Ok::<_, Failed>(())
        })
    };
    vec![
        trial("in_flight::renewal_that_fails_is_answered_after_the_hold_has_ended", failed_renewals),
        trial("in_flight::release_ends_with_the_refusal_of_the_heartbeat_before_it", refused_while_leaving),
        trial("in_flight::renewal_to_another_ttl_waits_for_no_answer_but_its_own", slow_changes),
        trial("in_flight::answers_of_before_do_not_undo_a_shortening", shortened_behind),
        on_one_thread("in_flight::keeper_that_may_send_nothing_sleeps", held_back),
    ]
}

/// Says at each wake whether the hold was valid.
struct Woken {
    hold: Hold,
    valid: UnboundedSender<bool>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let _ = self.valid.send(self.hold.ensure_valid().is_ok());
    }
}

/// Whoever awaits a renewal may run before whatever comes after the answer: were the hold still valid then, its end would get another
/// cause, one that says that the server has let go of it.
async fn failed_renewals(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&shortened(config)).unwrap();
    for ttl in [SHORT_TTL, SHORT_TTL * 2] {
        let mut guard = locker.acquire("k", SHORT_TTL).await.unwrap();
        let hold = guard.hold();
        proxy.down(Flow::Drop);
        let (valid, mut woken) = unbounded_channel();
        let waker = Waker::from(Arc::new(Woken { hold: hold.clone(), valid }));
        let mut last = None;
        let mut renewal = Box::pin(guard.renew(ttl));
        let lost = loop {
            match renewal.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(renewed) => break renewed.unwrap_err(),
                Poll::Pending => last = woken.recv().await,
            }
        };
        assert_eq!((lost.kind(), last), (ErrorKind::Lost, Some(false)), "{ttl:?}: answered while the hold was valid");
        assert_eq!(hold.lost().await.cause(), LossCause::HeartbeatTimeout, "{ttl:?}");
        drop(renewal);
        drop(guard);
        proxy.pass();
    }
}

/// Nobody works under the lock any more, so there is nothing to wait for.
async fn refused_while_leaving(server: Server) {
    let admin = server.admin().await;
    admin.batch_execute("CREATE ROLE refused_while_leaving LOGIN").await.unwrap();
    let (proxy, _) = server.proxy();
    let url = format!("{}?sslmode=disable", proxy.url(&server.url_of("refused_while_leaving")));
    let locker = PostgresLocker::new(&frequent(PostgresConfig::from_url(url))).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let refuse = "REVOKE EXECUTE ON FUNCTION pg_catalog.pg_try_advisory_lock(int4, int4) FROM public";
    proxy.down(Flow::Delay(ms(300)));
    admin.batch_execute(refuse).await.unwrap();
    proxy.reset_counts();
    wait_until(AMPLE, "a heartbeat is in flight", async || proxy.counts().frontend(b'B') > 0).await.unwrap();
    let released = guard.release().await;
    assert!(matches!(released, Ok(Release::Lost(_))), "{released:?}");
}

/// Many heartbeats in the time in which one may stay unanswered.
fn frequent(config: PostgresConfig) -> PostgresConfig {
    config.with_heartbeat_interval(ms(50)).with_query_timeout(ms(4_000)).with_session_ttl(ms(8_000))
}

/// While the answers are missing no more heartbeats go, be it that the hold is given up or that a change of its TTL comes first.
fn held_back(cluster: &Cluster) {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let server = Server::on(cluster).await;
        let (proxy, config) = server.proxy();
        let locker = PostgresLocker::new(&frequent(config).with_watchdog(false)).unwrap();
        for gives_up in [true, false] {
            let mut guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
            proxy.down(Flow::Drop);
            proxy.reset_counts();
            wait_until(AMPLE, "a heartbeat is in flight", async || proxy.counts().frontend(b'B') > 0).await.unwrap();
            let wakes = || Handle::current().metrics().worker_park_count(0);
            let before = wakes();
            // The next heartbeat would be due after half a second.
            let while_held_back = sleep(ms(1_200));
            if gives_up {
                tokio::select! {
                    released = guard.release() => panic!("{released:?}"),
                    () = while_held_back => {}
                }
            } else {
                tokio::select! {
                    renewed = guard.renew(ms(9_000)) => panic!("{renewed:?}"),
                    () = while_held_back => {}
                }
            }
            let woken = wakes() - before;
            assert!(woken < 50, "woke {woken} times for nothing; gives up: {gives_up}");
            proxy.pass();
        }
    });
}

/// The answers to a heartbeat and to the renewal behind it take longer together than the lease has left.
async fn slow_changes(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&config).unwrap();
    let mut guard = locker.acquire("k", ms(3_000)).await.unwrap();
    proxy.down(Flow::Delay(ms(1_300)));
    for ttl in [4_000, 3_500, 4_000, 3_000] {
        guard.renew(ms(ttl)).await.unwrap();
        guard.ensure_valid().unwrap();
    }
    guard.release().await.unwrap().exclusive().unwrap();
    proxy.pass();
    locker.close().await.unwrap();
    server.quiet().await;
}

/// It counts from its send, though what was proven before it, and is answered later, was for longer.
async fn shortened_behind(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&config).unwrap();
    let mut guard = locker.acquire("k", ms(8_000)).await.unwrap();
    let hold = guard.hold();
    proxy.down(Flow::Delay(ms(1_500)));
    proxy.reset_counts();
    let sent = |count| {
        let proxy = &proxy;
        wait_until(AMPLE, "it is under way", async move || proxy.counts().frontend(b'B') == count)
    };
    sent(1).await.unwrap();
    assert!(hold.remaining().unwrap() > ms(4_000));
    let looks = async {
        sent(2).await.unwrap();
        loop {
            assert!(hold.remaining().unwrap() <= ms(2_000), "an older answer undid it");
            sleep(ms(1)).await;
        }
    };
    // The heartbeat is answered on the way. On a busy machine the renewal may come too late for so short a TTL.
    tokio::select! {
        _renewed = guard.renew(ms(2_000)) => {}
        () = looks => {}
    }
    assert!(hold.remaining().unwrap() <= ms(2_000));
    drop(guard);
    proxy.pass();
    locker.close().await.unwrap();
    server.quiet().await;
}
