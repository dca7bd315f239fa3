//! What a lane owns.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::{Duration, Instant},
};

use distributed_lock::{Loss, LossCause, Ttl, backend::HoldRecord};
use foldhash::fast::RandomState;

use super::Ticket;
use crate::{shared::ids::Claim, timing::Timing};

/// A lock that the lane owns.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) claim: Claim,
    pub(super) ticket: Ticket,
    pub(super) record: HoldRecord,
    ends: Ends,
    /// It is being given back.
    pub(super) leaving: bool,
}

/// By what a hold ends of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// When we give the key back ourselves: at the end of its TTL, but for the margin.
    frees: Option<Instant>,
    max_grace: Duration,
}

impl Ends {
    /// With this TTL, counted from then.
    pub(super) fn new(ttl: Ttl, timing: &Timing, from: Instant) -> Self {
        let frees = ttl.duration().and_then(|ttl| (from + ttl).checked_sub(timing.margin()));
        Self { frees, max_grace: timing.max_grace() }
    }

    /// Until when it may be relied on, after a proof of the whole lane that was sent then.
    pub(super) fn deadline(&self, lane: &Timing, proved: Instant) -> Instant {
        let proven = lane.deadline(proved, lane.ttl());
        self.frees.map_or(proven, |frees| frees.min(proven))
    }

    pub(super) fn max_grace(&self, lane: &Timing) -> Duration {
        self.max_grace.min(lane.max_grace())
    }
}

impl Held {
    pub(super) fn new(claim: Claim, ticket: Ticket, record: HoldRecord, ends: Ends) -> Self {
        Self { claim, ticket, record, ends, leaving: false }
    }

    /// Moves the deadline; `false` if it has ended.
    pub(super) fn extend(&self, lane: &Timing, proved: Instant) -> bool {
        self.record.extend(Some(self.ends.deadline(lane, proved)), Some(self.ends.max_grace(lane)))
    }
}

/// Expiries that no hold has any more are kept for so many beside as many as there are holds.
const STALE: usize = 64;

/// Whether one of the holds still ends then.
fn expires(by_id: &HashMap<i64, Held, RandomState>, frees: Instant, ticket: Ticket) -> bool {
    by_id.get(&ticket.0).is_some_and(|held| held.ticket == ticket && held.ends.frees == Some(frees))
}

#[derive(Debug, Default)]
pub(super) struct Holds {
    by_id: HashMap<i64, Held, RandomState>,
    /// Also of some that have ended or have another TTL by now, since most holds end long before: the first one may be none.
    expiries: BinaryHeap<Reverse<(Instant, Ticket)>>,
}

impl Holds {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Held> {
        self.by_id.values()
    }

    pub(super) fn get(&self, ticket: Ticket) -> Option<&Held> {
        self.by_id.get(&ticket.0).filter(|held| held.ticket == ticket)
    }

    fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Held> {
        self.by_id.get_mut(&ticket.0).filter(|held| held.ticket == ticket)
    }

    pub(super) fn add(&mut self, held: Held) {
        if let Some(frees) = held.ends.frees {
            self.expiries.push(Reverse((frees, held.ticket)));
        }
        self.by_id.insert(held.ticket.0, held);
        if self.expiries.len() > 2 * self.by_id.len() + STALE {
            self.expiries.retain(|Reverse((frees, ticket))| expires(&self.by_id, *frees, *ticket));
        }
    }

    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Held> {
        self.get(ticket)?;
        let held = self.by_id.remove(&ticket.0);
        if self.by_id.is_empty() {
            self.expiries.clear();
        }
        held
    }

    /// Marks it as being given back; `false` if it is already, or has ended.
    pub(super) fn leave(&mut self, ticket: Ticket) -> bool {
        self.get_mut(ticket).is_some_and(|held| !std::mem::replace(&mut held.leaving, true))
    }

    /// Another TTL, counted from then.
    pub(super) fn set_ttl(&mut self, ticket: Ticket, ttl: Ttl, timing: &Timing, from: Instant) {
        if let Some(mut held) = self.remove(ticket) {
            held.ends = Ends::new(ttl, timing, from);
            self.add(held);
        }
    }

    /// Ends those whose TTL is over.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Ticket> {
        let mut expired = Vec::new();
        while let Some(Reverse((frees, ticket))) = self.expiries.peek().copied().filter(|first| first.0.0 <= now) {
            self.expiries.pop();
            if let Some(held) = self.get(ticket).filter(|held| held.ends.frees == Some(frees)) {
                held.record.lose(Loss::new(LossCause::DeadlinePassed));
                expired.push(ticket);
            }
        }
        expired
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.expiries.peek().map(|first| first.0.0)
    }

    pub(super) fn lose_all(&mut self, loss: &Loss) {
        for held in self.by_id.values() {
            held.record.lose(loss.clone());
        }
    }

    /// With their claims.
    pub(super) fn clear(&mut self) {
        self.by_id.clear();
        self.expiries.clear();
    }
}
