//! The lanes of one locker: chosen by what they hold, opened when all are full.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distributed_lock::{Contention, Error, ErrorKind, Result, Ttl};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    lane::{Asked, Lane, Lock, Order},
    notices::Notices,
};
use crate::{
    connect::Connector,
    core::Core,
    jitter::jittered,
    pool::{CONNECT_SLACK, within},
    runtime::OwnRuntime,
    timing::Timing,
};

/// Keys of one lane. Every statement of a session walks all that it holds: a few hundred cost little.
const KEYS: usize = 256;

/// How many TTLs have lanes of their own.
const TTLS: usize = 8;

/// After a lane that could not be opened, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How long closing waits for the end of a session that owns nothing.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Lanes {
    core: Arc<Core>,
    connector: Connector,
    notices: Notices,
    runtime: Arc<OwnRuntime>,
    /// Those that have not ended yet. A std mutex: never held across an await.
    open: Mutex<Vec<Arc<Lane>>>,
    /// One at a time, so that a crowd that comes at once does not open one each.
    opening: Arc<tokio::sync::Mutex<Failures>>,
}

/// Of opening a lane, in a row.
#[derive(Debug, Default)]
struct Failures {
    pause: Duration,
    /// When the next attempt may be made.
    over: Option<Instant>,
}

impl Lanes {
    pub(super) fn new(core: Arc<Core>, connector: Connector, notices: Notices, runtime: Arc<OwnRuntime>) -> Self {
        Self { core, connector, notices, runtime, open: Mutex::default(), opening: Arc::default() }
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<Lane>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<Arc<Lane>> {
        self.open().iter().filter(|lane| !lane.is_over()).cloned().collect()
    }

    /// Gives it to a lane that is open; back if there is none that fits.
    pub(super) fn give(&self, lock: Asked) -> Option<Asked> {
        let Some(lane) = self.choose(lock.timing.ttl()) else { return Some(lock) };
        match lane.give(Order::Lock(lock.in_lane(&lane))) {
            Err(Order::Lock(lock)) => Some(lock),
            _ => None,
        }
    }

    /// Gives it to a lane, opening one if need be for at most this long; why not, if there is none in time. Cancel safe.
    pub(super) async fn open_for(self: &Arc<Self>, lock: Asked, wait: Option<Duration>) -> Result<Option<Contention>> {
        let opened = async {
            let mut failures = Arc::clone(&self.opening).lock_owned().await;
            // Somebody else may have opened one meanwhile.
            let Some(lock) = self.give(lock) else { return Ok(None) };
            if let Some(over) = failures.over {
                sleep_until(over).await;
            }
            self.core.ensure_open()?;
            let (lanes, timing) = (Arc::clone(self), self.timing_for(&lock)?);
            let opening = self.runtime.handle().spawn(async move {
                let Self { core, connector, notices, runtime, .. } = &*lanes;
                let opened = Lane::open(core, connector, notices, Arc::clone(runtime), timing).await;
                failures.note(opened.is_err());
                opened.map(|lane| lanes.add(lane))
            });
            let lane = opening.await.unwrap_or_else(|_| Err(super::ended()))?;
            // One that has ended already answers by dropping the order.
            let _ = lane.give(Order::Lock(lock.in_lane(&lane)));
            Ok(None)
        };
        within(wait.map(|wait| wait.saturating_add(CONNECT_SLACK)), opened).await?
    }

    fn add(&self, lane: Lane) -> Arc<Lane> {
        let lane = Arc::new(lane);
        self.open().push(Arc::clone(&lane));
        // Either closing found the lane in the list, or we find that it has begun.
        if self.core.ensure_open().is_err() {
            let _ = lane.give(Order::Close);
        }
        lane
    }

    /// The first with room whose session the server ends after this TTL of silence, so that those that are not needed become idle. Once
    /// there are lanes for many TTLs, one for a shorter TTL serves too.
    fn choose(&self, ttl: Duration) -> Option<Arc<Lane>> {
        let mut open = self.open();
        if open.iter().any(|lane| lane.has_ended()) {
            open.retain(|lane| !lane.has_ended());
        }
        let first = |serves: Duration| {
            let fits = |lane: &&Arc<Lane>| lane.ttl() == serves && lane.load() < KEYS && !lane.is_over();
            open.iter().find(fits).cloned()
        };
        first(ttl).or_else(|| {
            let ttls = ttls(&open);
            let is_new = !ttls.contains(&ttl) && ttls.len() >= TTLS;
            is_new.then(|| ttls.range(..ttl).next_back().copied()).flatten().and_then(first)
        })
    }

    /// The timing of a lane that is to be opened for such a lock: once there are lanes for many TTLs, that of a power of two.
    fn timing_for(&self, lock: &Lock) -> Result<Timing> {
        let ttls = ttls(&self.open());
        if ttls.len() < TTLS || ttls.contains(&lock.timing.ttl()) {
            return Ok(lock.timing);
        }
        let seconds = lock.timing.ttl().as_secs().max(1);
        self.core.timing(Ttl::new(Duration::from_secs(1 << seconds.ilog2()))?)
    }

    /// Ends all of them, and waits until the server has let go of them, for at most this long.
    pub(super) async fn close(&self, limit: Duration) -> Result<()> {
        let closing = async {
            // First those who wait for an answer: to open a lane can take long.
            for lane in self.open().clone() {
                // One that takes no orders any more, because it was lost, may still keep others out.
                if lane.give(Order::Close).is_err() {
                    lane.shut_down();
                }
            }
            // One that is being opened sees that it comes too late.
            drop(self.opening.lock().await);
            let lanes = self.open().clone();
            let ends = lanes.iter().map(|lane| async {
                lane.ended().await;
                let _ = timeout(CLOSE_LIMIT, lane.until_eof()).await;
            });
            join_all(ends).await;
        };
        if timeout(limit, closing).await.is_ok() {
            return Ok(());
        }
        for lane in &*self.open() {
            lane.shut_down();
        }
        let message =
            format!("not every session ended within {limit:?}; their sockets were closed, and the server ends them");
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

/// Those of lanes that take orders.
fn ttls(open: &[Arc<Lane>]) -> BTreeSet<Duration> {
    open.iter().filter(|lane| !lane.is_over()).map(|lane| lane.ttl()).collect()
}

impl Failures {
    fn note(&mut self, failed: bool) {
        self.pause = match failed {
            true => (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE),
            false => Duration::ZERO,
        };
        self.over = failed.then(|| Instant::now() + jittered(self.pause));
    }
}
