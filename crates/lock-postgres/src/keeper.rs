//! Keeps one lease: proves ownership in time, carries out renewals, notices a loss, and frees the key when its TTL ends.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use distributed_lock::{Loss, LossCause, Result, Ttl};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{error::Elapsed, sleep, timeout},
};

use crate::{
    answer::Proof,
    core::Core,
    lease::{Lease, Talk, Terms},
    link::{self, Ended, LastWord, SharedError},
    session::Owner,
    timing::{Timing, server_millis},
};

/// A guard's order to give the hold a new TTL from now on.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) timing: Timing,
    pub(crate) ttl: Ttl,
    pub(crate) answer: oneshot::Sender<Result<()>>,
}

/// Runs until the lease ends. Ends the lease when it is dropped, as with its runtime: nobody would prove ownership any more.
pub(crate) async fn keep(
    lease: Arc<Lease>,
    mut orders: mpsc::UnboundedReceiver<Renewal>,
    mut watch: Option<watch::Receiver<LastWord>>,
    granted: Instant,
) {
    let mut unkept = Unkept(Some(&lease));
    let mut proved = granted;
    let mut clocks = None;
    loop {
        let now = lease.core.clock.now();
        let due = next_heartbeat(&lease.terms(), proved);
        let until_deadline = lease.record.hold().remaining().unwrap_or(Duration::MAX);
        let pause = due.map_or(Duration::MAX, |due| due.saturating_duration_since(now)).min(until_deadline);
        // All arms are cancel safe: an order stays in its channel, the end of the session is kept, the pause is computed anew.
        let order = tokio::select! {
            biased;
            ended = link::ended(&mut watch) => match ended {
                Ended::Look if !lease.is_over() => continue,
                Ended::Look => return lose(&lease, None),
                Ended::Yes(last_word) => return lose(&lease, last_word),
            },
            order = orders.recv() => match order {
                Some(order) => Some(order),
                // The lease is gone.
                None => return,
            },
            () = sleep(pause) => None,
        };
        match lease.record.end() {
            None => {}
            Some(loss) if loss.cause() == LossCause::DeadlinePassed => {
                lease.record.lose(loss);
                lease.expire().await;
                return;
            }
            // Whoever released it or closed the locker sees to the session; otherwise it is over.
            Some(loss) => {
                if matches!(loss.cause(), LossCause::Closed | LossCause::Released) {
                    unkept.0 = None;
                }
                return;
            }
        }
        let sent = lease.core.clock.now();
        let Some(talk) = lease.begin() else { return };
        let proof = match order {
            Some(order) => renew(&lease, talk, order, sent).await,
            None if due.is_some_and(|due| due <= sent) => heartbeat(&lease, talk, sent).await,
            None => {
                talk.finish();
                continue;
            }
        };
        let Some(proof) = proof else { return };
        watch_clock(&lease.core, &mut clocks, proof.now, lease.terms().timing.margin());
        proved = sent;
    }
}

/// With a TTL, none is sent once the deadline is the end of the TTL but for the margin.
fn next_heartbeat(terms: &Terms, proved: Instant) -> Option<Instant> {
    let next = proved + terms.timing.heartbeat();
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
    let asked =
        timeout(terms.timing.query_timeout(), talk.session().prove(terms.owner, &server_millis(idle).to_string()))
            .await;
    conclude(lease, talk, asked, &terms, sent, idle).await.ok()
}

/// A shortening counts from before the send, a lengthening once it is confirmed. `None` if the lease was lost.
async fn renew(lease: &Arc<Lease>, talk: Talk, order: Renewal, sent: Instant) -> Option<Proof> {
    let Renewal { timing, ttl, answer } = order;
    let old = lease.terms();
    let expires = ttl.duration().map(|ttl| sent + ttl);
    // The beacon publishes the TTL to others: another TTL, another beacon.
    let exchanged = match old.owner {
        Owner::Session(beacon) if old.timing.ttl() != timing.ttl() => Some((beacon, Core::beacon(&timing))),
        _ => None,
    };
    let owner = exchanged.map_or(old.owner, |(_, new)| Owner::Session(new));
    let new = Terms { timing, expires, owner, deadline: old.deadline };
    let idle = idle_limit(&new, sent);
    let deadline = timing.deadline(sent, idle);
    if lease.record.hold().remaining().is_some_and(|left| sent + left > deadline) {
        // `false` is an end that the conclusion finds as well.
        let _live = lease.record.extend(Some(deadline), Some(timing.max_grace()));
    }
    let (limit, millis) = (old.timing.query_timeout(), server_millis(idle).to_string());
    let asked = match exchanged {
        None => timeout(limit, talk.session().prove(owner, &millis)).await,
        Some((from, to)) => timeout(limit, talk.session().exchange(from, to, &millis)).await,
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
            lease.set_terms(Terms { deadline, ..*terms });
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

/// A lease whose keeper is dropped.
struct Unkept<'a>(Option<&'a Lease>);

impl Drop for Unkept<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.0 {
            // Nothing is left to do after a regular end.
            lease.destroy();
        }
    }
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
