//! The server's lock table, which all its clients share: what a shared session takes of it at most.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distributed_lock::{Attempt, Backend, ErrorKind, LockGuard, LockerExt, Ttl};
use futures_util::future::join_all;
use libtest_mimic::Trial;
use lock_testkit::{Cluster, wait_until};
use tokio::{task::JoinSet, time::sleep};
use tokio_postgres::{Client, NoTls};

use crate::{
    bench::{AMPLE, Server, ms, trial, trial_alone},
    lanes::{give_back, held, ids, names, session, take},
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial_alone(
            "table::case_60_greedy_sessions_leave_a_quarter_of_the_lock_table_to_others",
            |builder| builder.setting("max_locks_per_transaction", 64).setting("max_connections", 100),
            greedy,
        ),
        trial_alone(
            "table::ten_thousand_keys_are_held_by_a_bounded_number_of_sessions_and_all_given_back",
            |builder| builder.setting("max_locks_per_transaction", 256).setting("max_connections", 100),
            ten_thousand,
        ),
        trial("table::keys_in_places_that_a_lane_has_reserved_need_no_gate", no_gate),
        trial_alone(
            "table::places_that_are_reserved_and_empty_are_nobody_elses",
            |builder| builder.setting("max_locks_per_transaction", 64).setting("max_connections", 20),
            kept_places,
        ),
        trial("table::places_that_a_burst_has_reserved_come_back", burst),
    ]
}

/// More than a lane takes unasked.
const BURST: usize = 200;

/// Blocks of places that lanes have reserved.
async fn blocks(client: &Client) -> i64 {
    let query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 3 AND objsubid = 2";
    client.query_one(query, &[]).await.unwrap().get(0)
}

async fn no_gate(server: Server) {
    // Default times, so that no heartbeat comes in between.
    let session = session(&server.config());
    let names = names("k", BURST);
    give_back(take(&session, &names).await).await;
    let stranger = server.stranger().await;
    stranger.batch_execute("SELECT pg_advisory_lock(2, 1)").await.unwrap();
    give_back(take(&session, &names).await).await;
    session.close().await.unwrap();
}

async fn kept_places(_cluster: Cluster, server: Server) {
    let admin = server.admin().await;
    let half = room(&admin).await / 2;
    // Default times, so that nothing that is reserved goes back meanwhile.
    let mut sessions = Vec::new();
    for number in 0.. {
        let names = names(&format!("of {number}"), 256);
        let one = session(&server.config());
        let answers = join_all(names.iter().map(|name| one.try_acquire(name.as_str(), Ttl::UNTIL_RELEASED))).await;
        sessions.push(one);
        let mut refused = 0;
        for answer in answers {
            match answer {
                Ok(attempt) => drop(attempt),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::LimitReached, "{error:?}");
                    refused += 1;
                }
            }
        }
        let blocks = blocks(&admin).await;
        assert!(blocks * 64 <= half, "{blocks} blocks are reserved of {half} places");
        if refused > 0 {
            break;
        }
    }
    assert!(sessions.len() > 1, "the first one found no room");
    for session in sessions {
        session.close().await.unwrap();
    }
}

async fn burst(server: Server) {
    let admin = server.admin().await;
    let session = session(&server.config().with_heartbeat_interval(ms(100)));
    let mut guards = take(&session, &names("k", BURST)).await;
    assert_eq!(blocks(&admin).await, 3);
    let kept = guards.split_off(BURST - 30);
    give_back(guards).await;
    let are = async |wanted| blocks(&admin).await == wanted;
    wait_until(AMPLE, "all blocks but one have come back", async || are(1).await).await.unwrap();
    give_back(kept).await;
    wait_until(AMPLE, "all blocks have come back", async || are(0).await).await.unwrap();
    give_back(take(&session, &names("k", BURST)).await).await;
    session.close().await.unwrap();
    server.quiet().await;
}

/// Together they want more than the table has.
const GREEDY: usize = 20;
const WANTED: usize = 400;

/// Locks of any kind that a server has room for, by its own settings. It has some more in reserve.
async fn room(client: &Client) -> i64 {
    let query = "SELECT current_setting('max_locks_per_transaction')::int8
        * (current_setting('max_connections')::int8 + current_setting('max_prepared_transactions')::int8)";
    client.query_one(query, &[]).await.unwrap().get(0)
}

/// Somebody who has nothing to do with all this.
async fn pass_by(url: &str) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("there is no room to connect");
    tokio::spawn(connection);
    let made = client.batch_execute("CREATE TABLE public.unrelated (n int4 PRIMARY KEY); DROP TABLE public.unrelated");
    made.await.expect("there is no room for a table");
}

