//! What these tests ask of lanes: keys, many at a time, which backend holds which, and who waits.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::{Future, poll_fn},
    task::Poll,
};

use distributed_lock::{Inspect, LockGuard, LockKey, LockerExt, Ttl};
use futures_util::future::join_all;
use lock_postgres::{KeyScheme, PostgresConfig, PostgresSharedSession};
use lock_testkit::wait_until;
use tokio::{
    sync::oneshot,
    task::{AbortHandle, JoinSet},
};

use crate::bench::{AMPLE, Server};

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

/// Spawned, and polled once: what it asks for first is on its way.
pub(crate) async fn start<T: Send + 'static>(
    tasks: &mut JoinSet<T>,
    task: impl Future<Output = T> + Send + 'static,
) -> AbortHandle {
    let (tell, polled) = oneshot::channel();
    let handle = tasks.spawn(async move {
        let mut task = Box::pin(task);
        let first = poll_fn(|context| Poll::Ready(task.as_mut().poll(context))).await;
        tell.send(()).unwrap();
        match first {
            Poll::Ready(value) => value,
            Poll::Pending => task.await,
        }
    });
    polled.await.unwrap();
    handle
}

/// Waits until all who asked this session for a held key, and need not ask the server for it, have their place in line: this look goes
/// the same way, behind them, to the thread of the session.
pub(crate) async fn all_are_in_line(session: &PostgresSharedSession) {
    session.holders(&LockKey::new("of nobody").unwrap()).await.unwrap();
}

/// Whether somebody waits in the server for this key or for the end of a lane.
async fn waits_in_the_server(server: &Server, key: &str) -> bool {
    let locks = server.observer.advisory_locks().await.unwrap();
    locks.iter().any(|lock| !lock.granted && lock.key.is_none_or(|key_of| key_of == id(key)))
}

/// Waits until the first in line for a key that somebody else holds waits for it in the server, or for the end of the holder's lane.
pub(crate) async fn first_waits_in_the_server(server: &Server, key: &str) {
    let waits = async || waits_in_the_server(server, key).await;
    wait_until(AMPLE, "the first in line waits in the server", waits).await.unwrap();
}

/// Waits until nobody does so any more: a session whose client is gone may wait for a while.
pub(crate) async fn nobody_waits_in_the_server(server: &Server, key: &str) {
    let gone = async || !waits_in_the_server(server, key).await;
    wait_until(AMPLE, "nobody waits in the server", gone).await.unwrap();
}
