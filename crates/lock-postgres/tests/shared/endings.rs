//! Ends that come twice, too early or not at all: of a hold, a turn, a lane, the locker.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
    time::Duration,
};

use distributed_lock::{Backend, ErrorKind, LockerExt, LossCause, Ttl};
use futures_util::FutureExt;
use libtest_mimic::Trial;
use lock_testkit::{Cluster, proxy::Flow};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    bench::{AMPLE, Server, Watch, ms, shortened, trial, trial_alone, with_short_waits},
    lanes::{held, names, session, start, take},
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("endings::release_that_is_dropped_midway_ends_its_hold_alone", dropped_release),
        trial("endings::hold_dropped_when_its_ttl_ends_ends_alone", expired_and_dropped),
        trial("endings::turn_that_is_given_up_under_a_try_goes_to_the_next", turn_given_up),
        trial("endings::lane_without_answers_keeps_others_out_until_its_last_holder_is_done", work_until_the_deadline),
        trial("endings::key_of_which_a_lane_heard_nothing_is_free_when_it_ends", unanswered_ask),
        trial("endings::close_ends_a_lane_that_keeps_others_out_too", close_after_a_loss),
        trial("endings::close_answers_at_once_though_a_lane_is_being_opened", close_beside_an_opening),
        trial("endings::close_ends_in_time_though_the_server_is_silent", close_of_a_silent_server),
        trial("endings::ttls_that_are_all_different_share_a_few_lanes", many_ttls),
        trial_alone(
            "endings::gate_that_somebody_keeps_is_an_error_in_time",
            |cluster| cluster.setting("max_locks_per_transaction", 64).setting("max_connections", 100),
            kept_gate,
        ),
    ]
}

async fn dropped_release(server: Server) {
    let session = session(&server.short());
    let neighbour = session.acquire("neighbour", Ttl::UNTIL_RELEASED).await.unwrap();
    for round in 0..20 {
        let guard = session.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
        // Sent, and given up; the drop of the guard gives the key back again.
        let _ = Box::pin(guard.release()).now_or_never();
        drop(session.acquire_within("k", Ttl::UNTIL_RELEASED, AMPLE).await.unwrap().acquired().unwrap());
        neighbour.ensure_valid().unwrap_or_else(|error| panic!("round {round}: {error:?}"));
    }
}

async fn expired_and_dropped(server: Server) {
    const SHORT: Duration = ms(1_100);
    let session = session(&server.short());
    for round in 0..3 {
        let mut neighbour = session.acquire("neighbour", SHORT).await.unwrap();
        let mut guards = Vec::new();
        for key in names(&format!("r{round}"), 60) {
            guards.push(session.acquire(key.as_str(), SHORT).await.unwrap());
        }
        let mut renewed = Instant::now();
        while let Some(guard) = guards.first() {
            if renewed.elapsed() > ms(100) {
                neighbour.renew(SHORT).await.unwrap();
                renewed = Instant::now();
            }
            // Just when our own timer gives it back.
            if guard.ensure_valid().is_err() {
                drop(guards.remove(0));
            } else {
                tokio::task::yield_now().await;
            }
        }
        neighbour.renew(SHORT).await.unwrap();
        neighbour.release().await.unwrap().exclusive().unwrap();
    }
}

async fn turn_given_up(server: Server) {
    let (proxy, config) = server.proxy();
    let session = Arc::new(session(&shortened(config)));
    // Opens the lane.
    drop(session.acquire("other", Ttl::UNTIL_RELEASED).await.unwrap());
    let holder = server.locker().acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    // As long as a try of the first takes.
    proxy.down(Flow::Delay(ms(200)));
    let wait = || {
        let session = Arc::clone(&session);
        tokio::spawn(async move { session.acquire("k", Ttl::UNTIL_RELEASED).await })
    };
    let first = wait();
    sleep(ms(260)).await;
    let second = wait();
    sleep(ms(40)).await;
    first.abort();
    sleep(ms(400)).await;
    proxy.pass();
    holder.release().await.unwrap().exclusive().unwrap();
    let guard = timeout(AMPLE, second).await.expect("the next in turn waits on for a free key").unwrap().unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
}

/// Says when it is dropped.
struct Work(mpsc::Sender<Instant>);

impl Drop for Work {
    fn drop(&mut self) {
        let _ = self.0.send(Instant::now());
    }
}

async fn work_until_the_deadline(server: Server) {
    const TTL: Duration = ms(8_000);
    let (proxy, config) = server.proxy();
    let session = session(&config);
    let _opens_the_lane = session.acquire("first", TTL).await.unwrap();
    // Granted well after the last proof of the lane.
    sleep(ms(800)).await;
    let mut guard = session.acquire("k", TTL).await.unwrap();
    proxy.down(Flow::Hold);
    let rival = server.rival_of_another_process("k").await;
    let (done, ended) = mpsc::channel();
    let work = tokio::spawn(async move {
        let work = Work(done);
        let never = async move {
            let _work = work;
            std::future::pending::<()>().await;
        };
        guard.run(ms(4_900), never).await
    });
    let (_rival, granted) = timeout(AMPLE, rival.granted()).await.unwrap();
    let _lost = work.await.unwrap();
    let ended = ended.recv().unwrap();
    assert!(granted >= ended, "two worked at once for {:?}", ended - granted);
}

