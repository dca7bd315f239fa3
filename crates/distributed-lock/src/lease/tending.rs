use std::{
    future::{pending, poll_fn},
    task::Poll,
    time::{Duration, Instant},
};

use tokio::time::sleep_until;

use super::{machine::Input, timing::Timing};
use crate::{Clock, Error, ErrorKind, Hold, LockGuard, Loss, Release, Result, TokioClock, guard::may_still_be_ours};

/// The guard of one term: renewed all the time, and asked what happens to its hold.
#[derive(Debug)]
pub(super) struct Tending {
    guard: LockGuard,
    timing: Timing,
    next_send: Instant,
    told: Told,
}

/// What was said already; the facts stay, and are said once.
#[derive(Debug, Default)]
struct Told {
    lost: bool,
    near_deadline: bool,
    step_down: bool,
}

impl Tending {
    /// `proof`: when the proof of the grant was sent.
    pub(super) fn new(guard: LockGuard, timing: Timing, proof: Instant) -> Self {
        Self { guard, timing, next_send: proof + timing.heartbeat(), told: Told::default() }
    }

    pub(super) fn hold(&self) -> Hold {
        self.guard.hold()
    }

    /// The next thing that happens to the hold. Cancel safe: a renewal that was in flight is sent again.
    pub(super) async fn next(&mut self) -> Input {
        let hold = self.guard.hold();
        let (lost, near_deadline, step_down) = (self.told.lost, self.told.near_deadline, self.told.step_down);
        // All arms are cancel safe: the facts stay, a renewal by the contract of `LockHandle`. The first one looks at the clock
        // whenever anything is polled, since after a suspend the timers are late.
        tokio::select! {
            biased;
            loss = poll_fn(|_| hold.loss().map_or(Poll::Pending, Poll::Ready)), if !lost => self.say_lost(&loss),
            loss = hold.lost(), if !lost => self.say_lost(&loss),
            () = hold.near_deadline(self.timing.grace()), if !near_deadline && !lost => {
                self.told.near_deadline = true;
                Input::NearDeadline
            }
            () = hold.step_down_requested(), if !step_down => {
                self.told.step_down = true;
                Input::StepDown
            }
            confirmed = self.renew(), if !lost => confirmed,
            else => pending().await,
        }
    }

    fn say_lost(&mut self, loss: &Loss) -> Input {
        self.told.lost = true;
        Input::Lost { may_be_ours: may_still_be_ours(loss) }
    }

    /// Until one is confirmed. One that fails is tried again, sooner.
    async fn renew(&mut self) -> Input {
        loop {
            sleep_until(self.next_send.into()).await;
            let sent = TokioClock.now();
            match self.guard.renew(self.timing.ttl()).await {
                Ok(()) => {
                    self.next_send = sent + self.timing.heartbeat();
                    return Input::Confirmed { sent };
                }
                // A loss is seen through the hold.
                Err(_) => self.next_send = TokioClock.now() + self.timing.heartbeat() / 2,
            }
        }
    }

    /// Gives the lease up. What takes longer than an answer may take is left to the drop of the guard.
    pub(super) async fn release(self) -> Result<Release> {
        release(self.guard, self.timing.answer()).await
    }
}

pub(super) async fn release(guard: LockGuard, limit: Duration) -> Result<Release> {
    let key = guard.key().clone();
    match tokio::time::timeout(limit, guard.release()).await {
        Ok(released) => released,
        Err(_elapsed) => {
            let message = format!("the release got no answer within {limit:?}");
            Err(Error::new(ErrorKind::Unavailable, message).with_key(&key))
        }
    }
}
