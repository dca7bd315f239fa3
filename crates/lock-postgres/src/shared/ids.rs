//! What one locker knows of each id: who holds it or asks for it on a lane, who waits for it, whether another process wants it.
//!
//! PostgreSQL would give a session its own lock again, so nobody asks a lane for an id without a claim to it.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    num::NonZeroU64,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distributed_lock::{Contention, LockKey, backend::HoldRecord};
use foldhash::fast::RandomState;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::{
    housekeeping::{Hears, Sender},
    sql_lanes as sql,
};

#[derive(Clone, Default)]
pub(super) struct Ids(Arc<[Shard; SHARDS]>);

/// So that those who ask for different ids seldom wait for each other.
const SHARDS: usize = 32;

#[derive(Default)]
#[repr(align(128))]
struct Shard(Mutex<Map>);

/// For how long those who wait here let others go first, who wait for the same key in another process and were told of its release.
const WAY: Duration = Duration::from_millis(10);

#[derive(Default)]
struct Map {
    known: HashMap<i64, Known, RandomState>,
    /// Counts turns, over all lines of the shard.
    turns: u64,
    /// What was given back of late while others wanted it.
    given_way: VecDeque<(Instant, i64)>,
}

/// An entry that says nothing is removed.
#[derive(Default)]
struct Known {
    claimed: Option<Claimed>,
    // Boxed, since few have one.
    line: Option<Box<Line>>,
}

struct Claimed {
    key: LockKey,
    /// Once it is held.
    held: Option<Held>,
    /// Whether another process waits to hear of its release.
    wanted: bool,
}

struct Held {
    record: HoldRecord,
    /// As whom it asked others to step down while it waited.
    waited_as: Option<Sender>,
}

/// Those of this locker who wait for an id.
struct Line {
    /// First come, first served: who has the turn contends with others.
    turns: Arc<Semaphore>,
    /// Rung for who has the turn when the id may have become free.
    bell: Arc<Notify>,
    members: usize,
    /// The number of the latest turn.
    latest: Option<NonZeroU64>,
}

impl Map {
    fn gives_way(&self, id: i64) -> Option<Duration> {
        let (at, _) = self.given_way.iter().rfind(|(_, given)| *given == id)?;
        WAY.checked_sub(at.elapsed()).filter(|left| !left.is_zero())
    }
}

impl fmt::Debug for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ids").finish_non_exhaustive()
    }
}

impl Ids {
    fn map(&self, id: i64) -> MutexGuard<'_, Map> {
        // Ids are hashes.
        let shard = usize::from(id.to_ne_bytes()[0]) % SHARDS;
        self.0[shard].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why not, if somebody of this locker has it, or it is not the caller's turn: others wait for it here, or the caller `waits` too and
    /// those in another process go first.
    pub(super) fn claim(&self, id: i64, key: &LockKey, waits: bool, turn: Option<&Turn>) -> Result<Claim, Contention> {
        let mut map = self.map(id);
        if waits && turn.is_none() && map.gives_way(id).is_some() {
            return Err(Contention::Held);
        }
        let known = map.known.entry(id).or_default();
        match &known.claimed {
            Some(claimed) if claimed.key == *key => return Err(Contention::HeldHere),
            Some(claimed) => return Err(Contention::Collision { held: claimed.key.clone(), wanted: key.clone() }),
            None if known.line.is_some() && turn.is_none() => return Err(Contention::Held),
            None => {}
        }
        known.claimed = Some(Claimed { key: key.clone(), held: None, wanted: false });
        Ok(Claim { ids: self.clone(), id, live: true, turn: turn.map(|turn| turn.number) })
    }

    /// Joins those who wait for this id.
    pub(super) fn join(&self, id: i64) -> InLine {
        let mut map = self.map(id);
        let line = map.known.entry(id).or_default().line.get_or_insert_with(|| {
            Box::new(Line { turns: Arc::new(Semaphore::new(1)), bell: Arc::default(), members: 0, latest: None })
        });
        line.members += 1;
        let (turns, bell) = (Arc::clone(&line.turns), Arc::clone(&line.bell));
        InLine { ids: self.clone(), id, turns, bell }
    }

    /// For how long others are to go first.
    pub(super) fn gives_way(&self, id: i64) -> Option<Duration> {
        self.map(id).gives_way(id)
    }

