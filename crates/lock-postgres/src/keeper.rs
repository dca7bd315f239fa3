//! Keeps leases: proves ownership in time, carries out renewals, notices a loss, and frees the key when its TTL ends.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::{Duration, Instant, SystemTime},
};

use distributed_lock::{Clock, Loss, LossCause, Result, SystemClock, Ttl};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{Notify, oneshot, watch},
    task::AbortHandle,
    time::{error::Elapsed, sleep, timeout},
};

use crate::{
    answer::Proof,
    core::{Core, ghost_bound},
    lease::{Lease, Talk, Terms},
    link::{self, Ended, LastWord, SharedError},
    session::Owner,
    timing::{Timing, server_millis},
};

#[cfg(test)]
mod tests;

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
        let first_look = next_heartbeat(&terms).map_or(terms.deadline, |due| due.min(terms.deadline));
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
    let mut clocks = None;
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
                if !keep(&lease, &mut clocks).await {
                    keeper.leave(&lease);
                }
            }
            (None, _) => {}
        }
    }
}

/// Does what is due; `false` once the lease has ended.
async fn keep(lease: &Arc<Lease>, clocks: &mut Option<(Instant, SystemTime)>) -> bool {
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
                if !matches!(loss.cause(), LossCause::Closed | LossCause::Released) {
                    lease.destroy();
                }
                return false;
            }
        }
        let sent = lease.core.clock.now();
        let order = lease.next_order();
        if order.is_none() && next_heartbeat(&lease.terms()).is_none_or(|due| due > sent) {
            return true;
        }
        let Some(talk) = lease.begin() else { return false };
        let proof = match order {
            Some(order) => renew(lease, talk, order, sent).await,
            None => heartbeat(lease, talk, sent).await,
        };
        let Some(proof) = proof else { return false };
        watch_clock(&lease.core, clocks, proof.now, lease.terms().timing.margin());
    }
}

/// When the keeper must look at this lease again.
fn next_look(lease: &Arc<Lease>) -> Instant {
    let terms = lease.terms();
    match next_heartbeat(&terms) {
        _ if lease.has_orders() => terms.proved,
        Some(due) => due.min(terms.deadline),
        None => terms.deadline,
    }
}

/// With a TTL, none is sent once the deadline is the end of the TTL but for the margin.
fn next_heartbeat(terms: &Terms) -> Option<Instant> {
    let next = terms.proved + terms.timing.heartbeat();
    let last = terms.expires.and_then(|expires| expires.checked_sub(terms.timing.margin()));
    last.is_none_or(|last| next < last).then_some(next)
}

/// How long the server is to wait for us: never past the end of the TTL.
fn idle_limit(terms: &Terms, now: Instant) -> Duration {
    terms.expires.map_or_else(|| terms.timing.ttl(), |expires| expires.saturating_duration_since(now))
}

/// `None` if the lease was lost.
async fn heartbeat(lease: &Arc<Lease>, talk: Talk, sent: Instant) -> Option<Proof> {
    let terms = lease.terms();
    let idle = idle_limit(&terms, sent);
    let asked = timeout(terms.timing.query_timeout(), talk.session().prove(terms.owner, server_millis(idle))).await;
    conclude(lease, talk, asked, &terms, sent, idle).await.ok()
}

