//! The lanes of one locker: chosen by what they hold, opened when all are full.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use distributed_lock::{Contention, Result};
use tokio::{runtime::Handle, time::timeout};

use super::{
    lane::{Lane, Lock, Order},
    runtime::OwnRuntime,
};
use crate::{
    connect::Connector,
    core::Core,
    pool::{CONNECT_SLACK, within},
};

/// Keys of one lane. Every statement of a session walks all that it holds: a few hundred cost little.
const KEYS: usize = 256;

/// How many TTLs have lanes of their own.
const TTLS: usize = 8;

/// How long closing waits for the end of a session that owns nothing.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Lanes {
    core: Arc<Core>,
    connector: Connector,
    runtime: OnceLock<Arc<OwnRuntime>>,
    // A std mutex: never held across an await.
    open: Mutex<Vec<Arc<Lane>>>,
    /// One at a time, so that a crowd that comes at once does not open one each.
    opening: tokio::sync::Mutex<()>,
}

impl Lanes {
    pub(super) fn new(core: Arc<Core>, connector: Connector) -> Self {
        Self {
            core,
            connector,
            runtime: OnceLock::new(),
            open: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<Lane>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own_runtime(&self) -> Result<&Arc<OwnRuntime>> {
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime);
        }
        let started = Arc::new(OwnRuntime::start()?);
        // Somebody else may have been quicker.
        Ok(self.runtime.get_or_init(|| started))
    }

    pub(super) fn runtime(&self) -> Result<&Handle> {
        Ok(self.own_runtime()?.handle())
    }

    /// Gives it to a lane, opening one if need be for at most this long; why not, if there is none in time. Cancel safe.
    pub(super) async fn give(&self, lock: Box<Lock>, wait: Option<Duration>) -> Result<Option<Contention>> {
        let Err(lock) = self.give_to_one(lock) else { return Ok(None) };
        let opened = async {
            let _turn = self.opening.lock().await;
            // Somebody else may have opened one meanwhile.
            let Err(lock) = self.give_to_one(lock) else { return Ok(None) };
            let (core, connector, runtime) =
                (Arc::clone(&self.core), self.connector.clone(), Arc::clone(self.own_runtime()?));
            let timing = lock.timing;
            let opening = self.runtime()?.spawn(async move { Lane::open(&core, &connector, runtime, timing).await });
            let lane = Arc::new(opening.await.unwrap_or_else(|_| Err(super::ended()))?);
            self.open().push(Arc::clone(&lane));
            // Either closing found the lane in the list, or we find that it has begun.
            if self.core.ensure_open().is_err() {
                let _ = lane.give(Order::Close);
            }
            // One that has ended already answers by dropping the order.
            let _ = lane.give(Order::Lock(lock.in_lane(&lane)));
            Ok(None)
        };
        within(wait.map(|wait| wait.saturating_add(CONNECT_SLACK)), opened).await?
    }

    fn give_to_one(&self, lock: Box<Lock>) -> std::result::Result<(), Box<Lock>> {
        let Some(lane) = self.choose(lock.timing.ttl()) else { return Err(lock) };
        match lane.give(Order::Lock(lock.in_lane(&lane))) {
            Ok(()) => Ok(()),
            Err(Order::Lock(lock)) => Err(lock),
            Err(_) => unreachable!("BUG: a refused order is the one that was given"),
        }
    }

    /// The emptiest of those whose sessions the server ends after this TTL of silence. Once there are lanes for many TTLs, one for a
    /// shorter TTL serves too.
    fn choose(&self, ttl: Duration) -> Option<Arc<Lane>> {
        let mut open = self.open();
        open.retain(|lane| !lane.is_over());
        let ttls: BTreeSet<_> = open.iter().map(|lane| lane.ttl()).collect();
        let serves = match ttls.contains(&ttl) || ttls.len() < TTLS {
            true => ttl,
            false => ttls.range(..ttl).next_back().copied().unwrap_or(ttl),
        };
        let fits = |lane: &&Arc<Lane>| lane.ttl() == serves && lane.load() < KEYS;
        open.iter().filter(fits).min_by_key(|lane| lane.load()).cloned()
    }

    /// Ends all of them, and waits until the server has let go of them.
    pub(super) async fn close(&self) {
        let open = std::mem::take(&mut *self.open());
        for lane in &open {
            let _ = lane.give(Order::Close);
        }
        for lane in open {
            lane.ended().await;
            let _ = timeout(CLOSE_LIMIT, lane.until_eof()).await;
        }
    }
}
