//! A lane: one session that owns many locks, and the task that talks to it. What is asked of it while a statement is in flight goes
//! together in the next one. It is the unit of heartbeat and of loss.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use distributed_lock::{
    Clock, Error, ErrorKind, LockGuard, Loss, LossCause, Release, Result, Ttl, backend::HoldRecord,
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesOrdered};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::sleep,
};

use super::{claims::Claim, handle::SharedHandle, runtime::OwnRuntime};
use crate::{
    answer::Proof,
    connect::{Connector, SocketHandle},
    core::Core,
    error,
    link::{self, Ended, LastWord, SharedError},
    session::{Batch, BatchAnswer, DriverError, Owner, Session},
    timing::{MAX_IN_FLIGHT, Timing, server_millis},
    token,
};

/// Keys of one statement: two of them under way fit into one write of 1,200 bytes, since the driver may put them into one.
const BATCH: usize = 45;

/// Statements with keys under way at a time.
const BATCHES: usize = 2;

/// For how long an answer is looked for once its time is over; see `keeper`.
const SECOND_LOOK: Duration = Duration::from_millis(25);

/// Where orders for a lane are given.
#[derive(Debug)]
pub(crate) struct Lane {
    orders: mpsc::UnboundedSender<Order>,
    /// Keys that it holds or asks for.
    load: Arc<AtomicUsize>,
    socket: Option<SocketHandle>,
    ttl: Duration,
    /// As long as anybody has a lock of it.
    _runtime: Arc<OwnRuntime>,
}

#[derive(Debug)]
pub(super) enum Order {
    Lock(Box<Lock>),
    Renew(Renew),
    Unlock(Unlock),
    /// Gives everything back and ends.
    Close,
}

/// A key to try.
#[derive(Debug)]
pub(super) struct Lock {
    pub(super) claim: Claim,
    pub(super) ttl: Ttl,
    /// Of a hold with this TTL.
    pub(super) timing: Timing,
    pub(super) fenced: bool,
    /// Where it is tried; `None` until that is known.
    pub(super) lane: Option<Arc<Lane>>,
    /// `None`: somebody else has it.
    pub(super) answer: oneshot::Sender<Result<Option<LockGuard>>>,
}

impl Lock {
    pub(super) fn in_lane(mut self: Box<Self>, lane: &Arc<Lane>) -> Box<Self> {
        self.lane = Some(Arc::clone(lane));
        self
    }
}

/// Tells a hold of an id from a later one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Ticket(pub(super) i64, u64);

#[derive(Debug)]
pub(super) struct Renew {
    pub(super) ticket: Ticket,
    pub(super) ttl: Ttl,
    pub(super) timing: Timing,
    pub(super) answer: oneshot::Sender<Result<()>>,
}

#[derive(Debug)]
pub(super) struct Unlock {
    pub(super) ticket: Ticket,
    /// `None` if nobody waits for it.
    pub(super) answer: Option<oneshot::Sender<Result<Release>>>,
}

impl Lane {
    /// Opens it and starts its task, on the caller's runtime.
    /// `timing`: its own; T is the idle limit of its session.
    pub(super) async fn open(
        core: &Arc<Core>,
        connector: &Connector,
        runtime: Arc<OwnRuntime>,
        timing: Timing,
    ) -> Result<Self> {
        let session = Session::open(connector, server_millis(timing.ttl()), &core.world).await?;
        let owner = Owner::Session(session.beacon(&timing));
        let batch = session.prepare_batch().await?;
        let (orders, inbox) = mpsc::unbounded_channel();
        let socket = session.link().socket().cloned();
        let load = Arc::<AtomicUsize>::default();
        let now = core.clock.now();
        let work = Work {
            core: Arc::clone(core),
            ended: session.link().watch(),
            session: Arc::new(session),
            batch,
            timing,
            owner,
            inbox,
            load: Arc::clone(&load),
            tickets: 0,
            asks: VecDeque::new(),
            unlocks: VecDeque::new(),
            renewals: Vec::new(),
            holds: HashMap::new(),
            expiries: BTreeSet::new(),
            batches: VecDeque::new(),
            batch_answers: FuturesOrdered::new(),
            proofs: VecDeque::new(),
            proof_answers: FuturesOrdered::new(),
            proved: now,
            last_heartbeat: now,
            closing: false,
        };
        tokio::spawn(work.run());
        Ok(Self { orders, load, socket, ttl: timing.ttl(), _runtime: runtime })
    }

