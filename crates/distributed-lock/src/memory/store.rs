//! The shared state: who holds a key and who waits for it. Nothing here waits.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::Notify;

use super::{controls::Faults, handle::MemoryHandle, shows_token};
use crate::{
    AcquireOptions, BackendId, Clock, FencingToken, LockGuard, LockKey, Loss, LossCause, Ttl, backend::HoldRecord,
};

pub(super) struct Store {
    pub(super) clock: Arc<dyn Clock>,
    // A std mutex: never held across an await.
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    slots: HashMap<LockKey, Slot>,
    last_token: u128,
    last_ticket: u64,
}

#[derive(Default)]
struct Slot {
    held: Option<Held>,
    queue: VecDeque<Arc<Ticket>>,
}

struct Held {
    token: FencingToken,
    locker: BackendId,
    program: Program,
    since: Instant,
    expires: Option<Instant>,
    record: HoldRecord,
}

/// One who waits.
struct Ticket {
    number: u64,
    program: Program,
    since: Instant,
    bell: Notify,
}

/// What the program of a locker calls itself.
pub(super) type Program = Option<Arc<str>>;

/// Who asks for what.
pub(super) struct Grant<'a> {
    pub(super) store: &'a Arc<Store>,
    pub(super) locker: BackendId,
    pub(super) program: &'a Program,
    pub(super) faults: &'a Arc<Faults>,
    pub(super) key: &'a LockKey,
    pub(super) options: &'a AcquireOptions,
}

pub(super) enum Look {
    Ours(LockGuard),
    Held { here: bool, free_at: Option<Instant> },
}

impl Store {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shows no keys: a guard prints its own, not everybody's.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// A place in the queue; left when dropped, granted or not.
pub(super) struct Place<'a> {
    store: &'a Store,
    key: &'a LockKey,
    ticket: Arc<Ticket>,
}

impl<'a> Place<'a> {
    pub(super) fn queue(store: &'a Store, program: &Program, key: &'a LockKey) -> Self {
        let since = store.clock.now();
        let mut state = store.lock();
        state.last_ticket += 1;
        let ticket =
            Arc::new(Ticket { number: state.last_ticket, program: program.clone(), since, bell: Notify::new() });
        state.slots.entry(key.clone()).or_default().queue.push_back(Arc::clone(&ticket));
        drop(state);
        Self { store, key, ticket }
    }

    /// Completes when it is worth looking again. Cancel safe: a wake-up that nobody took stays.
    pub(super) async fn woken(&self) {
        self.ticket.bell.notified().await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        if let Some(slot) = state.slots.get_mut(self.key) {
            slot.queue.retain(|ticket| !Arc::ptr_eq(ticket, &self.ticket));
            slot.wake_first();
        }
        state.tidy(self.key);
    }
}

impl State {
    /// Takes the key if it is free and nobody stands in front of this place; without a place, if nobody waits at all.
    pub(super) fn look(&mut self, grant: &Grant<'_>, place: Option<&Place<'_>>) -> Look {
        let now = grant.store.clock.now();
        let slot = self.slots.entry(grant.key.clone()).or_default();
        let first = match (slot.queue.front(), place) {
            (None, None) => true,
            (Some(front), Some(place)) => Arc::ptr_eq(front, &place.ticket),
            _ => false,
        };
        if first && slot.held.as_ref().is_some_and(|held| held.is_over(now)) {
            slot.end(Loss::new(LossCause::DeadlinePassed));
        }
        if !first || slot.held.is_some() {
            if let Some(held) = slot.held.as_ref().filter(|_| grant.options.ask_step_down) {
                held.record.request_step_down();
            }
            let here = slot.held.as_ref().is_some_and(|held| held.locker == grant.locker);
            return Look::Held { here, free_at: slot.held.as_ref().filter(|_| first).and_then(|held| held.expires) };
        }
        self.last_token += 1;
        let token = FencingToken::new(self.last_token);
        let ttl = grant.options.ttl;
        let expires = deadline(now, ttl);
        let record = HoldRecord::draft(grant.locker, grant.key.clone(), Arc::clone(&grant.store.clock))
            .with_fencing_token(shows_token(grant.options).then_some(token))
            .with_deadline(expires)
            .with_max_grace(max_grace(ttl))
            .open();
        let handle = MemoryHandle {
            store: Arc::clone(grant.store),
            faults: Arc::clone(grant.faults),
            key: grant.key.clone(),
            token,
            record: record.clone(),
        };
        let guard = LockGuard::new(record.hold(), ttl, handle);
        let program = grant.program.clone();
        slot.held = Some(Held { token, locker: grant.locker, program, since: now, expires, record });
        Look::Ours(guard)
    }

