//! What is asked of a lane.

use std::sync::Arc;

use distributed_lock::{Error, LockGuard, LockKey, Loss, Release, Result, Ttl};
use tokio::sync::oneshot;

use super::Lane;
use crate::{housekeeping::Sender, shared::ids::Claim, timing::Timing};

#[derive(Debug)]
pub(in crate::shared) enum Order {
    Lock(Asked),
    // Boxed, as they are few.
    Renew(Box<Renew>),
    Unlock(Unlock),
    /// Which of its holds there are.
    List(oneshot::Sender<Vec<Ticket>>),
    /// These are not ours any more.
    Missing(Vec<Ticket>),
    /// Gives everything back and ends.
    Close,
}

impl Order {
    /// Whether nothing can be done about it before an answer comes to a lane that is full.
    pub(super) fn can_wait(&self) -> bool {
        matches!(self, Self::Lock(_) | Self::Unlock(_))
    }
}

/// Boxed, since it goes from queue to queue.
pub(in crate::shared) type Asked = Box<Lock>;

/// A key to try.
#[derive(Debug)]
pub(in crate::shared) struct Lock {
    pub(in crate::shared) claim: Claim,
    pub(in crate::shared) key: LockKey,
    pub(in crate::shared) ttl: Ttl,
    /// Of a hold with this TTL.
    pub(in crate::shared) timing: Timing,
    pub(in crate::shared) fenced: bool,
    /// As whom it asked others to step down while it waited.
    pub(in crate::shared) waited_as: Option<Sender>,
    /// Where it is tried; `None` until that is known.
    pub(in crate::shared) lane: Option<Arc<Lane>>,
    /// `None` once it has been given.
    pub(in crate::shared) answer: Option<oneshot::Sender<Result<Granted>>>,
}

/// What came of it.
#[derive(Debug)]
pub(in crate::shared) enum Granted {
    Yes(LockGuard),
    /// Somebody else has it.
    No,
    /// The lane ended before it took anything: another one may be asked.
    Again(Loss),
}

impl Lock {
    pub(in crate::shared) fn in_lane(mut self: Box<Self>, lane: &Arc<Lane>) -> Asked {
        self.lane = Some(Arc::clone(lane));
        self
    }

    /// The key is free for others before the answer is read.
    pub(super) fn answer(self, answer: Result<Granted>) {
        let Self { claim, answer: asker, .. } = self;
        drop(claim);
        if let Some(asker) = asker {
            // One that stopped waiting does not mind.
            let _ = asker.send(answer);
        }
    }

    /// Whether nobody waits for the answer any more.
    pub(super) fn is_left(&self) -> bool {
        self.answer.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Lets who asked go, although the server has not answered: what it grants is given back.
    pub(super) fn let_go(&mut self, error: Error) {
        if let Some(asker) = self.answer.take() {
            let _ = asker.send(Err(error));
        }
    }

    pub(super) fn refuse(self, error: Error) {
        self.answer(Err(error));
    }
}

/// Tells a hold of an id from a later one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(in crate::shared) struct Ticket(pub(in crate::shared) i64, pub(super) u64);

#[derive(Debug)]
pub(in crate::shared) struct Renew {
    pub(in crate::shared) ticket: Ticket,
    pub(in crate::shared) ttl: Ttl,
    pub(in crate::shared) timing: Timing,
    pub(in crate::shared) answer: oneshot::Sender<Result<()>>,
}

impl Renew {
    pub(super) fn answer(self, answer: Result<()>) {
        // A guard that stopped waiting does not mind.
        let _ = self.answer.send(answer);
    }
}

#[derive(Debug)]
pub(in crate::shared) struct Unlock {
    pub(in crate::shared) ticket: Ticket,
    /// `None` if nobody waits for it. Without an answer, the hold had ended.
    pub(in crate::shared) answer: Option<oneshot::Sender<Result<Release>>>,
}

impl Unlock {
    /// Its answer becomes that of the one among these with the same ticket that nobody waits for.
    pub(super) fn join_one_of<'a>(self, mut others: impl Iterator<Item = &'a mut Self>) {
        let same = others.find(|other| other.ticket == self.ticket);
        if let Some(other) = same.filter(|other| other.answer.as_ref().is_none_or(oneshot::Sender::is_closed)) {
            other.answer = self.answer;
        }
    }

    pub(super) fn answer(self, answer: Result<Release>) {
        if let Some(waits) = self.answer {
            let _ = waits.send(answer);
        }
    }
}
