//! Keeps leases: proves ownership in time, carries out renewals, notices a loss, and frees the key when its TTL ends.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::{Duration, Instant},
};

use distributed_lock::{Clock, Loss, LossCause, Result, SystemClock, Ttl};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{Notify, oneshot, watch},
    task::AbortHandle,
    time::sleep,
};

use crate::{
    answer::Proof,
    error,
    lease::{Lease, Talk, Terms},
    link::{self, Ended, LastWord, SharedError},
    session::Owner,
    timing::Timing,
};

mod proofs;
mod server_clock;

use server_clock::Clocks;

/// For how long an answer is looked for once its time is over: a process that stood still for a while finds its timer and an answer that
/// came meanwhile both due, and the driver needs a moment to read it. Part of delta, which is for timers and threads that run late.
const SECOND_LOOK: Duration = Duration::from_millis(25);

/// A guard's order to give the hold a new TTL from now on.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) timing: Timing,
    pub(crate) ttl: Ttl,
    pub(crate) answer: oneshot::Sender<Result<()>>,
}

/// Keeps the leases of one session, one after the other, by a task beside the session's driver. Starts with the first lease.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// Where the session's connection is driven, so that both live and end together.
    runtime: Handle,
    one_thread: bool,
    clock: SystemClock,
    /// Completes when the session has ended; `None` for a borrowed one, which is looked at.
    ended: Option<watch::Receiver<LastWord>>,
    // A std mutex: never held across an await.
    desk: Mutex<Desk>,
    bell: Notify,
    task: OnceLock<AbortHandle>,
}

/// What the keeper's task finds when it wakes.
#[derive(Debug, Default)]
struct Desk {
    lease: Weak<Lease>,
    /// When the lease must be looked at for the first time.
    first_look: Option<Instant>,
    /// When the task wakes by itself. A lease that needs it no earlier does not ring for it, and the alarm stays after the lease, so
    /// that grants and releases in a row wake nobody. By the clock of the timer, which stands still during a suspend.
    wakes: Option<tokio::time::Instant>,
    stopped: bool,
}

impl Keeper {
    /// On the caller's runtime.
    pub(crate) fn new(ended: Option<watch::Receiver<LastWord>>) -> Arc<Self> {
        let (desk, bell, task) = (Mutex::default(), Notify::new(), OnceLock::new());
        let runtime = Handle::current();
        let one_thread = runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
        Arc::new(Self { runtime, one_thread, clock: SystemClock, ended, desk, bell, task })
    }

