//! The task of a lane: what wakes it, and how it ends.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use distributed_lock::{
    Loss, LossCause, Release,
    telemetry::{Metric, One},
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use tokio::sync::watch;

use super::{
    Asked, Granted, Order, Renew, Unlock,
    alarm::Alarm,
    batches::{Batches, WRITE},
    holds::Holds,
    inbox::Inbox,
    proofs::Proofs,
    room::Room,
};
use crate::{
    connect::SocketHandle,
    core::Core,
    error,
    link::{self, Ended, LastWord, SharedError},
    session::{Batch, DriverError, LockTable, Owner, Session},
    shared::notices::Notices,
    timing::Timing,
};

/// For how long an answer is looked for once its time is over; see `keeper`.
const SECOND_LOOK: Duration = Duration::from_millis(25);

/// After so long without a key the lane ends.
const IDLE: Duration = Duration::from_secs(60);

pub(super) struct Work {
    pub(super) core: Arc<Core>,
    pub(super) notices: Notices,
    pub(super) session: Arc<Session>,
    pub(super) batch: Arc<Batch>,
    pub(super) room: Room,
    pub(super) timing: Timing,
    pub(super) owner: Owner,
    ended: BoxFuture<'static, LastWord>,
    /// Whether that is to be polled: the lane is woken by the same waker each time, so once is enough until something changes.
    end: Option<watch::Receiver<LastWord>>,
    is_watched: bool,
    inbox: Arc<Inbox>,
    /// Memory for what is taken from it.
    orders: VecDeque<Order>,
    // What is to be sent.
    pub(super) asks: VecDeque<Asked>,
    pub(super) unlocks: VecDeque<Unlock>,
    pub(super) renewals: Vec<Renew>,
    pub(super) holds: Holds,
    // What is under way.
    pub(super) batches: Batches,
    pub(super) proofs: Proofs,
    /// Until when a late answer is looked for.
    second_look: Option<Instant>,
    /// Since when it has had nothing to do.
    idle_since: Instant,
    pub(super) closing: bool,
    /// Bytes that this poll may send yet.
    pub(super) write_left: usize,
    alarm: Arc<Alarm>,
    _counted: One,
}

impl Work {
    pub(super) fn new(
        core: Arc<Core>,
        notices: Notices,
        session: Session,
        (batch, table): (Batch, LockTable),
        timing: Timing,
        inbox: Arc<Inbox>,
        alarm: Arc<Alarm>,
    ) -> Self {
        let now = core.clock.now();
        Self {
            notices,
            owner: Owner::Session(session.beacon(&timing)),
            ended: until_ended(session.link().watch()).boxed(),
            end: session.link().watch(),
            is_watched: false,
            session: Arc::new(session),
            batch: Arc::new(batch),
            room: Room::new(table),
            timing,
            inbox,
            orders: VecDeque::new(),
            asks: VecDeque::new(),
            unlocks: VecDeque::new(),
            renewals: Vec::new(),
            holds: Holds::default(),
            batches: Batches::default(),
            proofs: Proofs::new(now),
            second_look: None,
            idle_since: now,
            closing: false,
            write_left: 0,
            alarm,
            _counted: core.settings.telemetry.one(Metric::Lanes, &[]),
            core,
        }
    }

    pub(super) async fn run(mut self) {
        let loss = match poll_fn(|cx| self.poll(cx)).await {
            Ok(()) => Loss::new(LossCause::Closed),
            Err(loss) => loss,
        };
        // Before the loss is told: with it nothing is left to look at.
        let relied_on = self.relied_on_until();
        self.lose(&loss);
        if let (LossCause::HeartbeatTimeout, Some(relied_on)) = (loss.cause(), relied_on) {
            // See `keeper::lost`: others must not get in before the deadline while the work of a holder may still be ending.
            let deadline = relied_on + self.timing.margin() / 2;
            tokio::select! {
                biased;
                _ = &mut self.ended => {}
                () = self.alarm.at(deadline) => {}
            }
        }
    }

