//! Fencing tokens of keys that were granted together.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use distributed_lock::{Backend, FencingToken, LockGuard, LockerExt, Ttl};
use futures_util::future::join_all;
use libtest_mimic::Trial;
use lock_postgres::PostgresLocker;
use lock_testkit::{Cluster, wait_until};
use tokio::{task::JoinSet, time::sleep};

use crate::{
    bench::{AMPLE, Server, ms, trial, trial_alone},
    lanes::{backend_of, give_back, names, session, take},
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial_alone(
            "tokens::token_of_a_statement_is_newer_than_any_grant_before_its_last_key",
            // Enough for a whole statement.
            |builder| builder.setting("track_activity_query_size", 8_192),
            minted_last,
        ),
        trial("tokens::tokens_of_a_key_rise_between_batches_and_single_takers", crowd),
    ]
}

/// Keys of the statement: enough that somebody else comes in before the last of them.
const KEYS: usize = 400_000;

/// The statement's first key and its last one. All between are one key, which a session can take any number of times, so that the
/// table of the server has room for them.
const FIRST: i64 = 1;
const LAST: i64 = 2;
const BETWEEN: i64 = 3;

/// The very statement of a lane that asks for so many keys, as the server shows it: keys that go back are its first parameter, those to
/// be tried its second.
async fn statement(server: &Server, keys: usize) -> String {
    // Default times, so that no heartbeat comes after it.
    let session = session(&server.config());
    let names = names("k", keys);
    for _ in 0..50 {
        let guards = take(&session, &names).await;
        let lane = backend_of(server, &names[0]).await;
        let sessions = server.observer.sessions().await.unwrap();
        let last = sessions.into_iter().find(|session| session.pid == lane).and_then(|session| session.query).unwrap();
        give_back(guards).await;
        // The last key may have gone alone.
        if last.contains("pg_try_advisory_lock") && last.contains("$2") {
            session.close().await.unwrap();
            return last;
        }
    }
    panic!("keys that are asked for together go one by one");
}

/// Another session takes and frees the last key while the statement takes those before it: the statement's token, which is for the
/// last key too, must be the newer one.
async fn minted_last(_cluster: Cluster, server: Server) {
    let text = statement(&server, 8).await;
    mint(&server, &text).await;
    server.quiet().await;
}

async fn mint(server: &Server, text: &str) {
    let rival = server.stranger().await;
    let take = "SELECT pg_try_advisory_lock($1), pg_current_xact_id()::text";
    let mut came_in_between = 0;
    for _ in 0..10 {
        if came_in_between == 2 {
            break;
        }
        let lane = server.stranger().await;
        let statement = lane.prepare(text).await.unwrap();
        let mut keys = vec![BETWEEN; KEYS];
        (keys[0], keys[KEYS - 1]) = (FIRST, LAST);
        let batch = tokio::spawn(async move {
            let row = lane.query_one(&statement, &[&Vec::<i64>::new(), &keys]).await.unwrap();
            assert!(row.get::<_, Vec<bool>>("locked").iter().all(|locked| *locked), "somebody else has a key");
            row.get::<_, String>("token")
        });
        let begun = async || !server.observer.holders(FIRST).await.unwrap().is_empty();
        wait_until(AMPLE, "the statement has its first key", begun).await.unwrap();
        let row = rival.query_one(take, &[&LAST]).await.unwrap();
        let (taken, number): (bool, String) = (row.get(0), row.get(1));
        if taken {
            rival.query_one("SELECT pg_advisory_unlock($1)", &[&LAST]).await.unwrap();
        }
        let in_between = taken && !batch.is_finished();
        let token = batch.await.unwrap();
        if in_between {
            let minted: u64 = token.rsplit(' ').next().unwrap().parse().unwrap();
            let before: u64 = number.parse().unwrap();
            assert!(
                minted > before,
                "the token {token:?} is older than {before}, whose grant of the last key came before"
            );
            came_in_between += 1;
        }
        // With all that it holds.
        let gone = async || server.observer.key_locks().await.unwrap().is_empty();
        wait_until(AMPLE, "its session is gone", gone).await.unwrap();
    }
    assert!(came_in_between > 0, "the statement was over before anybody could come in");
}

/// What the latest holder of each key had.
#[derive(Clone, Default)]
struct Latest(Arc<Mutex<BTreeMap<String, (FencingToken, bool)>>>);

impl Latest {
    /// Called while it is held; whether it was another kind of taker before.
    fn note(&self, guard: &LockGuard, in_batch: bool) -> bool {
        let token = guard.fencing_token().unwrap();
        let before = self.0.lock().unwrap().insert(guard.key().as_str().to_owned(), (token, in_batch));
        if let Some((before, _)) = before {
            assert!(before < token, "{:?}: {token} after {before}", guard.key());
        }
        before.is_some_and(|(_, before)| before != in_batch)
    }
}

/// Batches of one session, and others who take single keys of them in between.
async fn crowd(server: Server) {
    let session = session(&server.short());
    let (names, latest, done) = (names("k", 40), Latest::default(), Arc::new(AtomicBool::new(false)));
    let mut singles = JoinSet::new();
    for _ in 0..2 {
        let (locker, names, latest) = (PostgresLocker::new(&server.short()).unwrap(), names.clone(), latest.clone());
        let done = Arc::clone(&done);
        singles.spawn(async move {
            // The last of a statement are those whose token could be old.
            for name in names.iter().rev().take(8).cycle() {
                if done.load(Ordering::SeqCst) {
                    break;
                }
                let answer = locker.try_acquire(name.as_str(), Ttl::UNTIL_RELEASED).await.unwrap();
                if let Some(guard) = answer.acquired() {
                    latest.note(&guard, false);
                    guard.release().await.unwrap().exclusive().unwrap();
                }
            }
            locker.close().await.unwrap();
        });
    }
    let mut changes = 0;
    for _ in 0..200 {
        let tries = names.iter().map(|name| session.try_acquire(name.as_str(), Ttl::UNTIL_RELEASED));
        let mut guards = Vec::new();
        for answer in join_all(tries).await {
            guards.extend(answer.unwrap().acquired());
        }
        changes += guards.iter().filter(|guard| latest.note(guard, true)).count();
        give_back(guards).await;
        // So that the others have a chance.
        sleep(ms(1)).await;
    }
    done.store(true, Ordering::SeqCst);
    while let Some(single) = singles.join_next().await {
        single.unwrap();
    }
    assert!(changes > 20, "the takers hardly met: {changes}");
    session.close().await.unwrap();
    server.quiet().await;
}
