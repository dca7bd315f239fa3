//! One run as a state machine: no I/O, no clock, no job. It is told what happened and when, and answers what to do.
//!
//! ```text
//!  Contending <-> Pausing
//!      | granted
//!  Delaying (takeover delay) -> Leading -> Draining (told, at most the grace) -> Releasing -> Contending or Over
//! ```
//!
//! The rules that its properties hold it to: one job at a time; a job is told before it is dropped, and dropped at most a grace
//! later, by the deadline where the store may count us as the holder until then; the lease is released after the job has ended,
//! and only then is it contended for again; an order to end is always obeyed.

use std::time::{Duration, Instant};

use super::timing::Patience;

/// For how long an answer is looked for once more by a process that stood still.
const SECOND_LOOK: Duration = Duration::from_millis(25);

/// The settings that the machine goes by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Says when a renewal that nobody confirmed means that the lease is lost.
    pub(super) patience: Patience,
    pub(super) grace: Duration,
    pub(super) retry: Duration,
    pub(super) max_term: Option<Duration>,
    pub(super) progress_deadline: Option<Duration>,
    pub(super) takeover_delay: Option<Duration>,
    /// Whether others wait in a queue at the store, so that they are served before we get the lease again.
    pub(super) queues: bool,
}

/// When something happened, and what was left of the hold then, if it has a deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) now: Instant,
    pub(super) left: Option<Duration>,
}