    /// Until it is closed, or idle for long, or lost. By hand, since it is on the way of every lock.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Loss>> {
        // What the last poll sent has gone, unless the socket is full: then it is sent on before anything else.
        self.write_left = if self.is_socket_full() { 0 } else { WRITE };
        // One reading for all of it. It is early, if anything: what is sent counts from then.
        let now = self.core.clock.now();
        if self.asks.is_empty() {
            self.room.forget_gate();
        }
        loop {
            self.take_orders();
            self.room.look_at_gate(now);
            self.free_what_expired(now);
            if self.send_heartbeat_if_due(now) {
                self.tidy_room(now, cx);
            }
            self.send_batches(now, cx);
            if let Poll::Ready(answer) = self.batches.poll(cx) {
                self.answered();
                self.batch_answered(answer, now, cx)?;
                continue;
            }
            if self.proofs.oldest().is_some()
                && let Poll::Ready(Some(answer)) = self.proofs.answers.poll_next_unpin(cx)
            {
                self.answered();
                self.proof_answered(answer)?;
                continue;
            }
            if self.may_have_ended()
                && let Poll::Ready(last_word) = self.ended.as_mut().poll(cx)
            {
                let loss = Loss::new(LossCause::SessionEnded);
                return Poll::Ready(Err(match last_word {
                    Some(error) => loss.with_source(SharedError(error)),
                    None => loss,
                }));
            }
            if !self.is_idle() {
                self.idle_since = now;
            } else if self.closing {
                return Poll::Ready(Ok(()));
            } else if now >= self.idle_since + IDLE {
                // What was ordered before this is refused, and goes to another lane.
                self.closing = true;
                self.inbox.close();
                continue;
            }
            self.look_for_late_answers(now)?;
            let wake = self.next_wake();
            self.alarm.set_busy(!self.is_idle() || self.proofs.oldest().is_some());
            self.alarm.set_full(self.batches.are_full());
            self.alarm.set(wake);
            // Who orders something for a lane that is full leaves it to the next answer: either it sees that this one is not, or we see
            // the order.
            if !self.batches.are_full() && self.inbox.has_orders() {
                continue;
            }
            if wake <= now {
                // The connection has its turn before.
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
    }

    fn may_have_ended(&mut self) -> bool {
        let is_watched = std::mem::replace(&mut self.is_watched, true);
        !is_watched || self.end.as_ref().is_none_or(|end| end.has_changed().unwrap_or(true))
    }

    pub(super) fn is_socket_full(&self) -> bool {
        self.session.link().socket().is_some_and(SocketHandle::is_full)
    }

    fn take_orders(&mut self) {
        let mut orders = std::mem::take(&mut self.orders);
        self.inbox.take_into(&mut orders);
        for order in orders.drain(..) {
            self.take(order);
        }
        self.orders = orders;
        if !self.closing && self.inbox.is_abandoned() {
            self.close();
        }
    }

    fn answered(&mut self) {
        self.second_look = None;
        self.alarm.answered();
    }

    /// An answer is missing only if it is not there at a second look: we may have been asleep, and not the server.
    fn look_for_late_answers(&mut self, now: Instant) -> Result<(), Loss> {
        if self.answer_due().is_none_or(|due| now < due) {
            return Ok(());
        }
        match self.second_look {
            None => {
                if let Some(socket) = self.session.link().socket() {
                    socket.look();
                }
                // From now on, however long this poll has taken.
                self.second_look = Some(self.core.clock.now() + SECOND_LOOK);
            }
            Some(second) if now >= second => return Err(Loss::new(LossCause::HeartbeatTimeout)),
            Some(_) => {}
        }
        Ok(())
    }

    /// When it is to be polled whatever happens.
    fn next_wake(&self) -> Instant {
        let late = self.second_look.or_else(|| self.answer_due());
        let others = [late, self.next_heartbeat(), self.holds.next_expiry(), self.room.opens()];
        others.into_iter().flatten().fold(self.idle_since + IDLE, Instant::min)
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Lock(lock) if self.closing => {
                self.unload(1);
                lock.answer(match self.core.ensure_open() {
                    // It ends because it was idle.
                    Ok(()) => Ok(Granted::Again(Loss::new(LossCause::Closed))),
                    Err(closed) => Err(closed),
                });
            }
            Order::Lock(lock) => self.asks.push_back(lock),
            Order::Renew(renew) => self.renewals.push(*renew),
            Order::Unlock(unlock) => self.unlocks.push_back(unlock),
            Order::List(answer) => {
                let staying = self.holds.all().filter(|held| !held.leaving);
                let _ = answer.send(staying.map(|held| held.ticket).collect());
            }
            Order::Missing(tickets) => tickets.into_iter().for_each(|ticket| self.is_missing(ticket)),
            Order::Close => self.close(),
        }
    }

