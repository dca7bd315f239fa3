//! Lanes that end, runtimes that are blocked, and what a holder sees of its lane's lease.

use std::time::Duration;

use distributed_lock::{Backend, LockGuard, LockerExt, LossCause, Release, Ttl};
use libtest_mimic::{Failed, Trial};
use lock_testkit::{Cluster, requirement};
use tokio::{runtime::Builder, time::timeout};

use crate::{
    bench::{AMPLE, SHORT_DETECTION, SHORT_TTL, Server, Watch, ms, state_of, trial},
    lanes::{backend_of, give_back, held, id, ids, names, session, take},
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("loss::lane_that_is_ended_takes_its_own_holds_along_and_no_others", ended_lane),
        trial("loss::asks_on_a_lane_that_is_ended_are_answered_and_leave_nothing", ended_under_asks),
        requirement::trial(
            "loss::application_that_blocks_its_runtime_for_three_ttls_loses_nothing",
            Cluster::shared,
            |cluster| {
                Builder::new_current_thread().enable_all().build()?.block_on(blocked(cluster));
                Ok::<_, Failed>(())
            },
        ),
        trial("loss::renewal_moves_the_end_that_the_holder_sees_as_far_as_its_lane_s_lease", renewal),
    ]
}

/// More than one lane takes.
const KEYS: usize = 300;

async fn ended_lane(server: Server) {
    let session = session(&server.short());
    let names = names("k", KEYS);
    let guards = take(&session, &names).await;
    let lanes = held(&server).await;
    assert!(lanes.len() > 1, "{KEYS} keys are on one lane");
    let pid = backend_of(&server, "k 0").await;
    let is_lost = |guard: &LockGuard| lanes[&pid].contains(&id(guard.key().as_str()));
    // One waits for a key that is about to be lost, one for a key of another lane.
    let kept = guards.iter().find(|guard| !is_lost(guard)).unwrap();
    let rival = server.rival_of_another_process("k 0").await;
    let (locker, key) = (server.locker(), kept.key().clone());
    let patient = tokio::spawn(async move { locker.acquire(&key, Ttl::UNTIL_RELEASED).await.unwrap() });
    server.waiters(2).await;
    let watch = Watch::start();
    assert!(rival.is_waiting());
    assert!(server.observer.terminate(pid).await.unwrap());
    for guard in guards.iter().filter(|guard| is_lost(guard)) {
        let loss = timeout(AMPLE, guard.lost()).await.expect("it is not told");
        assert_eq!((loss.cause(), state_of(&loss).as_deref()), (LossCause::SessionEnded, Some("57P01")), "{loss:?}");
        guard.ensure_valid().unwrap_err();
    }
    watch.within(ms(100), "the end of a lane is told");
    let (rival, at) = rival.granted().await;
    watch.at_within(at, ms(100), "a key of the ended lane goes on");
    let (lost, kept): (Vec<_>, Vec<_>) = guards.into_iter().partition(is_lost);
    assert!(!lost.is_empty() && !kept.is_empty());
    // Longer than a lane lives without heartbeats.
    let told = timeout(SHORT_TTL + ms(500), kept[0].lost()).await;
    assert!(told.is_err(), "a hold of another lane was told {told:?}");
    kept.iter().for_each(|guard| guard.ensure_valid().unwrap());
    assert!(!patient.is_finished(), "a key of another lane was given away");
    let mut now = held(&server).await;
    for (other, keys) in lanes.iter().filter(|(other, _)| **other != pid) {
        assert_eq!(now.remove(other).as_ref(), Some(keys), "another lane lost a key");
    }
    rival.release().await.unwrap().exclusive().unwrap();

    // What was lost can be taken anew, and the guards of the old holds leave it alone.
    let lost_names: Vec<_> = lost.iter().map(|guard| guard.key().as_str().to_owned()).collect();
    let again = take(&session, &lost_names).await;
    for guard in lost {
        assert!(matches!(guard.release().await, Ok(Release::Lost(_))));
    }
    again.iter().chain(&kept).for_each(|guard| guard.ensure_valid().unwrap());
    assert_eq!(held(&server).await.into_values().flatten().collect::<std::collections::BTreeSet<_>>(), ids(&names));
    give_back(again).await;
    give_back(kept).await;
    give_back(vec![timeout(AMPLE, patient).await.expect("a waiter does not get it").unwrap()]).await;
    session.close().await.unwrap();
    // Those who waited drop their pools with their guards.
    server.quiet().await;
}

