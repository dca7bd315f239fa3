//! Many keys in one statement: whose answer is whose, and what becomes of a statement that fails in its middle.

use std::{collections::BTreeSet, time::Duration};

use distributed_lock::{Attempt, Backend, ErrorKind, LockGuard, LockKey, LockerExt, Ttl};
use futures_util::future::join_all;
use libtest_mimic::Trial;
use lock_testkit::{Cluster, proxy::Flow, wait_until};
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use crate::{
    bench::{AMPLE, SHORT_TTL, Server, ms, shortened, trial, trial_alone},
    lanes::{backend_of, give_back, held, id, ids, names, session, take},
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("batches::case_27_release_of_one_key_leaves_the_others_of_its_lane", one_of_many),
        trial("batches::answers_of_statements_in_flight_are_not_mixed_up", answers),
        trial("batches::key_given_back_and_taken_again_is_free_when_it_is_given_back", again_and_again),
        trial_alone(
            "batches::statement_that_fails_in_its_middle_leaves_nothing_and_hurts_no_other_hold",
            |builder| small(builder.setting("max_locks_per_transaction", 64)),
            out_of_room,
        ),
    ]
}

/// A server whose lock table is filled soon.
fn small(builder: lock_testkit::postgres::Builder) -> lock_testkit::postgres::Builder {
    builder
        .setting("max_connections", 12)
        .setting("autovacuum", "off")
        .setting("max_worker_processes", 1)
        .setting("max_wal_senders", 0)
        .setting("wal_level", "minimal")
}

async fn one_of_many(server: Server) {
    let session = session(&server.short());
    let names = names("k", 10);
    let mut guards = take(&session, &names).await;
    let pid = backend_of(&server, &names[0]).await;
    for name in &names[..5] {
        guards.remove(0).release().await.unwrap().exclusive().unwrap();
        let rest: BTreeSet<_> = guards.iter().map(|guard| id(guard.key().as_str())).collect();
        assert_eq!(held(&server).await.remove(&pid), Some(rest), "after the release of {name:?}");
        guards.iter().for_each(|guard| guard.ensure_valid().unwrap());
    }
    give_back(guards).await;
    assert!(held(&server).await.is_empty());
    session.close().await.unwrap();
    server.quiet().await;
}

/// Half of the keys are a stranger's, no two statements have the same half.
async fn answers(server: Server) {
    let (session, stranger) = (session(&server.short()), server.stranger().await);
    let names = names("k", 240);
    let foreign: Vec<_> = names.iter().map(|name| id(name)).filter(|id| id % 2 == 0).collect();
    stranger.execute("SELECT pg_advisory_lock(k) FROM unnest($1::int8[]) AS k", &[&foreign]).await.unwrap();
    for _ in 0..5 {
        let tries = names.iter().map(|name| session.try_acquire(name.as_str(), Ttl::UNTIL_RELEASED));
        let mut guards = Vec::new();
        for (name, answer) in names.iter().zip(join_all(tries).await) {
            let answer = answer.unwrap();
            assert_eq!(answer.is_contended(), id(name) % 2 == 0, "{name:?}: {answer:?}");
            guards.extend(answer.acquired());
        }
        let ours: BTreeSet<_> = guards.iter().map(|guard| id(guard.key().as_str())).collect();
        let held: BTreeSet<_> = held(&server).await.into_values().flatten().filter(|id| id % 2 != 0).collect();
        assert_eq!(held, ours);
        give_back(guards).await;
    }
    drop(stranger);
    session.close().await.unwrap();
    server.quiet().await;
}

/// To the server a key that is tried before it was given back is a second lock of the same session.
async fn again_and_again(server: Server) {
    let session = session(&server.short());
    let names = names("k", 60);
    for round in 0..20 {
        // Not at the same time, so that releases and tries of the same keys meet in the statements in flight.
        let turns = names.iter().enumerate().map(|(number, name)| {
            let session = &session;
            async move {
                for _ in 0..1 + number % 5 {
                    let acquired = session.acquire(name.as_str(), Ttl::UNTIL_RELEASED).await.unwrap();
                    if number % 3 == 0 {
                        // Its release is not waited for.
                        drop(acquired);
                    } else {
                        acquired.release().await.unwrap().exclusive().unwrap();
                    }
                }
            }
        });
        join_all(turns).await;
        let free = wait_until(AMPLE, "all is given back", async || held(&server).await.is_empty());
        free.await.unwrap_or_else(|_| panic!("keys are left in round {round}"));
    }
    session.close().await.unwrap();
    server.quiet().await;
}

