//! Proofs of ownership on their way to the server and back: heartbeats and renewals. They are sent when they are due, whether or not
//! those before them were answered, so that an answer that is slow, but in time, costs nothing. The server answers them in order.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use distributed_lock::{Loss, LossCause, Result};
use futures_util::{StreamExt, stream::FuturesOrdered};
use tokio::{
    sync::{Notify, oneshot},
    time::sleep,
};

use super::{Clocks, Renewal, SECOND_LOOK, heartbeat_due, idle_limit, judge, lost, next_send};
use crate::{
    core::ghost_bound,
    lease::{Lease, Talk, Terms},
    session::{Beacon, Owner},
    timing::{MAX_IN_FLIGHT, server_millis},
};

/// Sends what is due until every proof is answered; `false` if the lease was lost.
pub(super) async fn prove(lease: &Arc<Lease>, talk: Talk, bell: &Notify, clocks: &mut Clocks) -> bool {
    let mut flight = Flight { lease, talk: &talk, latest: lease.terms(), sent: VecDeque::new() };
    let flown = flight.fly(bell, clocks).await;
    if let Err(loss) = &flown {
        // Before those who wait for an answer find that there will be none: whoever ends the hold first says why.
        lease.record.lose(loss.clone());
    }
    let told = flight.told();
    drop(flight);
    match flown {
        Ok(()) => {
            talk.finish();
            true
        }
        Err(loss) => {
            lost(lease, talk, loss, told).await;
            false
        }
    }
}

/// What is unanswered.
struct Flight<'a> {
    lease: &'a Lease,
    talk: &'a Talk,
    /// As of the last send.
    latest: Terms,
    sent: VecDeque<Sent>,
}

struct Sent {
    /// The terms once it is confirmed.
    terms: Terms,
    /// By when it must be.
    limit: Instant,
    /// Whoever waits for it.
    answer: Option<oneshot::Sender<Result<()>>>,
}

/// What is to be sent next.
enum Due {
    Heartbeat,
    Renewal(Renewal),
}

/// One statement: for how long the server is to wait for us after it, and the beacon that it exchanges for the owner's.
struct Statement {
    idle: Duration,
    exchanged: Option<Beacon>,
}