    /// The id may have become free: whoever has the turn is to try.
    fn ring(&self, id: i64) {
        if let Some(line) = self.map(id).known.get(&id).and_then(|known| known.line.as_ref()) {
            line.bell.notify_one();
        }
    }

    fn want(&self, id: i64) {
        if let Some(claimed) = self.map(id).known.get_mut(&id).and_then(|known| known.claimed.as_mut()) {
            claimed.wanted = true;
        }
    }
}

impl Hears for Ids {
    fn step_down(&self, id: i64, sender: Sender) {
        let map = self.map(id);
        let held = map.known.get(&id).and_then(|known| known.claimed.as_ref()?.held.as_ref());
        let record = held.filter(|held| held.waited_as != Some(sender)).map(|held| held.record.clone());
        // Outside, since it wakes others.
        drop(map);
        if let Some(record) = record {
            record.request_step_down();
        }
    }

    fn hear(&self, channel: &str, id: i64) {
        match channel {
            sql::WANTED_CHANNEL => self.want(id),
            sql::RELEASED_CHANNEL => self.ring(id),
            _ => {}
        }
    }
}

/// An id that nobody else of this locker asks a lane for. Dropped, it is free.
#[derive(Debug)]
pub(super) struct Claim {
    ids: Ids,
    pub(super) id: i64,
    /// Until it is given up: then somebody else may have one.
    live: bool,
    /// Of who has the turn, to whom a try in vain of its own is no news.
    turn: Option<NonZeroU64>,
}

impl Claim {
    pub(super) fn hold(&self, record: HoldRecord, waited_as: Option<Sender>) {
        if let Some(claimed) = self.ids.map(self.id).known.get_mut(&self.id).and_then(|known| known.claimed.as_mut()) {
            claimed.held = Some(Held { record, waited_as });
        }
    }

    /// Gives it up once the server has it back; whether another process is to be told.
    pub(super) fn give_up(mut self) -> bool {
        let wanted = self.end();
        if wanted {
            let (mut map, now) = (self.ids.map(self.id), Instant::now());
            while map.given_way.front().is_some_and(|(at, _)| now.duration_since(*at) >= WAY) {
                map.given_way.pop_front();
            }
            map.given_way.push_back((now, self.id));
        }
        wanted
    }

    fn end(&mut self) -> bool {
        if !std::mem::take(&mut self.live) {
            return false;
        }
        let mut map = self.ids.map(self.id);
        let Some(known) = map.known.get_mut(&self.id) else { return false };
        let claimed = known.claimed.take();
        let was_held = claimed.as_ref().is_some_and(|claimed| claimed.held.is_some());
        match &known.line {
            Some(line) if was_held || self.turn.is_none() || self.turn != line.latest => line.bell.notify_one(),
            Some(_) => {}
            None => {
                map.known.remove(&self.id);
            }
        }
        drop(map);
        claimed.is_some_and(|claimed| claimed.wanted)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.end();
    }
}

/// A place among those who wait. Dropped, it is given up.
pub(super) struct InLine {
    ids: Ids,
    id: i64,
    turns: Arc<Semaphore>,
    bell: Arc<Notify>,
}

/// The turn of the first of those who wait.
pub(super) struct Turn {
    // Before the place, so that the next one has its turn when this one leaves.
    _permit: Option<OwnedSemaphorePermit>,
    place: InLine,
    number: NonZeroU64,
}

impl InLine {
    /// When all who came before have gone. Cancel safe: a dropped future gives up the place.
    pub(super) async fn turn(self) -> Turn {
        // Never closed.
        let permit = Arc::clone(&self.turns).acquire_owned().await.ok();
        let number = {
            let mut map = self.ids.map(self.id);
            let number = NonZeroU64::MIN.saturating_add(map.turns);
            map.turns += 1;
            if let Some(line) = map.known.get_mut(&self.id).and_then(|known| known.line.as_mut()) {
                line.latest = Some(number);
            }
            number
        };
        Turn { _permit: permit, place: self, number }
    }
}

impl Turn {
    /// Until the id may have become free; what happened before counts. Cancel safe.
    pub(super) async fn rung(&self) {
        self.place.bell.notified().await;
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        let mut map = self.ids.map(self.id);
        let Some(known) = map.known.get_mut(&self.id) else { return };
        if let Some(line) = &mut known.line {
            line.members -= 1;
            if line.members == 0 {
                known.line = None;
            }
        }
        if known.line.is_none() && known.claimed.is_none() {
            map.known.remove(&self.id);
        }
    }
}