/// Takes keys until the server has no room for one more.
async fn fill(stranger: &Client) {
    let failed = stranger.query("SELECT pg_advisory_lock(n) FROM generate_series(1, 1000000) AS n", &[]).await;
    let failed = failed.expect_err("the table has no end");
    assert_eq!(failed.code().map(tokio_postgres::error::SqlState::code), Some("53200"), "{failed}");
}

/// Of a key that the stranger took.
async fn make_room(stranger: &Client, keys: i64) {
    let query = "SELECT count(*) FILTER (WHERE f.ok) FROM (SELECT pg_advisory_unlock(n) AS ok FROM generate_series(1, $1::int8) AS n) AS f";
    let freed: i64 = stranger.query_one(query, &[&keys]).await.unwrap().get(0);
    assert_eq!(freed, keys);
}

/// What a backend holds, asked in a way that takes no place in the table itself: that of a shared catalogue would.
async fn keys_of(admin: &Client, pid: i32) -> BTreeSet<i64> {
    let query = "SELECT (classid::int8 << 32) | objid::int8 FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND pid = $1";
    admin.query(query, &[&pid]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

const ROOM: i64 = 4;

/// A dozen asks in flight, and room for four: the statement with most of them fails behind its first keys.
async fn out_of_room(_cluster: Cluster, server: Server) {
    let (proxy, config) = server.proxy();
    let session = session(&shortened(config));
    let stranger = server.stranger().await;
    let first = names("first", 2);
    let firsts = take(&session, &first).await;
    let (admin, pid) = (server.admin().await, backend_of(&server, &first[0]).await);
    assert_eq!(keys_of(&admin, pid).await, ids(&first));
    fill(&stranger).await;
    make_room(&stranger, ROOM).await;

    let asked = names("asked", 12);
    proxy.reset_counts();
    proxy.down(Flow::Hold);
    let asks = join_all(asked.iter().map(|name| session.try_acquire(name.as_str(), Ttl::UNTIL_RELEASED)));
    // The first of them are under way, so the others go together.
    let together = async {
        wait_until(AMPLE, "a statement is sent", async || proxy.counts().frontend(b'B') >= 1).await.unwrap();
        proxy.pass();
    };
    let (answers, ()) = tokio::join!(asks, together);
    let mut guards = Vec::new();
    let mut refused = 0;
    for (name, answer) in asked.iter().zip(answers) {
        match answer {
            Ok(Attempt::Acquired(guard)) => {
                assert_eq!(guard.key().as_str(), name);
                guards.push(guard);
            }
            Ok(Attempt::Contended(why)) => panic!("nobody holds {name:?}: {why}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::LimitReached, "{error:?}");
                assert_eq!(error.key().map(LockKey::as_str), Some(name.as_str()), "{error:?}");
                refused += 1;
            }
        }
    }
    assert!(refused >= asked.len() - ROOM as usize, "there is no room for {} keys", guards.len());
    // What was taken by the part of a statement may go back a moment later.
    let exactly = async |guards: &[LockGuard]| {
        let ours: BTreeSet<_> = firsts.iter().chain(guards).map(|guard| id(guard.key().as_str())).collect();
        let mut lane = BTreeSet::new();
        let same = wait_until(AMPLE, "nothing leaks", async || {
            lane = keys_of(&admin, pid).await;
            lane == ours
        });
        same.await.unwrap_or_else(|_| panic!("the lane holds {lane:?}, its guards {ours:?}"));
    };
    exactly(&guards).await;

    // They live on, by their heartbeats, for longer than the server would let them without.
    let lost = timeout(SHORT_TTL + ms(500), firsts[0].lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    firsts.iter().chain(&guards).for_each(|guard| guard.ensure_valid().unwrap());
    exactly(&guards).await;

    stranger.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    give_back(guards).await;
    // A locker may remember for a moment that there was no room.
    let (mut all, mut tries) = (Vec::new(), 0);
    while all.len() < asked.len() {
        let wanted = asked[all.len()].as_str();
        match session.try_acquire(wanted, Ttl::UNTIL_RELEASED).await {
            Ok(answer) => all.push(answer.into_result().unwrap()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::LimitReached, "{error:?}"),
        }
        tries += 1;
        assert!(tries < 100, "there is room, and it is not used");
        sleep(Duration::from_millis(10)).await;
    }
    exactly(&all).await;
    give_back(all).await;
    give_back(firsts).await;
    drop((stranger, admin));
    session.close().await.unwrap();
    drop(session);
    drop(proxy);
    server.quiet().await;
}
