//! Proofs of ownership on their way to the server and back: heartbeats, and renewals that keep the TTL. They are sent when they are due,
//! whether or not those before them were answered, so that an answer that is slow, but in time, costs nothing. The server answers them
//! in order.

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

use super::{Clocks, Renewal, SECOND_LOOK, confirm, heartbeat_due, idle_limit, judge, lost, next_send, proven};
use crate::{
    lease::{Lease, Talk, Terms},
    session::Session,
    timing::{MAX_IN_FLIGHT, server_millis},
};

/// Sends what is due until every proof is answered; `false` if the lease was lost.
pub(super) async fn prove(lease: &Arc<Lease>, talk: Talk, bell: &Notify, clocks: &mut Clocks) -> bool {
    let mut flight = Flight { lease, session: talk.session(), latest: lease.terms(), sent: VecDeque::new() };
    let flown = flight.fly(bell, clocks).await;
    if let Err(loss) = &flown {
        // Before those who wait for an answer find that there will be none: whoever ends the hold first says why.
        lease.record.lose(loss.clone());
    }
    drop(flight);
    match flown {
        Ok(()) => {
            talk.finish();
            true
        }
        Err(loss) => {
            lost(lease, talk, loss).await;
            false
        }
    }
}

/// What is unanswered. All of it has the same timing and the same owner.
struct Flight<'a> {
    lease: &'a Lease,
    session: &'a Session,
    /// As of the last send.
    latest: Terms,
    sent: VecDeque<Sent>,
}

struct Sent {
    /// The terms once it is confirmed.
    terms: Terms,
    /// Whoever waits for it.
    answer: Option<oneshot::Sender<Result<()>>>,
}

/// What is to be sent next.
enum Due {
    Heartbeat,
    Renewal(Renewal),
}

impl Flight<'_> {
    async fn fly(&mut self, bell: &Notify, clocks: &mut Clocks) -> Result<(), Loss> {
        let tau = self.latest.timing.query_timeout();
        let mut asked = FuturesOrdered::new();
        let mut second_look = None;
        loop {
            let now = self.lease.core.clock.now();
            while let Some(due) = self.due(now) {
                let idle = self.send(due, now);
                asked.push_back(self.session.prove(self.latest.owner, server_millis(idle)));
            }
            let Some(first) = self.sent.front() else { return Ok(()) };
            let limit = second_look.unwrap_or(first.terms.proved + tau);
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

    /// Nothing new once somebody waits for the session or the lease has ended, nor ahead of an order for another TTL, which goes alone.
    fn due(&self, now: Instant) -> Option<Due> {
        if self.is_full() || self.lease.is_leaving() || self.lease.record.end().is_some() {
            return None;
        }
        let order = self.lease.next_order(|order| order.timing == self.latest.timing);
        match order {
            Some(order) => Some(Due::Renewal(order)),
            None if self.lease.has_orders() => None,
            None => self.next_heartbeat().filter(|due| *due <= now).map(|_| Due::Heartbeat),
        }
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

    /// For how long the server is to wait for us after it.
    fn send(&mut self, due: Due, now: Instant) -> Duration {
        let answer = match due {
            Due::Heartbeat => None,
            Due::Renewal(Renewal { ttl, answer, .. }) => {
                self.latest.expires = ttl.duration().map(|ttl| now + ttl);
                Some(answer)
            }
        };
        let idle = idle_limit(&self.latest, now);
        self.latest = proven(&self.latest, now, idle);
        self.sent.push_back(Sent { terms: self.latest, answer });
        idle
    }

    fn confirmed(&self, sent: Sent) {
        confirm(self.lease, sent.terms);
        if let Some(answer) = sent.answer {
            // A guard that stopped waiting does not mind.
            let _ = answer.send(self.lease.record.hold().ensure_valid());
        }
    }
}
