//! The keys, all at once.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use distributed_lock::{LockGuard, LockKey, LockerExt, Ttl};
use lock_postgres::{KeyScheme, PostgresSharedSession};
use lock_testkit::Observer;
use tokio::{task::JoinSet, time::Instant};

use crate::Failure;

pub(super) struct Keys {
    keys: Vec<LockKey>,
    /// Of the same, in the same order.
    pub(super) ids: Vec<i64>,
}

/// With its id.
pub(super) type Held = (i64, LockGuard);

impl Keys {
    pub(super) fn new(count: usize) -> Result<Self, Failure> {
        let keys: Vec<_> = (0..count).map(|number| LockKey::new(format!("many:{number}"))).collect::<Result<_, _>>()?;
        let ids = keys.iter().map(|key| KeyScheme::default().id(0, key)).collect();
        Ok(Self { keys, ids })
    }

    /// A task for each, as a program would that has so many things to do.
    pub(super) async fn acquire(&self, locker: &Arc<PostgresSharedSession>) -> Result<Vec<Held>, Failure> {
        let mut asking = JoinSet::new();
        for (key, id) in self.keys.iter().cloned().zip(self.ids.iter().copied()) {
            let locker = Arc::clone(locker);
            asking.spawn(async move { Ok::<_, Failure>((id, locker.acquire(key, Ttl::UNTIL_RELEASED).await?)) });
        }
        all(asking).await
    }

    pub(super) async fn timed(&self, locker: &Arc<PostgresSharedSession>) -> Result<(Vec<Held>, Duration), Failure> {
        let start = Instant::now();
        let guards = self.acquire(locker).await?;
        Ok((guards, start.elapsed()))
    }

    pub(super) async fn release(&self, guards: Vec<Held>) -> Result<(), Failure> {
        let mut releasing = JoinSet::new();
        for (_, guard) in guards {
            releasing.spawn(async move { Ok::<_, Failure>(guard.release().await?.exclusive()?) });
        }
        all(releasing).await.map(drop)
    }

    /// Which of them each session holds, as the server says.
    pub(super) async fn by_session(&self, observer: &Observer) -> Result<BTreeMap<i32, Vec<i64>>, Failure> {
        let ours: HashSet<_> = self.ids.iter().copied().collect();
        let mut held = BTreeMap::<_, Vec<_>>::new();
        for lock in observer.key_locks().await? {
            if let (Some(pid), Some(id), true) = (lock.pid, lock.key.filter(|id| ours.contains(id)), lock.granted) {
                held.entry(pid).or_default().push(id);
            }
        }
        Ok(held)
    }
}

/// What all of them gave.
pub(super) async fn all<T: 'static>(mut tasks: JoinSet<Result<T, Failure>>) -> Result<Vec<T>, Failure> {
    let mut outcomes = Vec::with_capacity(tasks.len());
    while let Some(outcome) = tasks.join_next().await {
        outcomes.push(outcome??);
    }
    Ok(outcomes)
}