/// Whatever the answer is, it comes, and what was not granted is free.
async fn ended_under_asks(server: Server) {
    let session = session(&server.short());
    for round in 0..10 {
        let anchor = session.acquire("anchor", Ttl::UNTIL_RELEASED).await.unwrap();
        let (pid, names) = (backend_of(&server, "anchor").await, names(&format!("round {round}"), 100));
        let tries = names.iter().map(|name| session.try_acquire(name.as_str(), Ttl::UNTIL_RELEASED));
        let tries = timeout(AMPLE, futures_util::future::join_all(tries));
        let (answers, ended) = tokio::join!(tries, server.observer.terminate(pid));
        assert!(ended.unwrap());
        let mut guards = Vec::new();
        for answer in answers.expect("an ask is never answered") {
            match answer {
                Ok(answer) => guards.push(answer.into_result().unwrap()),
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        }
        timeout(AMPLE, anchor.lost()).await.expect("it is not told");
        drop(guards);
        drop(anchor);
        let free = lock_testkit::wait_until(AMPLE, "all keys are free", async || held(&server).await.is_empty());
        free.await.unwrap();
    }
    session.close().await.unwrap();
    server.quiet().await;
}

/// A program whose only thread computes. The same on a connection of the caller's runtime is a loss, or this would show nothing.
async fn blocked(cluster: &Cluster) {
    let server = Server::on(cluster).await;
    let (session, locker) = (session(&server.short()), server.locker());
    let guard = session.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let hostage = locker.acquire("hostage", Ttl::UNTIL_RELEASED).await.unwrap();
    let pid = backend_of(&server, "k").await;
    #[expect(clippy::disallowed_methods, reason = "the blocked thread is the scenario")]
    std::thread::sleep(SHORT_TTL * 3);
    guard.ensure_valid().unwrap();
    hostage.ensure_valid().unwrap_err();
    assert_eq!(backend_of(&server, "k").await, pid);
    drop(hostage);
    guard.release().await.unwrap().exclusive().unwrap();
    session.close().await.unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

/// A hold ends with its TTL or with its lane's lease, whichever is first: a heartbeat that proves the lane moves the one, a renewal
/// the other.
async fn renewal(server: Server) {
    let session = session(&server.short());
    let mut guard = session.acquire("k", ms(1_500)).await.unwrap();
    let other = session.acquire("other", Ttl::UNTIL_RELEASED).await.unwrap();
    assert!(guard.remaining().unwrap() <= ms(1_500));
    guard.renew(Duration::from_secs(60)).await.unwrap();
    let (left, lane) = (guard.remaining().unwrap(), other.remaining().unwrap());
    assert!(left > ms(900) && left <= Duration::from_secs(60), "{left:?} are left after a renewal to a minute");
    assert!(lane <= SHORT_TTL, "{lane:?} are left of a lane's lease of {SHORT_TTL:?}");
    // Past the first TTL, and past the lane's.
    let told = timeout(SHORT_TTL + SHORT_DETECTION, guard.lost()).await;
    assert!(told.is_err(), "a renewed hold was told {told:?}");
    guard.ensure_valid().unwrap();
    guard.renew(ms(1_200)).await.unwrap();
    let left = guard.remaining().unwrap();
    assert!(left <= ms(1_200), "{left:?} are left after the hold was shortened to 1.2 s");
    let loss = timeout(AMPLE, guard.lost()).await.expect("a shortened hold has no end");
    assert_eq!(loss.cause(), LossCause::DeadlinePassed);
    other.ensure_valid().unwrap();
    other.release().await.unwrap().exclusive().unwrap();
    drop(guard);
    session.close().await.unwrap();
    server.quiet().await;
}