/// A shortening counts from before the send, a lengthening once it is confirmed. `None` if the lease was lost.
async fn renew(lease: &Arc<Lease>, mut talk: Talk, order: Renewal, sent: Instant) -> Option<Proof> {
    let Renewal { timing, ttl, answer } = order;
    let old = lease.terms();
    talk.bound_by(ghost_bound(&lease.core.settings.session, old.timing.ttl().max(timing.ttl())));
    let expires = ttl.duration().map(|ttl| sent + ttl);
    // The beacon publishes the TTL to others: another TTL, another beacon.
    let exchanged = match old.owner {
        Owner::Session(beacon) if old.timing.ttl() != timing.ttl() => Some((beacon, talk.session().beacon(&timing))),
        _ => None,
    };
    let owner = exchanged.map_or(old.owner, |(_, new)| Owner::Session(new));
    let new = Terms { timing, expires, owner, ..old };
    let idle = idle_limit(&new, sent);
    let deadline = timing.deadline(sent, idle);
    if lease.record.hold().remaining().is_some_and(|left| sent + left > deadline) {
        // `false` is an end that the conclusion finds as well.
        let _live = lease.record.extend(Some(deadline), Some(timing.max_grace()));
    }
    let (limit, millis) = (old.timing.query_timeout(), server_millis(idle));
    let asked = match exchanged {
        None => timeout(limit, talk.session().prove(owner, millis)).await,
        Some((from, to)) => timeout(limit, talk.session().exchange(from, to, millis)).await,
    };
    let concluded = match asked {
        // Said at once; what follows takes until the deadline.
        Err(elapsed) => {
            let loss = Loss::new(LossCause::HeartbeatTimeout).with_source(elapsed);
            lease.record.lose(loss.clone());
            let _ = answer.send(Err(loss.clone().into()));
            silent(lease, talk, loss).await;
            return None;
        }
        asked => conclude(lease, talk, asked, &new, sent, idle).await,
    };
    // A guard that stopped waiting does not mind.
    let _ = answer.send(match &concluded {
        Ok(_) => lease.record.hold().ensure_valid(),
        Err(loss) => Err(loss.clone().into()),
    });
    concluded.ok()
}

/// Extends the lease from before the send, or ends it.
async fn conclude(
    lease: &Arc<Lease>,
    talk: Talk,
    asked: Result<Result<Proof, tokio_postgres::Error>, Elapsed>,
    terms: &Terms,
    sent: Instant,
    idle: Duration,
) -> Result<Proof, Loss> {
    let loss = match asked {
        Ok(Ok(proof)) if proof.owned && !proof.in_recovery => {
            let deadline = terms.timing.deadline(sent, idle);
            lease.set_terms(Terms { deadline, proved: sent, ..*terms });
            // `false`: it ended while we asked, and the next look, or whoever ended it, sees to the session.
            let _live = lease.record.extend(Some(deadline), Some(terms.timing.max_grace()));
            talk.finish();
            return Ok(proof);
        }
        Ok(Ok(_)) => Loss::new(LossCause::NotOurs),
        Ok(Err(error)) => Loss::new(LossCause::SessionEnded).with_source(error),
        Err(elapsed) => {
            let loss = Loss::new(LossCause::HeartbeatTimeout).with_source(elapsed);
            silent(lease, talk, loss.clone()).await;
            return Err(loss);
        }
    };
    // Before the turn ends, since the first end stays.
    lease.record.lose(loss.clone());
    drop(talk);
    Err(loss)
}

/// The server is silent: the holder is told at once, but the socket stays open until the deadline. A server that is only slow, or
/// whose answers are lost, would let others in as soon as it closes, while the holder's work may still be ending. The end of the
/// guard closes it before. Half the margin more costs nobody anything: the server waits for all of it.
async fn silent(lease: &Lease, talk: Talk, loss: Loss) {
    lease.record.lose(loss);
    let Terms { deadline, timing, .. } = lease.terms();
    sleep((deadline + timing.margin() / 2).saturating_duration_since(lease.core.clock.now())).await;
    drop(talk);
}

fn lose(lease: &Lease, last_word: LastWord) {
    let loss = Loss::new(LossCause::SessionEnded);
    lease.record.lose(match last_word {
        Some(error) => loss.with_source(SharedError(error)),
        None => loss,
    });
    lease.destroy();
}

/// A step of the server's clock against ours can make its timers fire early.
fn watch_clock(core: &Core, last: &mut Option<(Instant, SystemTime)>, server: SystemTime, margin: Duration) {
    let ours = core.clock.now();
    if let Some((our_last, their_last)) = last.replace((ours, server)) {
        let we_saw = ours.saturating_duration_since(our_last);
        let step = match server.duration_since(their_last) {
            Ok(they_saw) => they_saw.abs_diff(we_saw),
            Err(back) => we_saw + back.duration(),
        };
        if step > margin / 2 {
            core.clock_stepped(step);
        }
    }
}
