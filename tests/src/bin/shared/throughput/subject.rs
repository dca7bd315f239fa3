//! What acquires and releases.

use std::{sync::Arc, time::Duration};

use distributed_lock::{AcquireOptions, Attempt, Fencing, LockKey, Locker, Ttl};
use lock_testkit::Redis;
use rslock::LockManager;

use crate::Failure;

use super::tasks::TASKS;

const TTL: Duration = Duration::from_secs(30);

pub(super) enum Subject {
    Locker(Locked),
    Redis { manager: LockManager, keys: Vec<Vec<u8>> },
}

/// One of our lockers, and a key for each task.
pub(super) struct Locked {
    locker: Arc<dyn Locker>,
    options: AcquireOptions,
    keys: Vec<LockKey>,
}

impl Locked {
    pub(super) fn new(locker: Arc<dyn Locker>, fencing: Fencing) -> Result<Self, Failure> {
        let options = AcquireOptions::new(Ttl::new(TTL)?).with_fencing(fencing);
        Ok(Self { locker, options, keys: names().map(LockKey::new).collect::<Result<_, _>>()? })
    }

    pub(super) async fn pair(&self, task: usize) -> Result<(), Failure> {
        match self.locker.acquire_opts(&self.keys[task], &self.options).await? {
            Attempt::Acquired(guard) => {
                assert_eq!(guard.fencing_token().is_some(), self.options.fencing == Fencing::On);
                Ok(guard.release().await?.exclusive()?)
            }
            Attempt::Contended(why) => Err(why.into()),
        }
    }
}

impl Subject {
    pub(super) fn redis(redis: &Redis) -> Self {
        Self::Redis { manager: LockManager::new(vec![redis.url()]), keys: names().map(String::into_bytes).collect() }
    }

    pub(super) async fn pair(&self, task: usize) -> Result<(), Failure> {
        match self {
            Self::Locker(locked) => locked.pair(task).await,
            Self::Redis { manager, keys } => {
                let lock = manager.lock(&keys[task], TTL).await?;
                manager.unlock(&lock).await;
                Ok(())
            }
        }
    }
}

fn names() -> impl Iterator<Item = String> {
    (0..TASKS).map(|task| format!("throughput:{task}"))
}
