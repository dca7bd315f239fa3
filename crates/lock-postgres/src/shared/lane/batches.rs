//! Keys given back and tried by a lane, many in one statement.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use distributed_lock::{Error, ErrorKind, LockGuard, Loss, LossCause, Release, backend::HoldRecord};
use futures_util::{FutureExt, future::BoxFuture, stream::FuturesOrdered};

use super::{
    Granted, Lock, Ticket, Unlock,
    holds::Held,
    work::{Work, loss_by},
};
use crate::{
    error,
    jitter::jittered,
    link::SharedError,
    session::{BatchAnswer, DriverError, Keys, LockTable, Locked},
    shared::handle::SharedHandle,
    token,
};

/// Keys of one statement: two of them under way fit into one write of 1,200 bytes, since the driver may put them into one.
const BATCH: usize = 45;

/// Statements with keys under way at a time.
const UNDER_WAY: usize = 2;

/// Locks of a lane that are no keys: its beacon and its mark.
const OWN_LOCKS: usize = 2;

/// From one try at the gate to the next, the longest.
const GATE_PAUSE: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(super) struct Batches {
    pub(super) answers: FuturesOrdered<BoxFuture<'static, Result<Answer, DriverError>>>,
    sent: VecDeque<Sent>,
    tickets: u64,
}

struct Sent {
    at: Instant,
    unlocks: Vec<Unlock>,
    asks: Vec<Lock>,
    what: What,
}

enum What {
    Batch,
    /// Gives back what a batch that failed may have left.
    GiveBack(Arc<DriverError>),
}

pub(super) enum Answer {
    Batch(BatchAnswer),
    GivenBack(Vec<Option<bool>>),
}

impl Batches {
    pub(super) fn are_none(&self) -> bool {
        self.sent.is_empty()
    }

    pub(super) fn oldest(&self) -> Option<Instant> {
        self.sent.front().map(|sent| sent.at)
    }

    pub(super) fn newest(&self) -> Option<Instant> {
        self.sent.back().map(|sent| sent.at)
    }

    fn asked(&self) -> usize {
        self.sent.iter().map(|sent| sent.asks.len()).sum()
    }
}

impl LockTable {
    /// Keys that a lane takes without asking how full the table is.
    fn unasked(&self) -> usize {
        (usize::try_from(self.share).unwrap_or_default() / 4).saturating_sub(OWN_LOCKS)
    }
}

impl Work {
    pub(super) fn send_batches(&mut self, now: Instant) {
        while self.batches.sent.len() < UNDER_WAY && (!self.asks.is_empty() || !self.unlocks.is_empty()) {
            if !self.send_batch(now) {
                return;
            }
        }
    }

    /// Up to as many keys as fit, those to be given back first. `false` if there is nothing to send now.
    fn send_batch(&mut self, now: Instant) -> bool {
        let mut unlocks = Vec::new();
        while unlocks.len() < BATCH {
            let Some(unlock) = self.unlocks.pop_front() else { break };
            // One that has ended, or is being given back already, has no answer.
            if self.holds.leave(unlock.ticket) {
                unlocks.push(unlock);
            }
        }
        let (mut asks, limit) = self.next_asks(BATCH - unlocks.len(), now);
        if unlocks.is_empty() && asks.is_empty() {
            return false;
        }
        asks.sort_unstable_by_key(|lock| lock.claim.id);
        let keys = Keys {
            give_back: unlocks.iter().map(|unlock| unlock.ticket.0).collect(),
            take: asks.iter().map(|lock| lock.claim.id).collect(),
            fenced: asks.iter().any(|lock| lock.fenced),
            limit,
        };
        let (session, batch) = (Arc::clone(&self.session), self.batch.clone());
        let asked = async move { session.run_batch(&batch, &keys).await.map(Answer::Batch) };
        self.batches.answers.push_back(asked.boxed());
        self.batches.sent.push_back(Sent { at: now, unlocks, asks, what: What::Batch });
        true
    }

