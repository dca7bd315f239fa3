//! One hold on a reserved session: what its guard, its keeper and the locker share.

use std::{
    collections::VecDeque,
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use distributed_lock::{
    Error, ErrorKind, LockKey, Loss, LossCause, Release, Result, Ttl,
    backend::{HoldRecord, LockHandle},
};
use tokio::{
    sync::{Notify, oneshot},
    time::timeout,
};

use crate::{
    connect::SocketHandle,
    core::Core,
    error,
    housekeeping::Sender,
    keeper::{Keeper, Renewal},
    pool::InUse,
    registry::Ticket,
    reserved::Reserved,
    session::{Owner, Session, Unlocked},
    timing::Timing,
};

pub(crate) struct Lease {
    pub(crate) core: Arc<Core>,
    pub(crate) key: LockKey,
    pub(crate) id: i64,
    pub(crate) record: HoldRecord,
    /// As whom it asked others to step down while it waited.
    pub(crate) waited_as: Option<Sender>,
    /// Where the session can be ended without a runtime, and its place in the pool; only ours has them.
    outside: Option<(SocketHandle, Arc<InUse>)>,
    /// The idle limit of a borrowed session before the grant, put back after it.
    idle_before: Option<String>,
    // Std mutexes: never held across an await.
    terms: Mutex<Terms>,
    slot: Mutex<Slot>,
    /// The slot is no longer busy.
    settled: Notify,
    orders: Mutex<VecDeque<Renewal>>,
    /// Set when a release begins; however that goes, the lease does not outlive it.
    leaving: AtomicBool,
    keeper: Arc<Keeper>,
    listed: OnceLock<Ticket>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("id", &self.id).field("terms", &self.terms()).finish_non_exhaustive()
    }
}

/// What was last agreed with the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) timing: Timing,
    /// The end of the TTL; `None` is until released.
    pub(crate) expires: Option<Instant>,
    pub(crate) owner: Owner,
    /// The send of the last confirmed proof of ownership.
    pub(crate) proved: Instant,
    /// Until when the server lets nobody else in, whatever becomes of us.
    pub(crate) deadline: Instant,
}

/// Where the session is. Whoever takes it out must put it back or end the lease; dropped, the session is destroyed.
#[derive(Debug)]
enum Slot {
    /// Nobody talks to it.
    Idle(Reserved),
    /// The keeper talks to it.
    Busy,
    /// The lease has ended.
    Gone,
}

impl Lease {
    pub(crate) fn new(
        core: Arc<Core>,
        (key, id, waited_as): (LockKey, i64, Option<Sender>),
        record: HoldRecord,
        (session, idle_before): (Reserved, Option<String>),
        terms: Terms,
    ) -> Arc<Self> {
        session.link().set_holder(Some(record.clone()));
        let lease = Arc::new(Self {
            outside: session.link().socket().cloned().zip(session.in_use()),
            keeper: Arc::clone(session.keeper()),
            idle_before,
            core,
            key,
            id,
            record,
            waited_as,
            terms: Mutex::new(terms),
            slot: Mutex::new(Slot::Idle(session)),
            settled: Notify::new(),
            orders: Mutex::default(),
            leaving: AtomicBool::new(false),
            listed: OnceLock::new(),
        });
        let ticket = lease.core.registry.list(id, &lease.key, Arc::downgrade(&lease));
        lease.listed.get_or_init(|| ticket);
        lease
    }

    /// Has it kept; otherwise it has ended.
    pub(crate) fn keep(self: &Arc<Self>) -> bool {
        let kept = self.keeper.take_on(self);
        if !kept {
            self.destroy();
        }
        kept
    }

