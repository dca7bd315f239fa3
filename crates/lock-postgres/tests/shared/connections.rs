//! How many sessions and how many statements many keys and many waiters cost.

use std::{sync::Arc, time::Duration};

use distributed_lock::{Backend, LockerExt, Ttl};
use libtest_mimic::Trial;
use lock_postgres::PostgresSharedSession;
use lock_testkit::Cluster;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    bench::{AMPLE, Server, ms, trial, trial_alone},
    lanes::{all_are_in_line, first_waits_in_the_server, give_back, names, session, start, take},
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial_alone(
            "connections::case_61_keys_and_waiters_by_the_hundred_cost_a_handful_of_sessions",
            |builder| builder.setting("max_connections", 15),
            many,
        ),
        trial("connections::case_65_herd_of_one_process_asks_once_for_all", herd),
    ]
}

/// Two processes: what this one holds, what both wait for, and what it may have for that. A lane and a session that keeps house
/// each, one connection that waits for the end of the other's lane, and one for what is being opened.
const HELD: usize = 200;
const WAITERS: usize = 50;
const SESSIONS: usize = 6;

async fn waits(session: &Arc<PostgresSharedSession>, names: &[String]) -> JoinSet<()> {
    let mut waiters = JoinSet::new();
    for name in names {
        let (session, name) = (Arc::clone(session), name.clone());
        let waits = async move {
            let guard = session.acquire(name.as_str(), Ttl::UNTIL_RELEASED).await.unwrap();
            guard.release().await.unwrap().exclusive().unwrap();
        };
        start(&mut waiters, waits).await;
    }
    waiters
}

async fn many(_cluster: Cluster, server: Server) {
    let (ours, theirs) = (Arc::new(session(&server.config())), session(&server.config()));
    let (own, foreign) = (names("own", HELD), names("foreign", WAITERS / 2));
    let (owned, others) = (take(&ours, &own).await, take(&theirs, &foreign).await);
    let mut waiters = waits(&ours, &[&own[..WAITERS / 2], &foreign[..]].concat()).await;
    let mut most = 0;
    // They wait for two seconds.
    for _ in 0..200 {
        let sessions = server.observer.sessions().await.unwrap();
        most = most.max(sessions.len());
        assert!(most <= SESSIONS, "{sessions:#?}");
        sleep(ms(10)).await;
        if let Some(early) = waiters.try_join_next() {
            panic!("one waited for a held key: {early:?}");
        }
    }
    give_back(others).await;
    give_back(owned).await;
    while let Some(waiter) = timeout(AMPLE, waiters.join_next()).await.expect("a waiter does not get its key") {
        waiter.unwrap();
        most = most.max(server.observer.sessions().await.unwrap().len());
    }
    println!("{most} sessions for {HELD} keys and {WAITERS} waiters, {SESSIONS} are allowed");
    assert!(most <= SESSIONS, "{most} sessions");
    ours.close().await.unwrap();
    theirs.close().await.unwrap();
    server.quiet().await;
}

/// Of waiters of one key in one process.
const HERD: u64 = 50;

/// Round trips while nobody gets it, in two seconds: polls that grow rarer and heartbeats, whatever the number of waiters.
const WAITING: u64 = 15;

/// Round trips for each grant: the lock, its release and the word that it is free.
const PER_GRANT: u64 = 4;

async fn herd(server: Server) {
    let (proxy, config) = server.proxy();
    let (ours, theirs) = (Arc::new(session(&config)), session(&server.config()));
    let guard = theirs.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    ours.acquire("opens the lane", Ttl::UNTIL_RELEASED).await.unwrap().release().await.unwrap().exclusive().unwrap();
    let mut waiters = waits(&ours, &vec!["k".to_owned(); HERD as usize]).await;
    // Then all that this opens is open: the session that waits for the end of the holder's lane, and the one that keeps house.
    first_waits_in_the_server(&server, "k").await;
    all_are_in_line(&ours).await;
    proxy.reset_counts();
    sleep(Duration::from_secs(2)).await;
    let waiting = proxy.round_trips().unwrap();
    println!("{waiting} round trips while {HERD} waited for two seconds, {WAITING} are allowed");
    assert!(waiting <= WAITING, "{waiting} round trips while nobody gets the key");
    proxy.reset_counts();
    guard.release().await.unwrap().exclusive().unwrap();
    while let Some(waiter) = timeout(AMPLE, waiters.join_next()).await.expect("a waiter does not get it") {
        waiter.unwrap();
    }
    let granting = proxy.round_trips().unwrap();
    println!("{granting} round trips for {HERD} grants, {PER_GRANT} each are allowed");
    assert!(granting <= HERD * PER_GRANT, "{granting} round trips for {HERD} grants");
    ours.close().await.unwrap();
    theirs.close().await.unwrap();
    drop((ours, proxy));
    server.quiet().await;
}