    /// Frees the key if this grant still has it; says whether it had, and if it was past its end.
    pub(super) fn free(&mut self, key: &LockKey, token: FencingToken, now: Instant) -> Option<bool> {
        let slot = self.slots.get_mut(key)?;
        let held = slot.held.take_if(|held| held.token == token)?;
        slot.wake_first();
        self.tidy(key);
        Some(held.is_over(now))
    }

    /// Moves the end of this grant, if it still has the key.
    pub(super) fn renew(&mut self, key: &LockKey, token: FencingToken, ttl: Ttl, now: Instant) -> bool {
        let Some(slot) = self.slots.get_mut(key) else { return false };
        let Some(held) = slot.held.as_mut().filter(|held| held.token == token) else { return false };
        let expires = deadline(now, ttl);
        let renewed = held.record.extend(expires, max_grace(ttl));
        if renewed {
            held.expires = expires;
            // The first in the queue sleeps until the old end.
            slot.wake_first();
        }
        renewed
    }

    /// The live hold.
    fn held(&self, key: &LockKey, now: Instant) -> Option<&Held> {
        self.slots.get(key)?.held.as_ref().filter(|held| !held.is_over(now))
    }

    /// Its token, its program, and when it was granted.
    pub(super) fn holder(&self, key: &LockKey, now: Instant) -> Option<(FencingToken, Program, Instant)> {
        self.held(key, now).map(|held| (held.token, held.program.clone(), held.since))
    }

    /// The number, the program and the start of each wait, first come first.
    pub(super) fn waiters(&self, key: &LockKey) -> Vec<(u64, Program, Instant)> {
        let queue = self.slots.get(key).map(|slot| slot.queue.iter());
        queue.into_iter().flatten().map(|ticket| (ticket.number, ticket.program.clone(), ticket.since)).collect()
    }

    /// Ends this grant, if it still has the key.
    pub(super) fn end(&mut self, key: &LockKey, token: u128, now: Instant) -> bool {
        let is_theirs = self.held(key, now).is_some_and(|held| held.token.get() == token);
        is_theirs && self.lose(key, LossCause::SessionEnded, now)
    }

    /// Asks whoever has the key to step down.
    pub(super) fn request_step_down(&self, key: &LockKey, now: Instant) -> bool {
        let held = self.held(key, now);
        held.map(|held| held.record.request_step_down()).is_some()
    }

    /// Takes the key from whoever has it.
    pub(super) fn lose(&mut self, key: &LockKey, cause: LossCause, now: Instant) -> bool {
        let Some(slot) = self.slots.get_mut(key) else { return false };
        let had = slot.held.as_ref().is_some_and(|held| !held.is_over(now));
        slot.end(Loss::new(cause));
        self.tidy(key);
        had
    }

    /// Ends all holds of this locker.
    pub(super) fn close(&mut self, locker: BackendId) {
        for slot in self.slots.values_mut() {
            if slot.held.as_ref().is_some_and(|held| held.locker == locker) {
                slot.end(Loss::new(LossCause::Closed));
            }
        }
        self.slots.retain(|_, slot| !slot.is_empty());
    }

    fn tidy(&mut self, key: &LockKey) {
        if self.slots.get(key).is_some_and(Slot::is_empty) {
            self.slots.remove(key);
        }
    }
}

impl Slot {
    fn is_empty(&self) -> bool {
        self.held.is_none() && self.queue.is_empty()
    }

    /// The holder is told before anybody else can look.
    fn end(&mut self, loss: Loss) {
        if let Some(held) = self.held.take() {
            held.record.lose(loss);
            self.wake_first();
        }
    }

    fn wake_first(&self) {
        if let Some(first) = self.queue.front() {
            first.bell.notify_one();
        }
    }
}

impl Held {
    /// Half-open, like the record: at its end it is free.
    fn is_over(&self, now: Instant) -> bool {
        self.expires.is_some_and(|expires| now >= expires)
    }
}

fn deadline(now: Instant, ttl: Ttl) -> Option<Instant> {
    ttl.duration().and_then(|ttl| now.checked_add(ttl))
}

/// Beside a grace there must be room for a renewal, sent at an eighth of the TTL, to fail.
fn max_grace(ttl: Ttl) -> Option<std::time::Duration> {
    ttl.duration().map(|ttl| ttl * 3 / 4)
}
