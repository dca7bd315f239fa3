//! What these tests ask of lanes: keys, many at a time, and which backend holds which.

use std::collections::{BTreeMap, BTreeSet};

use distributed_lock::{LockGuard, LockKey, LockerExt, Ttl};
use futures_util::future::join_all;
use lock_postgres::{KeyScheme, PostgresConfig, PostgresSharedSession};

use crate::bench::Server;

pub(crate) fn session(config: &PostgresConfig) -> PostgresSharedSession {
    PostgresSharedSession::new(config).unwrap()
}

/// Of a key in the server.
pub(crate) fn id(name: &str) -> i64 {
    KeyScheme::default().id(0, &LockKey::new(name).unwrap())
}

pub(crate) fn ids(names: &[String]) -> BTreeSet<i64> {
    names.iter().map(|name| id(name)).collect()
}

pub(crate) fn names(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{what} {number}")).collect()
}

/// All at once, all free.
pub(crate) async fn take(session: &PostgresSharedSession, names: &[String]) -> Vec<LockGuard> {
    let tries = join_all(names.iter().map(|name| session.try_acquire(name.as_str(), Ttl::UNTIL_RELEASED)));
    let answers = tries.await.into_iter();
    answers.map(|answer| answer.unwrap().into_result().unwrap()).collect()
}

/// All at once, all held to the end.
pub(crate) async fn give_back(guards: Vec<LockGuard>) {
    for released in join_all(guards.into_iter().map(LockGuard::release)).await {
        released.unwrap().exclusive().unwrap();
    }
}

/// The ids of keys that each backend holds.
pub(crate) async fn held(server: &Server) -> BTreeMap<i32, BTreeSet<i64>> {
    let mut held = BTreeMap::<_, BTreeSet<_>>::new();
    for lock in server.observer.key_locks().await.unwrap().into_iter().filter(|lock| lock.granted) {
        held.entry(lock.pid.unwrap()).or_default().insert(lock.key.unwrap());
    }
    held
}

/// The backend that holds it.
pub(crate) async fn backend_of(server: &Server, name: &str) -> i32 {
    let holders = server.observer.holders(id(name)).await.unwrap();
    let holders: Vec<_> = holders.iter().filter(|lock| lock.granted).collect();
    let [holder] = holders[..] else { panic!("not one holder of {name:?}: {holders:?}") };
    holder.pid.unwrap()
}
