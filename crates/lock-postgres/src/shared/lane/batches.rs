//! Keys given back and tried by a lane, many in one statement.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use distributed_lock::{
    Error, ErrorKind, FencingToken, LockGuard, Loss, LossCause, Release, backend::HoldRecord, telemetry::Metric,
};
use smallvec::SmallVec;
use tokio_util::sync::ReusableBoxFuture;

use super::{
    Asked, Granted, Lock, Ticket, Unlock,
    holds::{Ends, Held},
    work::{Work, loss_by},
};
use crate::{
    error,
    link::SharedError,
    session::{BatchAnswer, DriverError, Keys, Places},
    shared::handle::SharedHandle,
    token,
};

/// The most bytes of one write, so that it goes in one piece: the server's idle timer stands still while half a message is there. The
/// driver puts what is sent in one poll into one write.
pub(super) const WRITE: usize = 1_200;

/// Bytes of a statement with keys, whose name is as long as the driver's count of statements, and of each of these; others are no longer
/// than this in all.
const STATEMENT: usize = 100;
const KEY: usize = 12;
pub(super) const OTHER: usize = 150;

/// Statements with keys under way at a time.
const UNDER_WAY: usize = 2;

#[derive(Default)]
pub(super) struct Batches {
    sent: VecDeque<Sent>,
    /// Memory of answers that came.
    spare: Vec<Answering>,
    /// Those of a statement that ends the lane.
    unanswered: Asks,
    tickets: u64,
}

/// Those of one statement.
pub(super) type Unlocks = SmallVec<[Unlock; 1]>;
pub(super) type Asks = SmallVec<[Asked; 1]>;

type Answering = ReusableBoxFuture<'static, Result<Answer, DriverError>>;

struct Sent {
    at: Instant,
    unlocks: Unlocks,
    asks: Asks,
    what: What,
    answering: Answering,
    /// The answer, if it was there at once.
    answer: Option<Result<Answer, DriverError>>,
}

pub(super) enum What {
    Batch,
    /// Places in the server's table of locks.
    Reserve,
    Unreserve,
    /// Gives back what one of these that failed may have left.
    GiveBack {
        error: Arc<DriverError>,
        /// Marks of places as well.
        places: bool,
    },
}

pub(super) enum Answer {
    Batch(BatchAnswer),
    Places(Places),
    Tidied,
    GivenBack(Vec<Option<bool>>),
}

impl Batches {
    /// The answer to the oldest.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Answer, DriverError>> {
        let Some(oldest) = self.sent.front_mut() else { return Poll::Pending };
        match oldest.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => oldest.answering.poll(cx),
        }
    }

    /// With the first poll it is on its way.
    pub(super) fn send(
        &mut self,
        (at, what): (Instant, What),
        (unlocks, asks): (Unlocks, Asks),
        asking: impl Future<Output = Result<Answer, DriverError>> + Send + 'static,
        cx: &mut Context<'_>,
    ) {
        let mut answering = match self.spare.pop() {
            Some(mut spare) => {
                spare.set(asking);
                spare
            }
            None => Answering::new(asking),
        };
        let answer = match answering.poll(cx) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        };
        self.sent.push_back(Sent { at, unlocks, asks, what, answering, answer });
    }

    fn take_oldest(&mut self) -> Option<(Instant, Unlocks, Asks, What)> {
        let Sent { at, unlocks, asks, what, answering, .. } = self.sent.pop_front()?;
        self.spare.push(answering);
        Some((at, unlocks, asks, what))
    }

    /// Nothing is sent before an answer comes.
    pub(super) fn are_full(&self) -> bool {
        self.sent.len() >= UNDER_WAY
    }

    pub(super) fn are_none(&self) -> bool {
        self.sent.is_empty()
    }

    pub(super) fn oldest(&self) -> Option<Instant> {
        self.sent.front().map(|sent| sent.at)
    }

    /// Lets all go who asked for something that is under way.
    pub(super) fn let_go(&mut self, error: impl Fn() -> Error) {
        self.sent.iter_mut().flat_map(|sent| &mut sent.asks).for_each(|lock| lock.let_go(error()));
    }

    pub(super) fn asked(&self) -> usize {
        self.sent.iter().map(|sent| sent.asks.len()).sum()
    }
}

impl Work {
    pub(super) fn send_batches(&mut self, now: Instant, cx: &mut Context<'_>) {
        while !self.batches.are_full() && (!self.asks.is_empty() || !self.unlocks.is_empty()) {
            let keys = self.write_left.saturating_sub(STATEMENT) / KEY;
            if keys == 0 {
                // In the next write, after a turn of the connection. With a full socket, when an answer comes.
                if !self.is_socket_full() {
                    cx.waker().wake_by_ref();
                }
                return;
            }
            let sent = self.send_batch(keys, now, cx) || self.ask_for_room(now, cx);
            if !sent {
                return;
            }
        }
    }