    /// The keys to be tried next, and how many locks may be in the server's table then, if that is to be asked.
    fn next_asks(&mut self, most: usize, now: Instant) -> (Vec<Lock>, Option<i64>) {
        let owned = self.holds.len() + self.batches.asked();
        let unasked = self.table.unasked().saturating_sub(owned);
        let (most, limit) = match unasked {
            0 if self.gate_opens.is_some_and(|opens| now < opens) => (0, None),
            0 => (most.min(usize::try_from(self.table.share).unwrap_or(most)), Some(self.table.capacity / 2)),
            unasked => (most.min(unasked), None),
        };
        if limit.is_some() {
            self.gate_opens = None;
        }
        let mut asks = Vec::new();
        while asks.len() < most {
            let Some(lock) = self.asks.pop_front() else { break };
            // Who asked may be gone already.
            match lock.answer.is_closed() {
                true => self.unload(1),
                false => asks.push(lock),
            }
        }
        (asks, limit)
    }

    pub(super) fn batch_answered(&mut self, answer: Result<Answer, DriverError>) -> Result<(), Loss> {
        let Some(sent) = self.batches.sent.pop_front() else { return Ok(()) };
        match answer {
            Ok(Answer::Batch(answer)) => self.batch_done(sent, answer),
            Ok(Answer::GivenBack(given_back)) => {
                self.given_back(sent, given_back);
                Ok(())
            }
            Err(error) if error::leaves_session(&error) && matches!(sent.what, What::Batch) => {
                self.give_back(sent, error);
                Ok(())
            }
            Err(error) => {
                // Told with all others when the lane ends.
                self.batches.sent.push_front(sent);
                Err(loss_by(error))
            }
        }
    }

    fn batch_done(&mut self, sent: Sent, answer: BatchAnswer) -> Result<(), Loss> {
        let BatchAnswer { unlocked, locked, token, in_recovery } = answer;
        if in_recovery {
            self.batches.sent.push_front(sent);
            return Err(Loss::new(LossCause::NotOurs));
        }
        let Sent { at, unlocks, asks, .. } = sent;
        let mut bad = None;
        for (unlock, owned) in unlocks.into_iter().zip(unlocked) {
            if !owned {
                bad = Some(Loss::new(LossCause::NotOurs));
            }
            self.is_free(unlock, if owned { Ok(Release::Released) } else { Ok(not_ours()) });
        }
        match locked {
            Locked::Tried(tried) => {
                for (lock, granted) in asks.into_iter().zip(tried) {
                    if granted {
                        self.grant(lock, at, token.as_deref());
                    } else {
                        self.unload(1);
                        lock.answer(Ok(Granted::No));
                    }
                }
            }
            Locked::NoRoom(in_use) => {
                for lock in asks {
                    self.unload(1);
                    lock.refuse(no_room(in_use, &self.table));
                }
            }
            Locked::GateTaken => {
                asks.into_iter().rev().for_each(|lock| self.asks.push_front(lock));
                self.gate_opens = Some(self.core.clock.now() + jittered(GATE_PAUSE));
            }
        }
        bad.map_or(Ok(()), Err)
    }

    /// The server has the key back.
    fn is_free(&mut self, unlock: Unlock, how: distributed_lock::Result<Release>) {
        let ticket = unlock.ticket;
        if let Some(held) = self.holds.remove(ticket) {
            self.unload(1);
            if held.claim.give_up() {
                self.notices.released(ticket.0);
            }
        }
        unlock.answer(how);
    }

    fn grant(&mut self, lock: Lock, sent: Instant, token: Option<&str>) {
        self.batches.tickets += 1;
        let ticket = Ticket(lock.claim.id, self.batches.tickets);
        let token = token.filter(|_| lock.fenced).map(|text| token::parse(self.core.settings.epoch, text)).transpose();
        let Lock { claim, ttl, timing, waited_as, lane, answer, .. } = lock;
        let draft = HoldRecord::draft(self.core.id, claim.key.clone(), Arc::clone(&self.core.clock));
        let record = draft.with_fencing_token(token.as_ref().ok().copied().flatten()).open();
        let expires = ttl.duration().map(|ttl| sent + ttl);
        claim.hold(record.clone(), waited_as);
        let held = Held { claim, ticket, record: record.clone(), timing, expires, leaving: false };
        let live = held.extend(&self.timing, sent);
        self.holds.add(held);
        if self.closing {
            record.lose(Loss::new(LossCause::Closed));
        }
        let refused = match (token, record.end()) {
            (Err(error), _) => Some(error),
            (Ok(_), None) if live => None,
            _ => Some(Error::new(ErrorKind::Unavailable, "the lock was over when its grant was read")),
        };
        if let Some(lane) = lane.filter(|_| refused.is_none()) {
            let handle = SharedHandle::new(Arc::clone(&self.core), lane, record.clone(), ticket);
            // One that nobody takes gives the lock back when it is dropped.
            let _ = answer.send(Ok(Granted::Yes(LockGuard::new(record.hold(), ttl, handle))));
            return;
        }
        self.unlocks.push_back(Unlock { ticket, answer: None });
        let _ = answer.send(Err(refused.unwrap_or_else(crate::core::closed)));
    }