    /// Whether only another runtime's one thread drives the session. Whoever waits here cannot tell if anybody polls that.
    pub(crate) fn lives_elsewhere(&self) -> bool {
        self.one_thread && Handle::try_current().map_or(true, |here| here.id() != self.runtime.id())
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps this lease from now on; `false` if nobody is there to do it, or if it is over already, as when the future of its acquire
    /// was not polled for so long that the server has given the key to others.
    pub(crate) fn take_on(self: &Arc<Self>, lease: &Arc<Lease>) -> bool {
        let (terms, now) = (lease.terms(), self.clock.now());
        if now >= terms.deadline {
            return false;
        }
        let first_look = heartbeat_due(&terms).map_or(terms.deadline, |due| due.min(terms.deadline));
        let in_time = tokio::time::Instant::now().checked_add(first_look.saturating_duration_since(now));
        let mut desk = self.desk();
        desk.lease = Arc::downgrade(lease);
        if desk.stopped {
            return false;
        }
        desk.first_look = Some(first_look);
        let wakes_in_time = desk.wakes.zip(in_time).is_some_and(|(wakes, in_time)| wakes <= in_time);
        // Not while a task starts: that of a runtime that has ended is dropped at once.
        drop(desk);
        self.task.get_or_init(|| self.runtime.spawn(keep_all(Duty(Arc::clone(self)))).abort_handle());
        if wakes_in_time {
            return true;
        }
        self.ring();
        !self.desk().stopped
    }

    /// Something changed that cannot wait.
    pub(crate) fn ring(&self) {
        self.bell.notify_one();
    }

    /// Ends it; in the middle of a statement this destroys the session.
    pub(crate) fn stop(&self) {
        self.desk().stopped = true;
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    /// Until the next look.
    fn pause(&self) -> Duration {
        let mut desk = self.desk();
        let lease = desk.lease.upgrade();
        let first_look = desk.first_look.take();
        let next = lease.as_ref().map(next_look).or(first_look);
        let pause = next.map_or(Duration::MAX, |next| next.saturating_duration_since(self.clock.now()));
        desk.wakes = next.and_then(|_| tokio::time::Instant::now().checked_add(pause));
        // First, since a lease that ends here takes its session with it.
        drop(desk);
        drop(lease);
        pause
    }

    /// The lease to see to, if any.
    fn lease(&self) -> Option<Arc<Lease>> {
        self.desk().lease.upgrade()
    }

    fn leave(&self, lease: &Arc<Lease>) {
        let mut desk = self.desk();
        if std::ptr::eq(desk.lease.as_ptr(), Arc::as_ptr(lease)) {
            desk.lease = Weak::new();
        }
    }
}

/// A keeper at work. Dropped, as with its runtime, it ends the lease: nobody would prove ownership any more.
struct Duty(Arc<Keeper>);

impl Drop for Duty {
    fn drop(&mut self) {
        let mut desk = self.0.desk();
        desk.stopped = true;
        let lease = desk.lease.upgrade();
        drop(desk);
        if let Some(lease) = lease {
            // Nothing is left to do after a regular end.
            lease.destroy();
        }
    }
}

/// Runs until the session ends.
async fn keep_all(duty: Duty) {
    let keeper = &*duty.0;
    let mut watch = keeper.ended.clone();
    let mut clocks = Clocks::default();
    loop {
        let pause = keeper.pause();
        // All arms are cancel safe: the end of the session is kept, the bell stays rung, the pause is computed anew.
        let ended = tokio::select! {
            biased;
            ended = link::ended(&mut watch) => Some(ended),
            () = keeper.bell.notified() => continue,
            // Without a timer, which would take up to a millisecond.
            () = std::future::ready(()), if pause.is_zero() => None,
            () = sleep(pause) => None,
        };
        match (keeper.lease(), ended) {
            (Some(lease), Some(Ended::Yes(last_word))) => return lose(&lease, last_word),
            (None, Some(Ended::Yes(_))) => return,
            (Some(lease), Some(Ended::Look)) if lease.is_over() => return lose(&lease, None),
            (Some(lease), _) => {
                if !keep(&lease, keeper, &mut clocks).await {
                    keeper.leave(&lease);
                }
            }
            (None, _) => {}
        }
    }
}

/// Does what is due; `false` once the lease has ended.
async fn keep(lease: &Arc<Lease>, keeper: &Keeper, clocks: &mut Clocks) -> bool {
    loop {
        match lease.record.end() {
            None => {}
            Some(loss) if loss.cause() == LossCause::DeadlinePassed => {
                lease.record.lose(loss);
                lease.expire().await;
                return false;
            }
            // Whoever released it or closed the locker sees to the session; otherwise it is over.
            Some(loss) => {
                if !is_given_up(&loss) {
                    lease.destroy();
                }
                return false;
            }
        }
        if lease.is_leaving() {
            return true;
        }
        if !lease.has_orders() && heartbeat_due(&lease.terms()).is_none_or(|due| due > lease.core.clock.now()) {
            return true;
        }
        let Some(talk) = lease.begin() else { return false };
        let lives = proofs::prove(lease, talk, &keeper.bell, clocks).await;
        if !lives {
            return false;
        }
    }
}

/// When the keeper must look at this lease again. While somebody waits to take its session nothing is due any more, but an alarm that is
/// still to come stays: the next lease finds it in time, and need not ring.
fn next_look(lease: &Arc<Lease>) -> Instant {
    let (terms, leaving) = (lease.terms(), lease.is_leaving());
    if lease.has_orders() && !leaving {
        return terms.proved;
    }
    match heartbeat_due(&terms) {
        Some(due) if !leaving || due > lease.core.clock.now() => due.min(terms.deadline),
        _ => terms.deadline,
    }
}

/// With a TTL, none is sent once the deadline is the end of the TTL but for the margin.
fn heartbeat_due(terms: &Terms) -> Option<Instant> {
    next_send(terms, terms.timing.heartbeat())
}

fn next_send(terms: &Terms, interval: Duration) -> Option<Instant> {
    let next = terms.proved + interval;
    let last = terms.expires.and_then(|expires| expires.checked_sub(terms.timing.margin()));
    last.is_none_or(|last| next < last).then_some(next)
}

/// How long the server is to wait for us: never past the end of the TTL.
fn idle_limit(terms: &Terms, now: Instant) -> Duration {
    terms.expires.map_or_else(|| terms.timing.ttl(), |expires| expires.saturating_duration_since(now))
}

/// What an answer says of the lease.
fn judge(answer: Result<Proof, tokio_postgres::Error>, owner: Owner) -> Result<Proof, Loss> {
    let is_session = matches!(owner, Owner::Session(_));
    match answer {
        Ok(proof) if proof.owned && !proof.in_recovery => Ok(proof),
        Ok(_) => Err(Loss::new(LossCause::NotOurs)),
        // Cancelled, say: the session may own the lock still, while a transaction has lost it.
        Err(error) if is_session && error::leaves_session(&error) => {
            Err(Loss::new(LossCause::HeartbeatTimeout).with_source(error))
        }
        Err(error) => Err(Loss::new(LossCause::SessionEnded).with_source(error)),
    }
}

/// Ends the lease, and the session when its turn ends. `told`: what the holder went by.
async fn lost(lease: &Lease, talk: Talk, loss: Loss, told: Terms) {
    let may_be_ours = loss.cause() == LossCause::HeartbeatTimeout;
    // Before the turn ends, since the first end stays.
    lease.record.lose(loss);
    let given_up = lease.record.end().is_some_and(|end| is_given_up(&end));
    if may_be_ours && !given_up {
        // The holder is told at once, but the socket stays open until the deadline. A server that is only slow, or whose answers are
        // lost, or that refused to answer, would let others in as soon as it closes, while the holder's work may still be ending. The end of the guard closes it
        // before. Half the margin more costs nobody anything: the server waits for all of it.
        let Terms { deadline, timing, .. } = told;
        sleep((deadline + timing.margin() / 2).saturating_duration_since(lease.core.clock.now())).await;
    }
    drop(talk);
}

/// Whether it was ended by somebody who sees to the session, and wants the key to be free at once.
fn is_given_up(end: &Loss) -> bool {
    matches!(end.cause(), LossCause::Closed | LossCause::Released)
}

fn lose(lease: &Lease, last_word: LastWord) {
    let loss = Loss::new(LossCause::SessionEnded);
    lease.record.lose(match last_word {
        Some(error) => loss.with_source(SharedError(error)),
        None => loss,
    });
    lease.destroy();
}