async fn greedy(_cluster: Cluster, server: Server) {
    let admin = server.admin().await;
    let room = room(&admin).await;
    assert!((GREEDY * WANTED) as i64 > room);
    let done = Arc::new(AtomicBool::new(false));
    let (url, stop) = (server.url.clone(), Arc::clone(&done));
    let unrelated = tokio::spawn(async move {
        let mut rounds = 0;
        while !stop.load(Ordering::SeqCst) {
            pass_by(&url).await;
            rounds += 1;
            sleep(ms(5)).await;
        }
        rounds
    });
    let stop = Arc::clone(&done);
    let sampler = tokio::spawn(async move {
        let mut most = 0;
        while !stop.load(Ordering::SeqCst) {
            let locks: i64 = admin.query_one("SELECT count(*) FROM pg_locks", &[]).await.unwrap().get(0);
            most = most.max(locks);
            sleep(ms(2)).await;
        }
        most
    });
    let mut sessions = JoinSet::new();
    for number in 0..GREEDY {
        let session = session(&server.config());
        sessions.spawn(async move {
            let names = names(&format!("of {number}"), WANTED);
            let tries = names.iter().map(|name| session.try_acquire(name.as_str(), Ttl::UNTIL_RELEASED));
            let mut guards = Vec::new();
            for answer in join_all(tries).await {
                match answer {
                    Ok(Attempt::Acquired(guard)) => guards.push(guard),
                    Ok(Attempt::Contended(why)) => panic!("nobody holds it: {why}"),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::LimitReached, "{error:?}"),
                }
            }
            (session, guards)
        });
    }
    let mut greedy = Vec::new();
    while let Some(taken) = sessions.join_next().await {
        greedy.push(taken.unwrap());
    }
    done.store(true, Ordering::SeqCst);
    let (most, rounds) = (sampler.await.unwrap(), unrelated.await.unwrap());
    let taken: usize = greedy.iter().map(|(_, guards)| guards.len()).sum();
    println!("{taken} keys taken, {most} locks of {room} at most, {rounds} tables made meanwhile");
    assert!(most * 4 <= room * 3, "{most} locks of {room}");
    assert!(rounds > 0);
    // Also now that they have all that they get.
    pass_by(&server.url).await;
    for (session, guards) in greedy {
        assert!(!guards.is_empty(), "one of them got nothing");
        guards.iter().for_each(|guard| guard.ensure_valid().unwrap());
        give_back(guards).await;
        session.close().await.unwrap();
    }
    server.quiet().await;
}

const MANY: usize = 10_000;

/// Keys of a lane.
const LANE: usize = 256;

async fn ten_thousand(_cluster: Cluster, server: Server) {
    let session = session(&server.config());
    let (other, names) = (server.stranger().await, names("k", MANY));
    let mut guards: Vec<LockGuard> = Vec::new();
    for some in names.chunks(2_000) {
        guards.extend(take(&session, some).await);
    }
    let keys = ids(&names);
    assert_eq!((guards.len(), keys.len()), (MANY, MANY));
    let lanes = held(&server).await;
    assert_eq!(lanes.values().flatten().copied().collect::<BTreeSet<_>>(), keys);
    let sessions = server.observer.sessions().await.unwrap().len();
    println!("{MANY} keys on {} lanes, {sessions} sessions with the stranger's", lanes.len());
    // A lane that is being opened while others fill up; one that keeps house; the stranger.
    assert!(sessions <= MANY.div_ceil(LANE) + 3, "{sessions} sessions");

    // All exclusive against another client, and still so a while later, by heartbeats.
    let all: Vec<_> = keys.iter().copied().collect();
    let tried = "SELECT count(*) FILTER (WHERE t.ok) FROM (SELECT pg_try_advisory_lock(k) AS ok FROM unnest($1::int8[]) AS k) AS t";
    for _ in 0..2 {
        assert_eq!(other.query_one(tried, &[&all]).await.unwrap().get::<_, i64>(0), 0, "it got a key that is held");
        sleep(Duration::from_secs(1)).await;
    }
    guards.iter().for_each(|guard| guard.ensure_valid().unwrap());

    session.close().await.unwrap();
    assert!(guards.iter().all(|guard| guard.ensure_valid().is_err()));
    assert_eq!(other.query_one(tried, &[&all]).await.unwrap().get::<_, i64>(0), MANY as i64, "not all are free");
    drop((other, guards));
    server.quiet().await;
}