    fn close(&mut self) {
        self.closing = true;
        self.inbox.close();
        for lock in std::mem::take(&mut self.asks) {
            self.unload(1);
            lock.refuse(crate::core::closed());
        }
        self.batches.let_go(crate::core::closed);
        self.holds.lose_all(&Loss::new(LossCause::Closed));
        let tickets: Vec<_> = self.holds.all().map(|held| held.ticket).collect();
        self.unlocks.extend(tickets.into_iter().map(|ticket| Unlock { ticket, answer: None }));
    }

    fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.batches.are_none() && self.asks.is_empty() && self.unlocks.is_empty()
    }

    pub(super) fn unload(&self, keys: usize) {
        self.inbox.unload(keys);
    }

    /// When the oldest answer is overdue.
    fn answer_due(&self) -> Option<Instant> {
        let oldest = self.batches.oldest().into_iter().chain(self.proofs.oldest()).min();
        oldest.map(|at| at + self.timing.query_timeout())
    }

    /// Until when the last holder relies on the session, if any does. Nobody has what the server did not answer, so that it may be free as
    /// soon as the session ends.
    fn relied_on_until(&self) -> Option<Instant> {
        let left = self.holds.all().filter_map(|held| held.record.hold().remaining()).max();
        left.filter(|left| !left.is_zero()).map(|left| self.core.clock.now() + left)
    }

    /// Tells everybody; nothing comes back.
    fn lose(&mut self, loss: &Loss) {
        // First the holders, since whoever is answered looks at the record.
        self.holds.lose_all(loss);
        self.inbox.close();
        let mut orders = std::mem::take(&mut self.orders);
        self.inbox.take_into(&mut orders);
        for order in orders {
            match order {
                Order::Lock(lock) => self.asks.push_back(lock),
                Order::Renew(renew) => self.renewals.push(*renew),
                Order::Unlock(unlock) => self.unlocks.push_back(unlock),
                Order::List(_) | Order::Missing(_) | Order::Close => {}
            }
        }
        for renew in std::mem::take(&mut self.renewals) {
            renew.answer(Err(loss.clone().into()));
        }
        self.proofs.lose(loss);
        self.lose_asks(loss);
        for unlock in std::mem::take(&mut self.unlocks) {
            unlock.answer(Ok(Release::Lost(loss.clone())));
        }
        // With their claims.
        self.unload(self.holds.len());
        self.holds.clear();
    }
}

/// Whatever ends it, nobody relies on what it owned.
impl Drop for Work {
    fn drop(&mut self) {
        self.lose(&Loss::new(LossCause::SessionEnded));
    }
}

async fn until_ended(mut watch: Option<watch::Receiver<LastWord>>) -> LastWord {
    loop {
        if let Ended::Yes(last_word) = link::ended(&mut watch).await {
            return last_word;
        }
    }
}

/// How a statement that failed ends the lane.
pub(super) fn loss_by(error: DriverError) -> Loss {
    let cause = match error::leaves_session(&error) {
        // The session may own its locks still.
        true => LossCause::HeartbeatTimeout,
        false => LossCause::SessionEnded,
    };
    Loss::new(cause).with_source(error)
}