    fn orders(&self) -> MutexGuard<'_, VecDeque<Renewal>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has_orders(&self) -> bool {
        !self.orders().is_empty()
    }

    pub(crate) fn next_order(&self) -> Option<Renewal> {
        self.orders().pop_front()
    }

    /// Whether somebody waits to take the session.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    pub(crate) fn terms(&self) -> Terms {
        *self.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_terms(&self, terms: Terms) {
        *self.terms.lock().unwrap_or_else(PoisonError::into_inner) = terms;
    }

    /// Whether the session is known to be over; `false` while the keeper talks to it.
    pub(crate) fn is_over(&self) -> bool {
        match &*self.slot() {
            Slot::Idle(session) => session.link().is_over(),
            Slot::Busy | Slot::Gone => false,
        }
    }

    fn is_busy(&self) -> bool {
        matches!(&*self.slot(), Slot::Busy)
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the session to talk to it; `None` if the lease has ended. For the keeper, which alone makes the slot busy.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Talk> {
        let mut slot = self.slot();
        match std::mem::replace(&mut *slot, Slot::Busy) {
            Slot::Idle(session) => Some(Talk { lease: Arc::clone(self), session: Some(session) }),
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Takes the session for good; waits while the keeper talks to it. `None` if the lease has ended. Cancel safe.
    async fn take(&self) -> Option<Reserved> {
        loop {
            let mut settled = std::pin::pin!(self.settled.notified());
            // Registered before the look, so that no change between look and wait is missed.
            settled.as_mut().enable();
            if let Some(taken) = self.take_settled() {
                return taken;
            }
            settled.await;
        }
    }

    /// `None` while the keeper talks to it.
    fn take_settled(&self) -> Option<Option<Reserved>> {
        let mut slot = self.slot();
        match std::mem::replace(&mut *slot, Slot::Gone) {
            Slot::Idle(session) => {
                drop(slot);
                self.unlist();
                Some(Some(session))
            }
            Slot::Busy => {
                *slot = Slot::Busy;
                None
            }
            Slot::Gone => Some(None),
        }
    }

    /// Ends the lease from whatever state, and destroys the session. Neither waits nor needs a runtime.
    pub(crate) fn destroy(&self) {
        // Before the socket closes and the server lets others in; the first end stays.
        self.record.lose(Loss::new(LossCause::SessionEnded));
        let was = std::mem::replace(&mut *self.slot(), Slot::Gone);
        if let Slot::Busy = &was {
            if let Some((socket, in_use)) = &self.outside {
                socket.shutdown_write();
                // The keeper has the session, and may be on a runtime that nobody polls.
                self.core.pool.free_when_ended(socket, in_use);
            }
            self.keeper.stop();
        }
        drop(was);
        self.unlist();
    }

    fn unlist(&self) {
        if let Some(ticket) = self.listed.get() {
            self.core.registry.unlist(*ticket);
        }
        self.settled.notify_waiters();
    }

    /// Gives the key back to the server and the session to the pool, for the guard or for closing.
    pub(crate) async fn release(&self) -> Result<Release> {
        if self.is_busy() && self.is_lost() {
            self.destroy();
            return Ok(Release::Lost(self.loss()));
        }
        // So that the keeper's turn ends with the answers to what it has sent.
        self.leaving.store(true, Ordering::Relaxed);
        let taken = match self.take_settled() {
            Some(taken) => taken,
            None => match Box::pin(timeout(self.terms().timing.query_timeout(), self.take())).await {
                Ok(taken) => taken,
                Err(_elapsed) => return Err(self.unanswered("the server did not answer the last heartbeat")),
            },
        };
        match taken {
            Some(session) => self.unlock(session).await,
            None => Ok(Release::Lost(self.loss())),
        }
    }

    /// Gives the key back at the end of its TTL, for the keeper.
    pub(crate) async fn expire(&self) {
        if let Some(Some(session)) = self.take_settled() {
            // However it went, the session is back in the pool or destroyed.
            let _how = self.unlock(session).await;
        }
    }

    async fn unlock(&self, session: Reserved) -> Result<Release> {
        let Terms { timing, owner, .. } = self.terms();
        if session.link().is_over() {
            return Ok(Release::Lost(self.loss()));
        }
        let idle_before = self.idle_before.as_deref();
        let unlocked = session.within(timing.query_timeout(), pin!(session.unlock(self.id, owner, idle_before))).await;
        match unlocked {
            Some(Ok(Unlocked::Clean)) => {
                session.give_back();
                Ok(Release::Released)
            }
            Some(Ok(Unlocked::Spent)) => Ok(Release::Released),
            Some(Ok(Unlocked::NotOurs)) => Ok(Release::Lost(Loss::new(LossCause::NotOurs))),
            Some(Err(_)) if self.is_lost() => Ok(Release::Lost(self.loss())),
            Some(Err(error)) if error::server_ended_session(&error) => {
                Ok(Release::Lost(self.loss().with_source(error)))
            }
            Some(Err(error)) => Err(error::unavailable(error, "confirm a release").with_key(&self.key)),
            None => Err(self.unanswered("the server did not confirm a release")),
        }
    }

    fn is_lost(&self) -> bool {
        self.record.end().is_some_and(|loss| loss.cause() != LossCause::Released)
    }

    /// How it was lost. The guard's own word comes before it asks, so a release that finds nothing means that the session went.
    fn loss(&self) -> Loss {
        match self.record.end() {
            Some(loss) if loss.cause() != LossCause::Released => loss,
            _ => Loss::new(LossCause::SessionEnded),
        }
    }

    fn unanswered(&self, what: &'static str) -> Error {
        Error::new(ErrorKind::Unavailable, what).with_key(&self.key)
    }
}

/// The keeper's turn with the session. Dropped halfway, as with its runtime, it ends the lease.
#[derive(Debug)]
pub(crate) struct Talk {
    lease: Arc<Lease>,
    // Present until the turn ends.
    session: Option<Reserved>,
}

impl Talk {
    #[expect(clippy::expect_used, reason = "taken only by those who consume or drop it")]
    pub(crate) fn session(&self) -> &Session {
        self.session.as_deref().expect("BUG: a turn was used after its end")
    }

    /// Sets how long the session can stay in the server once it is destroyed.
    pub(crate) fn bound_by(&self, limit: Duration) {
        if let Some(session) = &self.session {
            session.bound_by(limit);
        }
    }

    /// Puts the session back, unless the lease was ended meanwhile: then it is destroyed.
    pub(crate) fn finish(mut self) {
        let session = self.session.take();
        let mut slot = self.lease.slot();
        let refused = match (&*slot, session) {
            (Slot::Busy, Some(session)) => {
                *slot = Slot::Idle(session);
                None
            }
            (_, session) => session,
        };
        drop(slot);
        drop(refused);
        self.lease.settled.notify_waiters();
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.lease.record.lose(Loss::new(LossCause::SessionEnded));
            self.lease.destroy();
            drop(session);
        }
    }
}

/// What the guard holds.
#[derive(Debug)]
pub(crate) struct PostgresHandle(pub(crate) Arc<Lease>);

#[async_trait]
impl LockHandle for PostgresHandle {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        let timing = self.0.core.timing(ttl)?;
        let (answer, renewed) = oneshot::channel();
        let ended = || Error::from(self.0.loss());
        // The keeper does it, so that a renewal that is given up here is carried through all the same.
        self.0.orders().push_back(Renewal { timing, ttl, answer });
        self.0.keeper.ring();
        // The keeper may be on a runtime that nobody polls. Both arms are cancel safe.
        tokio::select! {
            biased;
            renewed = renewed => renewed.unwrap_or_else(|_| Err(ended())),
            loss = self.0.record.hold().lost() => Err(loss.into()),
        }
    }

    async fn release(&mut self) -> Result<Release> {
        self.0.release().await
    }

    fn abandon(&mut self) {
        self.0.destroy();
    }
}