impl Flight<'_> {
    async fn fly(&mut self, bell: &Notify, clocks: &mut Clocks) -> Result<(), Loss> {
        let mut asked = FuturesOrdered::new();
        let mut second_look = None;
        loop {
            let now = self.lease.core.clock.now();
            while let Some(due) = self.due(now) {
                let Statement { idle, exchanged } = self.send(due, now);
                let (session, owner, idle) = (self.talk.session(), self.latest.owner, server_millis(idle));
                asked.push_back(async move {
                    match (exchanged, owner) {
                        (Some(old), Owner::Session(new)) => session.exchange(old, new, idle).await,
                        (_, owner) => session.prove(owner, idle).await,
                    }
                });
            }
            let Some(first) = self.sent.front() else { return Ok(()) };
            let limit = second_look.unwrap_or(first.limit);
            // One that is overdue is held back, until an answer or the bell.
            let next = self.next_heartbeat().filter(|due| *due > now);
            let wake = next.map_or(limit, |due| due.min(limit));
            // All arms are cancel safe: the stream keeps what it has, and the rest is looked at anew. The stream comes first, since
            // a statement is sent when it is polled for the first time.
            tokio::select! {
                biased;
                Some(answer) = asked.next() => {
                    let proof = judge(answer, self.latest.owner)?;
                    second_look = None;
                    if let Some(sent) = self.sent.pop_front() {
                        clocks.compare(&self.lease.core, sent.terms.proved, proof.now, sent.terms.timing.margin());
                        self.confirmed(sent);
                    }
                }
                () = bell.notified() => {}
                () = sleep(wake.saturating_duration_since(now)) => {
                    match second_look {
                        _ if self.lease.core.clock.now() < limit => {}
                        None => second_look = Some(self.lease.core.clock.now() + SECOND_LOOK),
                        Some(_) => return Err(Loss::new(LossCause::HeartbeatTimeout)),
                    }
                }
            }
        }
    }

    /// Nothing new once somebody waits for the session or the lease has ended.
    fn due(&self, now: Instant) -> Option<Due> {
        if self.is_full() || self.lease.is_leaving() || self.lease.record.end().is_some() {
            return None;
        }
        let order = self.lease.next_order().map(Due::Renewal);
        order.or_else(|| self.next_heartbeat().filter(|due| *due <= now).map(|_| Due::Heartbeat))
    }

    fn is_full(&self) -> bool {
        self.sent.len() >= MAX_IN_FLIGHT as usize
    }

    fn next_heartbeat(&self) -> Option<Instant> {
        match self.sent.is_empty() {
            true => heartbeat_due(&self.latest),
            false if self.is_full() => None,
            false => next_send(&self.latest, self.latest.timing.heartbeat_unanswered()),
        }
    }

    fn send(&mut self, due: Due, now: Instant) -> Statement {
        let limit = now + self.latest.timing.query_timeout();
        let (mut exchanged, mut answer) = (None, None);
        if let Due::Renewal(renewal) = due {
            exchanged = self.change(&renewal, now);
            answer = Some(renewal.answer);
        }
        let idle = idle_limit(&self.latest, now);
        self.latest.proved = now;
        self.latest.deadline = self.latest.timing.deadline(now, idle);
        self.sent.push_back(Sent { terms: self.latest, limit, answer });
        self.shorten(now);
        Statement { idle, exchanged }
    }

    /// The terms of a renewal from now on. With another T another beacon, which publishes it to others: what it is exchanged for.
    fn change(&mut self, renewal: &Renewal, now: Instant) -> Option<Beacon> {
        let old = std::mem::replace(&mut self.latest.timing, renewal.timing);
        self.latest.expires = renewal.ttl.duration().map(|ttl| now + ttl);
        if old.ttl() == renewal.timing.ttl() {
            return None;
        }
        // Which of those under way the server has carried out is not known.
        let confirmed = self.lease.terms().timing.ttl();
        let under_way = self.sent.iter().map(|sent| sent.terms.timing.ttl());
        let longest = under_way.fold(confirmed.max(renewal.timing.ttl()), Duration::max);
        self.talk.bound_by(ghost_bound(&self.lease.core.settings.session, longest));
        let Owner::Session(beacon) = self.latest.owner else { return None };
        self.latest.owner = Owner::Session(self.talk.session().beacon(&renewal.timing));
        Some(beacon)
    }

    /// The terms that the holder was told to go by: what was agreed, unless a shortening is under way.
    fn told(&self) -> Terms {
        let agreed = self.lease.terms();
        let under_way = self.sent.iter().map(|sent| sent.terms);
        under_way.fold(agreed, |told, terms| if terms.deadline < told.deadline { terms } else { told })
    }

    /// A shortening counts from before the send, a lengthening once it is confirmed.
    fn shorten(&self, now: Instant) {
        let Terms { deadline, timing, .. } = self.latest;
        if self.lease.record.hold().remaining().is_some_and(|left| now + left > deadline) {
            // `false` is an end that the conclusion finds as well.
            let _live = self.lease.record.extend(Some(deadline), Some(timing.max_grace()));
        }
    }

    /// Extends the lease, from before the send.
    fn confirmed(&self, Sent { mut terms, answer, .. }: Sent) {
        let mut grace = terms.timing.max_grace();
        // It must not undo a shortening that is under way behind it.
        for Sent { terms: behind, .. } in &self.sent {
            terms.deadline = terms.deadline.min(behind.deadline);
            grace = grace.min(behind.timing.max_grace());
        }
        self.lease.set_terms(terms);
        // `false`: it ended while we asked, and the next look, or whoever ended it, sees to the session.
        let _live = self.lease.record.extend(Some(terms.deadline), Some(grace));
        if let Some(answer) = answer {
            // A guard that stopped waiting does not mind.
            let _ = answer.send(self.lease.record.hold().ensure_valid());
        }
    }
}