    /// `false` if it has ended.
    pub(super) fn give(&self, order: Order) -> std::result::Result<(), Order> {
        let asks = matches!(order, Order::Lock(_));
        if asks {
            self.load.fetch_add(1, Ordering::Relaxed);
        }
        self.orders.send(order).map_err(|refused| {
            if asks {
                self.load.fetch_sub(1, Ordering::Relaxed);
            }
            refused.0
        })
    }

    /// T.
    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(super) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    pub(super) fn is_over(&self) -> bool {
        self.orders.is_closed()
    }

    pub(super) async fn ended(&self) {
        self.orders.closed().await;
    }

    /// Until the server has let go of it.
    pub(super) async fn until_eof(&self) {
        if let Some(socket) = &self.socket {
            let _ = socket.until_eof().await;
        }
    }
}

/// A lock that the lane owns.
#[derive(Debug)]
struct Held {
    /// Free with it.
    _claim: Claim,
    ticket: Ticket,
    record: HoldRecord,
    timing: Timing,
    expires: Option<Instant>,
}

impl Held {
    /// Until when it may be relied on, after a proof of the whole lane that was sent then.
    fn deadline(&self, lane: &Timing, proved: Instant) -> Instant {
        let proven = lane.deadline(proved, lane.ttl());
        self.frees().map_or(proven, |frees| frees.min(proven))
    }

    /// When we give the key back ourselves.
    fn frees(&self) -> Option<Instant> {
        self.expires.and_then(|expires| expires.checked_sub(self.timing.margin()))
    }

    fn grace(&self, lane: &Timing) -> Duration {
        self.timing.max_grace().min(lane.max_grace())
    }
}

/// A statement with keys under way.
#[derive(Debug)]
struct Sent {
    at: Instant,
    unlocks: Vec<Unlock>,
    asks: Vec<Lock>,
}

/// A heartbeat under way, and the renewals that it proves.
#[derive(Debug)]
struct Proving {
    at: Instant,
    renewals: Vec<Renew>,
}

struct Work {
    core: Arc<Core>,
    session: Arc<Session>,
    ended: Option<watch::Receiver<LastWord>>,
    batch: Batch,
    timing: Timing,
    owner: Owner,
    inbox: mpsc::UnboundedReceiver<Order>,
    load: Arc<AtomicUsize>,
    tickets: u64,
    // What is to be sent.
    asks: VecDeque<Lock>,
    unlocks: VecDeque<Unlock>,
    renewals: Vec<Renew>,
    // What it holds.
    holds: HashMap<i64, Held>,
    expiries: BTreeSet<(Instant, Ticket)>,
    // What is under way.
    batches: VecDeque<Sent>,
    batch_answers: FuturesOrdered<BoxFuture<'static, std::result::Result<BatchAnswer, DriverError>>>,
    proofs: VecDeque<Proving>,
    proof_answers: FuturesOrdered<BoxFuture<'static, std::result::Result<Proof, DriverError>>>,
    /// When the last confirmed heartbeat was sent, and when the last one was at all.
    proved: Instant,
    last_heartbeat: Instant,
    closing: bool,
}

impl Work {
    async fn run(mut self) {
        let loss = match self.work().await {
            Ok(()) => Loss::new(LossCause::Closed),
            Err(loss) => loss,
        };
        self.lose(&loss);
        if loss.cause() == LossCause::HeartbeatTimeout {
            // See `keeper::lost`: others must not get in before the deadline while the work of a holder may still be ending.
            let deadline = self.timing.deadline(self.last_proof(), self.timing.ttl()) + self.timing.margin() / 2;
            sleep(deadline.saturating_duration_since(self.core.clock.now())).await;
        }
    }

