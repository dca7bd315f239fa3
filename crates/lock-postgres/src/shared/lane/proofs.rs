//! The heartbeats of a lane, which prove all that it owns at once; and the renewals that ride with them.

use std::{collections::VecDeque, time::Instant};

use distributed_lock::{Loss, LossCause};
use futures_util::{FutureExt, future::BoxFuture, stream::FuturesOrdered};

use super::{
    Renew,
    batches::OTHER,
    work::{Work, loss_by},
};
use crate::{
    answer::Proof,
    session::DriverError,
    timing::{MAX_IN_FLIGHT, server_millis},
};

pub(super) struct Proofs {
    pub(super) answers: FuturesOrdered<BoxFuture<'static, Result<Proof, DriverError>>>,
    sent: VecDeque<Sent>,
    /// When the last confirmed heartbeat was sent, and when the last one was at all.
    pub(super) proved: Instant,
    last: Instant,
}

/// A heartbeat under way, and the renewals that it proves.
struct Sent {
    at: Instant,
    renewals: Vec<Renew>,
}

impl Proofs {
    pub(super) fn new(now: Instant) -> Self {
        Self { answers: FuturesOrdered::new(), sent: VecDeque::new(), proved: now, last: now }
    }

    pub(super) fn oldest(&self) -> Option<Instant> {
        self.sent.front().map(|sent| sent.at)
    }

    pub(super) fn lose(&mut self, loss: &Loss) {
        for renew in std::mem::take(&mut self.sent).into_iter().flat_map(|sent| sent.renewals) {
            renew.answer(Err(loss.clone().into()));
        }
    }
}

impl Work {
    /// Whether it was.
    pub(super) fn send_heartbeat_if_due(&mut self, now: Instant) -> bool {
        let due = self.next_heartbeat().is_some_and(|due| !self.renewals.is_empty() || due <= now);
        if due {
            self.send_heartbeat(now);
        }
        due
    }

    /// Also without holds, since the server ends a session that is silent.
    pub(super) fn next_heartbeat(&self) -> Option<Instant> {
        let interval = match self.proofs.sent.len() {
            0 => self.timing.heartbeat(),
            // As many as fit into one write.
            under_way if under_way >= MAX_IN_FLIGHT as usize => return None,
            _ => self.timing.heartbeat_unanswered(),
        };
        Some(self.proofs.last + interval)
    }

    /// One is enough for all renewals that were asked for before it is sent.
    fn send_heartbeat(&mut self, now: Instant) {
        let renewals = std::mem::take(&mut self.renewals);
        for renew in &renewals {
            self.shorten(renew, now);
        }
        self.proofs.last = now;
        self.write_left = self.write_left.saturating_sub(OTHER);
        self.proofs.sent.push_back(Sent { at: now, renewals });
        let (session, owner, idle) = (self.session.clone(), self.owner, server_millis(self.timing.ttl()));
        self.proofs.answers.push_back(async move { session.prove(owner, idle).await }.boxed());
    }

    /// A shortening counts from before the send.
    fn shorten(&self, renew: &Renew, now: Instant) {
        let Some(held) = self.holds.get(renew.ticket) else { return };
        let deadline = renew.ttl.duration().and_then(|ttl| (now + ttl).checked_sub(renew.timing.margin()));
        let left = held.record.hold().remaining();
        if let Some(deadline) = deadline.filter(|deadline| left.is_some_and(|left| now + left > *deadline)) {
            // `false` is an end that the answer finds as well.
            let _live = held.record.extend(Some(deadline), Some(renew.timing.max_grace()));
        }
    }

    pub(super) fn proof_answered(&mut self, answer: Result<Proof, DriverError>) -> Result<(), Loss> {
        let Some(Sent { at, renewals }) = self.proofs.sent.pop_front() else { return Ok(()) };
        let loss = match answer {
            Ok(proof) if proof.owned && !proof.in_recovery => None,
            Ok(_) => Some(Loss::new(LossCause::NotOurs)),
            Err(error) => Some(loss_by(error)),
        };
        if let Some(loss) = loss {
            // Told with all others when the lane ends.
            self.renewals.extend(renewals);
            return Err(loss);
        }
        self.proofs.proved = at;
        for renew in &renewals {
            self.holds.set_ttl(renew.ticket, renew.ttl, &renew.timing, at);
        }
        // The answer to an older proof must not undo a shortening that is under way.
        let under_way: Vec<_> =
            self.proofs.sent.iter().flat_map(|sent| &sent.renewals).map(|renew| renew.ticket).collect();
        for held in self.holds.all().filter(|held| !under_way.contains(&held.ticket)) {
            // `false` is an end that whoever looks finds by itself.
            let _live = held.extend(&self.timing, at);
        }
        for renew in renewals {
            let valid = match self.holds.get(renew.ticket) {
                Some(held) => held.record.hold().ensure_valid(),
                None => Err(Loss::new(LossCause::SessionEnded).into()),
            };
            renew.answer(valid);
        }
        Ok(())
    }
}