/// What happened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Input {
    /// The lease is ours; the proof of it was sent then.
    Granted {
        proof: Instant,
    },
    /// Somebody else has it; pause for so long before the next try.
    Contended {
        pause: Duration,
    },
    /// The attempt failed; likewise, unless asking again changes nothing.
    Failed {
        pause: Duration,
        last: bool,
    },
    /// A renewal was confirmed that was sent then.
    Confirmed {
        sent: Instant,
    },
    /// The hold is lost; the store can count us as the holder until its deadline, or has let go of it.
    Lost {
        may_be_ours: bool,
    },
    /// At most the grace is left of the hold.
    NearDeadline,
    /// The job showed progress, last at that time.
    Progress {
        at: Instant,
    },
    JobEnded {
        end: JobEnd,
        lost: bool,
    },
    /// The release was tried; it found that the lease had been lost before.
    Released {
        lost: bool,
    },
    Stop(Stop),
    StepDown,
    TakeOver,
    /// Time has passed.
    Time,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum JobEnd {
    Dropped,
    Err,
    Ok,
    Panic,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stop {
    Close,
    Stop,
}

/// Why a job overstayed.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Stall {
    /// It led for longer than [`LeaseConfig::max_term`](super::LeaseConfig::max_term).
    MaxTerm,
    /// It showed no progress for longer than [`LeaseConfig::progress_deadline`](super::LeaseConfig::progress_deadline).
    Progress,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reason {
    /// The hold says why.
    Lost,
    /// The store confirmed nothing in time.
    Unconfirmed,
    Stalled(Stall),
    StepDown,
    Stop(Stop),
}

/// What to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Action {
    /// Nothing new.
    Wait,
    /// Give up an attempt in flight, if there is one, and ask for the lease; `ask`: also ask its holder to step down.
    Acquire {
        ask: bool,
    },
    /// Make the job and poll it.
    Start,
    /// Tell the job to end.
    Cancel(Reason),
    /// Drop the job, then say that it ended.
    Drop,
    /// Release the lease, then say so.
    Release,
    Exit(Exit),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Exit {
    Failed,
    Finished,
    Panicked,
    Refused,
    Stalled(Stall),
    Stopped(Stop),
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Contending,
    Pausing { until: Instant },
    Delaying { until: Instant },
    Leading { since: Instant, progress: Instant },
    Draining { drop_at: Instant, then: Then },
    Releasing { then: Then },
    Over,
}

/// What follows on a release.
#[derive(Clone, Copy, Debug)]
enum Then {
    Contend { after: Option<Duration> },
    Exit(Exit),
}

#[derive(Debug)]
pub(super) struct Machine {
    rules: Rules,
    phase: Phase,
    /// When the last confirmed proof of ownership was sent.
    proof: Instant,
    /// By when a newer one must be confirmed.
    answer_due: Instant,
    /// Whether that was put off for a second look.
    looked_again: bool,
    granted: Instant,
    asking: bool,
}

impl Machine {
    /// A machine whose first action is [`Action::Acquire`].
    pub(super) fn new(rules: Rules, now: Instant) -> Self {
        Self {
            rules,
            phase: Phase::Contending,
            proof: now,
            answer_due: now,
            looked_again: false,
            granted: now,
            asking: false,
        }
    }

    /// When to say [`Input::Time`] if nothing else happens before.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let after = |start: Instant, pause: Option<Duration>| pause.and_then(|pause| start.checked_add(pause));
        let unproven = Some(self.answer_due);
        match self.phase {
            Phase::Pausing { until } => Some(until),
            Phase::Delaying { until } => [Some(until), unproven].into_iter().flatten().min(),
            Phase::Leading { since, progress } => {
                let stalled = [after(since, self.rules.max_term), after(progress, self.rules.progress_deadline)];
                stalled.into_iter().chain([unproven]).flatten().min()
            }
            Phase::Draining { drop_at, .. } => Some(drop_at),
            Phase::Contending | Phase::Releasing { .. } | Phase::Over => None,
        }
    }

    /// Takes in what happened. An input that means nothing in this phase changes nothing.
    pub(super) fn step(&mut self, at: At, input: Input) -> Action {
        if let (Input::Confirmed { sent }, Phase::Delaying { .. } | Phase::Leading { .. } | Phase::Draining { .. }) =
            (input, self.phase)
            && sent > self.proof
        {
            self.proven(sent, at.now);
        }
        match self.phase {
            Phase::Contending => self.contending(at, input),
            Phase::Pausing { until } => self.pausing(at, input, until),
            Phase::Delaying { until } => self.delaying(at, input, until),
            Phase::Leading { since, progress } => self.leading(at, input, since, progress),
            Phase::Draining { drop_at, then } => self.draining(at, input, drop_at, then),
            Phase::Releasing { then } => self.releasing(at, input, then),
            Phase::Over => Action::Wait,
        }
    }

    fn contending(&mut self, at: At, input: Input) -> Action {
        match input {
            Input::Granted { proof } => {
                self.asking = false;
                self.granted = at.now;
                self.proven(proof, at.now);
                if self.is_unproven(at.now) || at.left.is_some_and(|left| left <= self.rules.grace) {
                    // Too late to be led under.
                    return self.release(Then::Contend { after: Some(self.rules.retry) });
                }
                match self.rules.takeover_delay.map(|delay| at.now.checked_add(delay)) {
                    None => self.start(at.now),
                    Some(Some(until)) => self.enter(Phase::Delaying { until }, Action::Wait),
                    Some(None) => self.release(Then::Contend { after: Some(self.rules.retry) }),
                }
            }
            Input::Contended { pause } => {
                self.asking = false;
                self.pause(at.now, pause)
            }
            Input::Failed { last: true, .. } => self.enter(Phase::Over, Action::Exit(Exit::Refused)),
            Input::Failed { pause, last: false } => self.pause(at.now, pause),
            Input::TakeOver => self.take_over(),
            Input::Stop(stop) => self.exit(Exit::Stopped(stop)),
            _ => Action::Wait,
        }
    }

    fn pausing(&mut self, at: At, input: Input, until: Instant) -> Action {
        match input {
            Input::Time if at.now >= until => self.contend(),
            Input::TakeOver => self.take_over(),
            Input::Stop(stop) => self.exit(Exit::Stopped(stop)),
            _ => Action::Wait,
        }
    }

    fn delaying(&mut self, at: At, input: Input, until: Instant) -> Action {
        match input {
            Input::Lost { .. } | Input::NearDeadline => self.release(self.contend_after_loss(at.now)),
            Input::Time if self.stays_unproven(at.now) => self.release(self.contend_after_loss(at.now)),
            Input::Time if at.now >= until => self.start(at.now),
            Input::StepDown => self.release(self.contend_after_step_down()),
            Input::Stop(stop) => self.release(Then::Exit(Exit::Stopped(stop))),
            _ => Action::Wait,
        }
    }

    fn leading(&mut self, at: At, input: Input, since: Instant, progress: Instant) -> Action {
        let passed = |start: Instant, limit: Option<Duration>| {
            limit.is_some_and(|limit| at.now.saturating_duration_since(start) >= limit)
        };
        match input {
            Input::JobEnded { end, lost } => {
                let then = match end {
                    JobEnd::Panic => Then::Exit(Exit::Panicked),
                    _ if lost => self.contend_after_loss(at.now),
                    JobEnd::Ok => Then::Exit(Exit::Finished),
                    JobEnd::Err => Then::Exit(Exit::Failed),
                    JobEnd::Dropped => self.contend_after_loss(at.now),
                };
                self.release(then)
            }
            Input::Progress { at } => self.enter(Phase::Leading { since, progress: at.max(progress) }, Action::Wait),
            Input::Lost { may_be_ours } => self.cancel(at, Reason::Lost, may_be_ours),
            Input::NearDeadline => self.cancel(at, Reason::Unconfirmed, true),
            Input::StepDown => self.cancel(at, Reason::StepDown, true),
            Input::Stop(stop) => self.cancel(at, Reason::Stop(stop), true),
            Input::Time if self.stays_unproven(at.now) => self.cancel(at, Reason::Unconfirmed, true),
            Input::Time if passed(since, self.rules.max_term) => self.cancel(at, Reason::Stalled(Stall::MaxTerm), true),
            Input::Time if passed(progress, self.rules.progress_deadline) => {
                self.cancel(at, Reason::Stalled(Stall::Progress), true)
            }
            _ => Action::Wait,
        }
    }

    fn draining(&mut self, at: At, input: Input, drop_at: Instant, then: Then) -> Action {
        let sooner = || Phase::Draining { drop_at: drop_at.min(at.now + at.left.unwrap_or(self.rules.grace)), then };
        match input {
            Input::JobEnded { end: JobEnd::Panic, .. } => self.release(Then::Exit(Exit::Panicked)),
            Input::JobEnded { .. } => self.release(then),
            Input::Lost { may_be_ours: true } | Input::NearDeadline => self.enter(sooner(), Action::Wait),
            Input::Stop(stop) => self.enter(Phase::Draining { drop_at, then: Self::stopped(then, stop) }, Action::Wait),
            Input::Time if at.now >= drop_at => Action::Drop,
            _ => Action::Wait,
        }
    }

    fn releasing(&mut self, at: At, input: Input, then: Then) -> Action {
        match (input, then) {
            // The job thought that it ended under the lease.
            (Input::Released { lost: true }, Then::Exit(Exit::Finished | Exit::Failed)) => {
                self.go_on(at, self.contend_after_loss(at.now))
            }
            (Input::Released { .. }, then) => self.go_on(at, then),
            (Input::Stop(stop), then) => {
                let then = Self::stopped(then, stop);
                self.enter(Phase::Releasing { then }, Action::Wait)
            }
            _ => Action::Wait,
        }
    }

    fn go_on(&mut self, at: At, then: Then) -> Action {
        match then {
            Then::Exit(exit) => self.exit(exit),
            Then::Contend { after: Some(pause) } => self.pause(at.now, pause),
            Then::Contend { after: None } => self.contend(),
        }
    }

    fn enter(&mut self, phase: Phase, action: Action) -> Action {
        self.phase = phase;
        action
    }

    fn exit(&mut self, exit: Exit) -> Action {
        self.enter(Phase::Over, Action::Exit(exit))
    }

    fn contend(&mut self) -> Action {
        self.enter(Phase::Contending, Action::Acquire { ask: self.asking })
    }

    fn take_over(&mut self) -> Action {
        self.asking = true;
        self.contend()
    }

    fn pause(&mut self, now: Instant, pause: Duration) -> Action {
        // A pause too long to be named is as good as none that we could keep: a day.
        let until = now.checked_add(pause).unwrap_or(now + Duration::from_secs(24 * 60 * 60));
        self.enter(Phase::Pausing { until }, Action::Wait)
    }

    fn start(&mut self, now: Instant) -> Action {
        self.enter(Phase::Leading { since: now, progress: now }, Action::Start)
    }

    fn release(&mut self, then: Then) -> Action {
        self.enter(Phase::Releasing { then }, Action::Release)
    }

    fn cancel(&mut self, at: At, reason: Reason, may_be_ours: bool) -> Action {
        let then = match reason {
            Reason::Lost | Reason::Unconfirmed => self.contend_after_loss(at.now),
            Reason::StepDown => self.contend_after_step_down(),
            Reason::Stalled(stall) => Then::Exit(Exit::Stalled(stall)),
            Reason::Stop(stop) => Then::Exit(Exit::Stopped(stop)),
        };
        let grace = match at.left {
            Some(left) if may_be_ours => self.rules.grace.min(left),
            _ => self.rules.grace,
        };
        self.enter(Phase::Draining { drop_at: at.now + grace, then }, Action::Cancel(reason))
    }

    /// An order to end overrules another round, and nothing else.
    fn stopped(then: Then, stop: Stop) -> Then {
        match then {
            Then::Contend { .. } => Then::Exit(Exit::Stopped(stop)),
            Then::Exit(_) => then,
        }
    }

    /// `sent`: when the proof was, that was confirmed now.
    fn proven(&mut self, sent: Instant, now: Instant) {
        (self.proof, self.answer_due) = (sent, self.rules.patience.answer_due(sent, now));
        self.looked_again = false;
    }

    fn is_unproven(&self, now: Instant) -> bool {
        now >= self.answer_due
    }

    /// The same when we were woken for it. Woken late, the process stood still, and an answer that came meanwhile may be due as well: it
    /// gets a moment to be seen. What the store may have done until now is for the hold's deadline to say.
    fn stays_unproven(&mut self, now: Instant) -> bool {
        let stood_still = now.saturating_duration_since(self.answer_due) > SECOND_LOOK;
        if stood_still && !std::mem::replace(&mut self.looked_again, true) {
            self.answer_due = now + SECOND_LOOK;
        }
        self.is_unproven(now)
    }

    /// At once, but terms that are lost as soon as they start do not follow each other faster than attempts do.
    fn contend_after_loss(&self, now: Instant) -> Then {
        let led = now.saturating_duration_since(self.granted);
        Then::Contend { after: self.rules.retry.checked_sub(led).filter(|pause| !pause.is_zero()) }
    }

    /// Where the store has no queue, we let everybody else try first.
    fn contend_after_step_down(&self) -> Then {
        Then::Contend { after: (!self.rules.queues).then(|| self.rules.retry.saturating_mul(2)) }
    }
}

#[cfg(test)]
mod tests;