    /// Until it is closed, or lost.
    async fn work(&mut self) -> std::result::Result<(), Loss> {
        let mut second_look = None;
        loop {
            while let Ok(order) = self.inbox.try_recv() {
                self.take(order);
            }
            let now = self.core.clock.now();
            self.free_what_expired(now);
            while self.batches.len() < BATCHES && self.has_keys() {
                self.send_batch(now);
            }
            if self.heartbeat_is_due(now) {
                self.send_heartbeat(now);
            }
            if self.closing && self.is_idle() {
                return Ok(());
            }
            let limit = second_look.or_else(|| self.answer_due());
            let wake = [limit, self.next_heartbeat(), self.next_expiry()].into_iter().flatten().min();
            // All arms are cancel safe: channels and streams keep what they have.
            tokio::select! {
                biased;
                Some(answer) = self.batch_answers.next() => {
                    second_look = None;
                    self.answered(answer)?;
                }
                Some(answer) = self.proof_answers.next() => {
                    second_look = None;
                    self.confirmed(answer)?;
                }
                ended = link::ended(&mut self.ended) => {
                    let Ended::Yes(last_word) = ended else { continue };
                    let loss = Loss::new(LossCause::SessionEnded);
                    return Err(match last_word {
                        Some(error) => loss.with_source(SharedError(error)),
                        None => loss,
                    });
                }
                order = self.inbox.recv() => match order {
                    Some(order) => self.take(order),
                    None => self.closing = true,
                },
                () = sleep_until(self.core.clock.as_ref(), wake), if wake.is_some() => {
                    let now = self.core.clock.now();
                    match second_look {
                        _ if limit.is_none_or(|limit| now < limit) => {}
                        None => second_look = Some(now + SECOND_LOOK),
                        Some(_) => return Err(Loss::new(LossCause::HeartbeatTimeout)),
                    }
                }
            }
        }
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Lock(lock) if self.closing => self.refuse(*lock, crate::core::closed()),
            Order::Lock(lock) => self.asks.push_back(*lock),
            Order::Renew(renew) => self.renewals.push(renew),
            Order::Unlock(unlock) => self.unlocks.push_back(unlock),
            Order::Close => self.close(),
        }
    }

    fn close(&mut self) {
        self.closing = true;
        for lock in std::mem::take(&mut self.asks) {
            self.refuse(lock, crate::core::closed());
        }
        for held in self.holds.values() {
            held.record.lose(Loss::new(LossCause::Closed));
        }
        let tickets: Vec<_> = self.holds.values().map(|held| held.ticket).collect();
        self.unlocks.extend(tickets.into_iter().map(|ticket| Unlock { ticket, answer: None }));
    }

    fn refuse(&self, lock: Lock, error: Error) {
        self.load.fetch_sub(1, Ordering::Relaxed);
        let Lock { claim, answer, .. } = lock;
        drop(claim);
        let _ = answer.send(Err(error));
    }

    fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.batches.is_empty() && self.proofs.is_empty() && !self.has_keys()
    }

    fn has_keys(&self) -> bool {
        !self.asks.is_empty() || !self.unlocks.is_empty()
    }

    /// Up to as many keys as fit, those to be given back first.
    fn send_batch(&mut self, now: Instant) {
        let mut unlocks = Vec::new();
        while unlocks.len() < BATCH {
            let Some(unlock) = self.unlocks.pop_front() else { break };
            match self.holds.get(&unlock.ticket.0) {
                Some(held) if held.ticket == unlock.ticket => unlocks.push(unlock),
                // It ended before.
                _ => answer_release(unlock, Ok(Release::Lost(Loss::new(LossCause::SessionEnded)))),
            }
        }
        let mut asks = Vec::new();
        while unlocks.len() + asks.len() < BATCH {
            let Some(lock) = self.asks.pop_front() else { break };
            // Who asked may be gone already.
            match lock.answer.is_closed() {
                true => {
                    self.load.fetch_sub(1, Ordering::Relaxed);
                }
                false => asks.push(lock),
            }
        }
        if unlocks.is_empty() && asks.is_empty() {
            return;
        }
        let fenced = asks.iter().any(|lock| lock.fenced);
        let give_back: Vec<_> = unlocks.iter().map(|unlock| unlock.ticket.0).collect();
        let take: Vec<_> = asks.iter().map(|lock| lock.claim.id).collect();
        let (session, batch) = (Arc::clone(&self.session), self.batch.clone());
        let asked = async move { session.run_batch(&batch, &give_back, &take, fenced).await };
        self.batch_answers.push_back(asked.boxed());
        self.batches.push_back(Sent { at: now, unlocks, asks });
    }

    fn answered(&mut self, answer: std::result::Result<BatchAnswer, DriverError>) -> std::result::Result<(), Loss> {
        let Some(Sent { at, unlocks, asks }) = self.batches.pop_front() else { return Ok(()) };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let loss = loss_by(error);
                self.fail(unlocks, asks, &loss);
                return Err(loss);
            }
        };
        if answer.in_recovery {
            let loss = Loss::new(LossCause::NotOurs);
            self.fail(unlocks, asks, &loss);
            return Err(loss);
        }
        let mut bad = None;
        for (unlock, owned) in unlocks.into_iter().zip(answer.unlocked) {
            self.forget(unlock.ticket);
            answer_release(
                unlock,
                match owned {
                    true => Ok(Release::Released),
                    false => {
                        let loss = Loss::new(LossCause::NotOurs);
                        bad = Some(loss.clone());
                        Ok(Release::Lost(loss))
                    }
                },
            );
        }
        let token = answer.token.as_deref();
        for (lock, granted) in asks.into_iter().zip(answer.locked) {
            match granted {
                true => self.grant(lock, at, token),
                false => {
                    self.load.fetch_sub(1, Ordering::Relaxed);
                    let Lock { claim, answer, .. } = lock;
                    drop(claim);
                    let _ = answer.send(Ok(None));
                }
            }
        }
        bad.map_or(Ok(()), Err)
    }

    fn grant(&mut self, lock: Lock, sent: Instant, token: Option<&str>) {
        let Lock { claim, ttl, timing, fenced, lane, answer } = lock;
        self.tickets += 1;
        let ticket = Ticket(claim.id, self.tickets);
        let token = match token.filter(|_| fenced).map(|text| token::parse(self.core.settings.epoch, text)).transpose()
        {
            Ok(token) => token,
            Err(error) => {
                let record = HoldRecord::draft(self.core.id, claim.key.clone(), Arc::clone(&self.core.clock)).open();
                self.hold(Held { _claim: claim, ticket, record, timing, expires: None });
                self.unlocks.push_back(Unlock { ticket, answer: None });
                let _ = answer.send(Err(error));
                return;
            }
        };
        let expires = ttl.duration().map(|ttl| sent + ttl);
        let draft = HoldRecord::draft(self.core.id, claim.key.clone(), Arc::clone(&self.core.clock));
        let record = draft.with_fencing_token(token).open();
        let held = Held { _claim: claim, ticket, record: record.clone(), timing, expires };
        let live = record.extend(Some(held.deadline(&self.timing, sent)), Some(held.grace(&self.timing)));
        self.hold(held);
        if self.closing {
            record.lose(Loss::new(LossCause::Closed));
        }
        let given = match lane.filter(|_| live && record.end().is_none()) {
            // One that nobody takes gives the lock back when it is dropped.
            Some(lane) => {
                let handle = SharedHandle::new(Arc::clone(&self.core), lane, record.clone(), ticket);
                let _ = answer.send(Ok(Some(LockGuard::new(record.hold(), ttl, handle))));
                true
            }
            None => {
                let message = "the lock was over when its grant was read";
                let _ = answer.send(Err(Error::new(ErrorKind::Unavailable, message)));
                false
            }
        };
        if !given {
            self.unlocks.push_back(Unlock { ticket, answer: None });
        }
    }

    fn hold(&mut self, held: Held) {
        if let Some(frees) = held.frees() {
            self.expiries.insert((frees, held.ticket));
        }
        self.holds.insert(held.ticket.0, held);
    }

    /// The server has it back.
    fn forget(&mut self, ticket: Ticket) {
        let Some(held) = self.holds.remove(&ticket.0) else { return };
        if let Some(frees) = held.frees() {
            self.expiries.remove(&(frees, ticket));
        }
        self.load.fetch_sub(1, Ordering::Relaxed);
    }

    fn free_what_expired(&mut self, now: Instant) {
        while let Some((frees, ticket)) = self.expiries.first().copied().filter(|(frees, _)| *frees <= now) {
            self.expiries.remove(&(frees, ticket));
            if let Some(held) = self.holds.get(&ticket.0).filter(|held| held.ticket == ticket) {
                held.record.lose(Loss::new(LossCause::DeadlinePassed));
                self.unlocks.push_back(Unlock { ticket, answer: None });
            }
        }
    }

    fn next_expiry(&self) -> Option<Instant> {
        self.expiries.first().map(|(frees, _)| *frees)
    }

    /// One is enough for all that asked before it is sent.
    fn send_heartbeat(&mut self, now: Instant) {
        let renewals = std::mem::take(&mut self.renewals);
        for renew in &renewals {
            self.shorten(renew, now);
        }
        self.last_heartbeat = now;
        self.proofs.push_back(Proving { at: now, renewals });
        let (session, owner, idle) = (Arc::clone(&self.session), self.owner, server_millis(self.timing.ttl()));
        self.proof_answers.push_back(async move { session.prove(owner, idle).await }.boxed());
    }

    /// A shortening counts from before the send.
    fn shorten(&self, renew: &Renew, now: Instant) {
        let Some(held) = self.holds.get(&renew.ticket.0).filter(|held| held.ticket == renew.ticket) else { return };
        let deadline = renew.ttl.duration().and_then(|ttl| (now + ttl).checked_sub(renew.timing.margin()));
        let left = held.record.hold().remaining();
        if let Some(deadline) = deadline.filter(|deadline| left.is_some_and(|left| now + left > *deadline)) {
            // `false` is an end that the confirmation finds as well.
            let _live = held.record.extend(Some(deadline), Some(renew.timing.max_grace()));
        }
    }

    fn confirmed(&mut self, answer: std::result::Result<Proof, DriverError>) -> std::result::Result<(), Loss> {
        let Some(Proving { at, renewals }) = self.proofs.pop_front() else { return Ok(()) };
        let loss = match answer {
            Ok(proof) if proof.owned && !proof.in_recovery => None,
            Ok(_) => Some(Loss::new(LossCause::NotOurs)),
            Err(error) => Some(loss_by(error)),
        };
        if let Some(loss) = loss {
            self.lose(&loss);
            renewals.into_iter().for_each(|renew| answer_renewal(renew, Err(loss.clone().into())));
            return Err(loss);
        }
        self.proved = at;
        for renew in &renewals {
            self.renew(renew, at);
        }
        let pending = self.proofs.iter().flat_map(|proving| &proving.renewals).map(|renew| renew.ticket);
        let shortened: Vec<_> = pending.collect();
        for held in self.holds.values() {
            // The answer to an older proof must not undo a shortening that is under way.
            if !shortened.contains(&held.ticket) {
                let _live = held.record.extend(Some(held.deadline(&self.timing, at)), Some(held.grace(&self.timing)));
            }
        }
        for renew in renewals {
            let valid = match self.holds.get(&renew.ticket.0).filter(|held| held.ticket == renew.ticket) {
                Some(held) => held.record.hold().ensure_valid(),
                None => Err(Loss::new(LossCause::SessionEnded).into()),
            };
            answer_renewal(renew, valid);
        }
        Ok(())
    }

    fn renew(&mut self, renew: &Renew, sent: Instant) {
        let Some(held) = self.holds.get_mut(&renew.ticket.0).filter(|held| held.ticket == renew.ticket) else { return };
        if let Some(frees) = held.frees() {
            self.expiries.remove(&(frees, held.ticket));
        }
        held.timing = renew.timing;
        held.expires = renew.ttl.duration().map(|ttl| sent + ttl);
        if let Some(frees) = held.frees() {
            self.expiries.insert((frees, held.ticket));
        }
    }

    fn heartbeat_is_due(&self, now: Instant) -> bool {
        self.proofs.len() < MAX_IN_FLIGHT as usize
            && (!self.renewals.is_empty() || self.next_heartbeat().is_some_and(|due| due <= now))
    }

    /// None without holds: then the server ends the session when it likes.
    fn next_heartbeat(&self) -> Option<Instant> {
        if self.holds.is_empty() || self.proofs.len() >= MAX_IN_FLIGHT as usize {
            return None;
        }
        let interval =
            if self.proofs.is_empty() { self.timing.heartbeat() } else { self.timing.heartbeat_unanswered() };
        Some(self.last_heartbeat + interval)
    }

    /// When the oldest answer is overdue.
    fn answer_due(&self) -> Option<Instant> {
        let oldest = [self.batches.front().map(|sent| sent.at), self.proofs.front().map(|proving| proving.at)];
        oldest.into_iter().flatten().min().map(|at| at + self.timing.query_timeout())
    }

    fn last_proof(&self) -> Instant {
        let granted = self.batches.front().map(|sent| sent.at);
        granted.unwrap_or(self.proved).max(self.proved)
    }

    /// Tells everybody; nothing comes back.
    fn lose(&mut self, loss: &Loss) {
        // First the holders, since whoever is answered looks at the record.
        for held in self.holds.values() {
            held.record.lose(loss.clone());
        }
        self.inbox.close();
        while let Ok(order) = self.inbox.try_recv() {
            match order {
                Order::Lock(lock) => self.asks.push_back(*lock),
                Order::Renew(renew) => self.renewals.push(renew),
                Order::Unlock(unlock) => self.unlocks.push_back(unlock),
                Order::Close => {}
            }
        }
        let renewals = std::mem::take(&mut self.renewals);
        let proving = std::mem::take(&mut self.proofs).into_iter().flat_map(|proving| proving.renewals);
        for renew in renewals.into_iter().chain(proving) {
            answer_renewal(renew, Err(loss.clone().into()));
        }
        let (asks, unlocks) = (std::mem::take(&mut self.asks), std::mem::take(&mut self.unlocks));
        self.fail(unlocks, asks, loss);
        for Sent { unlocks, asks, .. } in std::mem::take(&mut self.batches) {
            self.fail(unlocks, asks, loss);
        }
        // With their claims.
        self.load.fetch_sub(self.holds.len(), Ordering::Relaxed);
        self.holds.clear();
    }

    fn fail(&self, unlocks: impl IntoIterator<Item = Unlock>, asks: impl IntoIterator<Item = Lock>, loss: &Loss) {
        unlocks.into_iter().for_each(|unlock| answer_release(unlock, Ok(Release::Lost(loss.clone()))));
        for lock in asks {
            let message = "the session that was asked for the lock ended";
            self.refuse(lock, Error::new(ErrorKind::Unavailable, message).with_source(loss.clone()));
        }
    }
}

fn answer_release(unlock: Unlock, answer: Result<Release>) {
    if let Some(waits) = unlock.answer {
        let _ = waits.send(answer);
    }
}

fn answer_renewal(renew: Renew, answer: Result<()>) {
    // A guard that stopped waiting does not mind.
    let _ = renew.answer.send(answer);
}

fn loss_by(error: DriverError) -> Loss {
    let cause = match error::leaves_session(&error) {
        // The session may own its locks still.
        true => LossCause::HeartbeatTimeout,
        false => LossCause::SessionEnded,
    };
    Loss::new(cause).with_source(error)
}

async fn sleep_until(clock: &dyn Clock, at: Option<Instant>) {
    match at {
        Some(at) => sleep(at.saturating_duration_since(clock.now())).await,
        None => std::future::pending().await,
    }
}