    /// Up to as many keys as fit, those to be given back first. `false` if there is nothing to send now.
    fn send_batch(&mut self, most: usize, now: Instant, cx: &mut Context<'_>) -> bool {
        let mut unlocks = Unlocks::new();
        while unlocks.len() < most {
            let Some(unlock) = self.unlocks.pop_front() else { break };
            if self.holds.leave(unlock.ticket) {
                unlocks.push(unlock);
            } else {
                // Given back already, as after a release that was dropped midway or at the end of a TTL: one answer for both. One that
                // has ended has none.
                let sent = self.batches.sent.iter_mut().flat_map(|sent| &mut sent.unlocks).chain(&mut unlocks);
                unlock.join_one_of(sent);
            }
        }
        let mut asks = self.next_asks(most - unlocks.len());
        if unlocks.is_empty() && asks.is_empty() {
            return false;
        }
        self.write_left -= STATEMENT + KEY * (unlocks.len() + asks.len());
        asks.sort_unstable_by_key(|lock| lock.claim.id);
        let keys = Keys {
            give_back: unlocks.iter().map(|unlock| unlock.ticket.0).collect(),
            take: asks.iter().map(|lock| lock.claim.id).collect(),
            fenced: asks.iter().any(|lock| lock.fenced),
        };
        let (session, batch) = (Arc::clone(&self.session), Arc::clone(&self.batch));
        let asking = async move { session.run_batch(&batch, &keys).await.map(Answer::Batch) };
        self.batches.send((now, What::Batch), (unlocks, asks), asking, cx);
        true
    }

    /// The keys to be tried next.
    fn next_asks(&mut self, most: usize) -> Asks {
        if self.asks.is_empty() {
            return Asks::new();
        }
        let owned = self.owned();
        let most = most.min(self.room.left(owned));
        let mut asks = Asks::new();
        while asks.len() < most {
            let Some(lock) = self.asks.pop_front() else { break };
            // Who asked may be gone already.
            match lock.is_left() {
                true => self.unload(1),
                false => asks.push(lock),
            }
        }
        self.room.used(owned + asks.len());
        asks
    }