/// The server has granted it, and whoever asked was told that they do not have it.
async fn unanswered_ask(server: Server) {
    let (proxy, config) = server.proxy();
    // With a lease that would last for seconds more.
    let session = session(&with_short_waits(config));
    session.acquire("other", Ttl::UNTIL_RELEASED).await.unwrap().release().await.unwrap().exclusive().unwrap();
    proxy.down(Flow::Hold);
    let refused = session.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused:?}");
    let watch = Watch::start();
    let next = server.locker().acquire_within("k", Ttl::UNTIL_RELEASED, AMPLE).await.unwrap().into_result().unwrap();
    watch.within(ms(500), "a key that was asked for in vain is free");
    next.release().await.unwrap().exclusive().unwrap();
}

/// One whose holder was told of its loss, and whose session lives on so that nobody else gets in yet.
async fn close_after_a_loss(server: Server) {
    let (proxy, config) = server.proxy();
    let session = session(&with_short_waits(config));
    let guard = session.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    proxy.down(Flow::Hold);
    let loss = timeout(AMPLE, guard.lost()).await.expect("it is not told");
    assert_eq!(loss.cause(), LossCause::HeartbeatTimeout, "{loss:?}");
    proxy.pass();
    // By another lane.
    session.acquire("other", Ttl::UNTIL_RELEASED).await.unwrap().release().await.unwrap().exclusive().unwrap();
    assert!(!held(&server).await.is_empty(), "nobody is kept out");
    session.close().await.unwrap();
    assert_eq!(held(&server).await, BTreeMap::new(), "it was closed");
    guard.ensure_valid().unwrap_err();
}

/// On a silent server, so that neither the lane nor who is opening another one hears anything.
async fn close_beside_an_opening(server: Server) {
    let (proxy, config) = server.proxy();
    let session = Arc::new(session(&config.with_close_timeout(ms(1_000))));
    let guard = session.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    proxy.both(Flow::Hold);
    let mut asking = JoinSet::new();
    for (key, ttl) in [("on the lane", Ttl::UNTIL_RELEASED), ("on another", ms(30_000).try_into().unwrap())] {
        let session = Arc::clone(&session);
        start(&mut asking, async move { session.try_acquire(key, ttl).await.unwrap_err() }).await;
    }
    let watch = Watch::start();
    let closing = tokio::spawn(async move { session.close().await });
    let loss = timeout(AMPLE, guard.lost()).await.expect("it is not told");
    watch.within(ms(100), "a holder is told");
    assert_eq!(loss.cause(), LossCause::Closed, "{loss:?}");
    for refused in asking.join_all().await {
        assert_eq!(refused.kind(), ErrorKind::Closed, "{refused:?}");
    }
    watch.within(ms(100), "those under way are answered");
    assert!(closing.await.unwrap().is_err(), "it says that all has ended");
    proxy.pass();
}

async fn close_of_a_silent_server(server: Server) {
    let (proxy, config) = server.proxy();
    let session = session(&shortened(config).with_close_timeout(ms(1_000)));
    let guard = session.acquire("k", ms(30_000)).await.unwrap();
    proxy.both(Flow::Hold);
    let start = Instant::now();
    let closed = timeout(AMPLE, session.close()).await.expect("it does not come back");
    assert!(closed.is_err(), "it says that all has ended");
    assert!(start.elapsed() < ms(5_000), "{:?} with a limit of 1 s", start.elapsed());
    drop(guard);
    proxy.pass();
}

async fn many_ttls(server: Server) {
    let session = session(&server.short());
    let mut most = 0;
    for number in 0..40 {
        let guard = session.acquire("k", ms(60_000 - number * 100)).await.unwrap();
        guard.release().await.unwrap().exclusive().unwrap();
        most = most.max(server.observer.sessions().await.unwrap().len());
    }
    println!("{most} sessions, 15 are allowed");
    assert!(most <= 15, "{most} sessions for one key at a time");
    session.close().await.unwrap();
}

async fn kept_gate(_cluster: Cluster, server: Server) {
    let session = session(&server.short());
    let stranger = server.stranger().await;
    stranger.batch_execute("SELECT pg_advisory_lock(2, 1)").await.unwrap();
    // What a lane takes unasked.
    let guards = take(&session, &names("k", 14)).await;
    let tried = timeout(AMPLE, session.try_acquire("one more", Ttl::UNTIL_RELEASED)).await;
    let refused = tried.expect("a try has no answer").unwrap_err();
    assert!(refused.to_string().contains("(2, 1)"), "{refused}");
    drop(guards);
}