    /// A batch failed in the middle: what it had done stays.
    fn give_back(&mut self, sent: Sent, error: DriverError) {
        let ids: Vec<_> = sent
            .unlocks
            .iter()
            .map(|unlock| unlock.ticket.0)
            .chain(sent.asks.iter().map(|lock| lock.claim.id))
            .collect();
        let (session, batch) = (Arc::clone(&self.session), self.batch.clone());
        let asked = async move { session.give_back(&batch, &ids).await.map(Answer::GivenBack) };
        self.batches.answers.push_back(asked.boxed());
        self.batches.sent.push_back(Sent { at: self.core.clock.now(), what: What::GiveBack(Arc::new(error)), ..sent });
    }

    fn given_back(&mut self, sent: Sent, given_back: Vec<Option<bool>>) {
        let Sent { unlocks, asks, what: What::GiveBack(error), .. } = sent else { return };
        for (unlock, owned) in unlocks.into_iter().zip(given_back) {
            let how = match owned {
                Some(true) => Ok(Release::Released),
                Some(false) => Ok(not_ours()),
                None => {
                    let message = "the key is free, but the server refused the statement that gave it back, and did not say whether it \
                                   was ours to the end";
                    Err(Error::new(ErrorKind::Unavailable, message).with_source(SharedError(Arc::clone(&error))))
                }
            };
            self.is_free(unlock, how);
        }
        for lock in asks {
            self.unload(1);
            lock.refuse(error::shared(&error, "take the lock"));
        }
    }

    pub(super) fn free_what_expired(&mut self, now: Instant) {
        let expired = self.holds.expire(now);
        self.unlocks.extend(expired.into_iter().map(|ticket| Unlock { ticket, answer: None }));
    }

    /// Somebody gave it back behind our back.
    pub(super) fn is_missing(&mut self, ticket: Ticket) {
        if self.holds.get(ticket).is_none_or(|held| held.leaving) {
            return;
        }
        if let Some(held) = self.holds.remove(ticket) {
            held.record.lose(Loss::new(LossCause::NotOurs));
            self.unload(1);
            held.claim.give_up();
        }
    }

    /// When the lane ends: those who ask may ask another one, unless an answer is missing.
    pub(super) fn lose_asks(&mut self, loss: &Loss) {
        let sent = std::mem::take(&mut self.batches.sent);
        let under_way = sent.into_iter().flat_map(|sent| sent.asks);
        for lock in under_way {
            self.unload(1);
            // Whatever it took ended with the session.
            if loss.cause() == LossCause::SessionEnded {
                lock.answer(Ok(Granted::Again(loss.clone())));
            } else {
                let message = "the session that was asked for the lock ended without an answer";
                lock.refuse(Error::new(ErrorKind::Unavailable, message).with_source(loss.clone()));
            }
        }
        for lock in std::mem::take(&mut self.asks) {
            self.unload(1);
            lock.answer(Ok(Granted::Again(loss.clone())));
        }
    }
}

fn not_ours() -> Release {
    Release::Lost(Loss::new(LossCause::NotOurs))
}

fn no_room(in_use: i64, LockTable { capacity, .. }: &LockTable) -> Error {
    let message = format!(
        "the server's table of locks is half full: {in_use} of about {capacity}; to hold more keys raise max_locks_per_transaction"
    );
    Error::new(ErrorKind::LimitReached, message)
}