    pub(super) fn batch_answered(
        &mut self,
        answer: Result<Answer, DriverError>,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> Result<(), Loss> {
        let Some((at, unlocks, asks, what)) = self.batches.take_oldest() else { return Ok(()) };
        match (answer, what) {
            (Ok(Answer::Batch(answer)), _) => self.batch_done((at, now), (unlocks, asks), answer),
            (Ok(Answer::Places(places)), _) => {
                self.room_answered(&places);
                Ok(())
            }
            (Ok(Answer::Tidied), _) => {
                self.room.settled();
                Ok(())
            }
            (Ok(Answer::GivenBack(given_back)), What::GiveBack { error, places }) => {
                if places {
                    self.room.settled();
                }
                self.given_back((unlocks, asks), given_back, &error);
                Ok(())
            }
            (Err(error), What::Batch) if error::leaves_session(&error) => {
                self.give_back((unlocks, asks), None, Arc::new(error), cx);
                Ok(())
            }
            (Err(error), what @ (What::Reserve | What::Unreserve)) if error::leaves_session(&error) => {
                self.room_failed(&what, error, cx);
                Ok(())
            }
            (Err(error), _) => {
                self.unlocks.extend(unlocks);
                self.batches.unanswered = asks;
                Err(loss_by(error))
            }
            (Ok(Answer::GivenBack(_)), What::Batch | What::Reserve | What::Unreserve) => Ok(()),
        }
    }

    fn batch_done(
        &mut self,
        (sent, now): (Instant, Instant),
        (unlocks, asks): (Unlocks, Asks),
        answer: BatchAnswer,
    ) -> Result<(), Loss> {
        let BatchAnswer { unlocked, locked, token, in_recovery } = answer;
        if in_recovery {
            self.unlocks.extend(unlocks);
            self.batches.unanswered = asks;
            return Err(Loss::new(LossCause::NotOurs));
        }
        let mut bad = None;
        for (unlock, owned) in unlocks.into_iter().zip(unlocked) {
            if !owned {
                bad = Some(Loss::new(LossCause::NotOurs));
            }
            self.is_free(unlock, if owned { Ok(Release::Released) } else { Ok(not_ours()) });
        }
        let token = token.map(|text| token::parse(self.core.settings.epoch, &text).map_err(Arc::new));
        for (lock, granted) in asks.into_iter().zip(locked) {
            if granted {
                self.grant(*lock, (sent, now), token.as_ref());
            } else {
                self.unload(1);
                lock.answer(Ok(Granted::No));
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

    fn grant(&mut self, lock: Lock, (sent, now): (Instant, Instant), token: Option<&Result<FencingToken, Arc<Error>>>) {
        self.batches.tickets += 1;
        let ticket = Ticket(lock.claim.id, self.batches.tickets);
        let token = token.filter(|_| lock.fenced).map(|token| token.as_ref().copied().map_err(unreadable)).transpose();
        let Lock { claim, key, ttl, timing, waited_as, lane, answer, .. } = lock;
        let ends = Ends::new(ttl, &timing, sent);
        let deadline = ends.deadline(&self.timing, sent);
        let draft = HoldRecord::draft(self.core.id, key, Arc::clone(&self.core.clock))
            .with_fencing_token(token.as_ref().ok().copied().flatten())
            .with_deadline(Some(deadline))
            .with_max_grace(Some(ends.max_grace(&self.timing)));
        let record = draft.open_since(now);
        claim.hold(record.clone(), waited_as);
        self.holds.add(Held::new(claim, ticket, record.clone(), ends));
        let refused = match token {
            Err(error) => Some(error),
            Ok(_) if self.closing => {
                record.lose(Loss::new(LossCause::Closed));
                Some(crate::core::closed())
            }
            Ok(_) if now >= deadline => {
                Some(Error::new(ErrorKind::Unavailable, "the lock was over when its grant was read"))
            }
            Ok(_) => None,
        };
        match (lane, answer, refused) {
            (Some(lane), Some(answer), None) => {
                let handle = SharedHandle::new(lane, record.clone(), ticket);
                // One that nobody takes gives the lock back when it is dropped.
                if answer.send(Ok(Granted::Yes(LockGuard::new(record.hold(), ttl, handle)))).is_err() {
                    self.core.settings.telemetry.count(Metric::Ghosts, &[]);
                }
            }
            (_, answer, refused) => {
                self.unlocks.push_back(Unlock { ticket, answer: None });
                if let Some(answer) = answer {
                    let _ = answer.send(Err(refused.unwrap_or_else(crate::core::closed)));
                }
            }
        }
    }

    /// A statement failed in the middle: what it had done stays. With the blocks that we have, those that we do not go back too.
    pub(super) fn give_back(
        &mut self,
        (unlocks, asks): (Unlocks, Asks),
        blocks: Option<i32>,
        error: Arc<DriverError>,
        cx: &mut Context<'_>,
    ) {
        let given = unlocks.iter().map(|unlock| unlock.ticket.0);
        let ids: Vec<_> = given.chain(asks.iter().map(|lock| lock.claim.id)).collect();
        let (session, batch) = (Arc::clone(&self.session), Arc::clone(&self.batch));
        let asking = async move { session.give_back(&batch, &ids, blocks).await.map(Answer::GivenBack) };
        let what = What::GiveBack { error, places: blocks.is_some() };
        self.batches.send((self.core.clock.now(), what), (unlocks, asks), asking, cx);
    }

    fn given_back(
        &mut self,
        (unlocks, asks): (Unlocks, Asks),
        given_back: Vec<Option<bool>>,
        error: &Arc<DriverError>,
    ) {
        for (unlock, owned) in unlocks.into_iter().zip(given_back) {
            let how = match owned {
                Some(true) => Ok(Release::Released),
                Some(false) => Ok(not_ours()),
                None => {
                    let message = "the key is free, but the server refused the statement that gave it back, and did not say whether it \
                                   was ours to the end";
                    Err(Error::new(ErrorKind::Unavailable, message).with_source(SharedError(Arc::clone(error))))
                }
            };
            self.is_free(unlock, how);
        }
        for lock in asks {
            self.unload(1);
            lock.refuse(error::shared(error, "take the lock"));
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
            if held.claim.give_up() {
                self.notices.released(ticket.0);
            }
        }
    }

    /// When the lane ends: those who ask may ask another one, unless an answer is missing.
    pub(super) fn lose_asks(&mut self, loss: &Loss) {
        let mut under_way = std::mem::take(&mut self.batches.unanswered);
        for Sent { unlocks, asks, .. } in std::mem::take(&mut self.batches.sent) {
            self.unlocks.extend(unlocks);
            under_way.extend(asks);
        }
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

/// The same of a token that several share.
fn unreadable(error: &Arc<Error>) -> Error {
    Error::new(error.kind(), error.to_string()).with_source(Arc::clone(error))
}

fn not_ours() -> Release {
    Release::Lost(Loss::new(LossCause::NotOurs))
}
