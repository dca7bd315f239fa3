//! The states of a breaker and what moves it from one to the next. No clock, no store, no tasks: who uses it says what time it is.

use std::{
    fmt,
    time::{Duration, Instant},
};

use super::{
    BreakerConfig, BreakerCounts, BreakerState,
    outcome::Outcome,
    window::{Tally, WINDOW, Window},
};
use crate::random::Random;

#[cfg(test)]
mod tests;

/// Goes up with each change of state: a result that carries an older one says nothing about now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Generation(u64);

impl Generation {
    pub(super) const fn number(self) -> u64 {
        self.0
    }

    pub(super) const fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// How late a ping may end before it is given up.
const OVERDUE: Duration = Duration::from_secs(1);

/// What becomes of a call that wants to ask the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Admission {
    /// It may. `ping`: somebody is to ping the store beside it, since nothing was heard for a while.
    Pass { generation: Generation, ping: bool },
    /// It is to ping the store first.
    Probe { generation: Generation },
    /// It may not, and can try again after this.
    Refused { retry_after: Duration },
}

#[derive(Debug)]
pub(super) struct Machine {
    config: BreakerConfig,
    random: Random,
    generation: Generation,
    mode: Mode,
    /// How often it opened without having been closed for a whole window in between.
    openings: u32,
    /// Until when the ping that is under way can take, whatever the state was when it began: there is never a second one, unless the first
    /// is overdue.
    ping_until: Option<Instant>,
    /// Of the latest ping.
    pings: u64,
    counts: BreakerCounts,
    change: Option<Change>,
}

#[derive(Debug)]
enum Mode {
    Closed {
        since: Instant,
        window: Box<Window>,
        /// When the store answered last.
        heard: Option<Instant>,
    },
    HalfOpen,
    Open {
        until: Instant,
    },
}

/// A change of state, in words.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    Opened { time: Duration, why: Why },
    HalfOpened,
    Closed,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Why {
    Failures { failures: u64, samples: u64 },
    Probe,
}

impl Machine {
    pub(super) fn new(config: BreakerConfig, seed: u64, now: Instant) -> Self {
        Self {
            config,
            random: Random::new(seed),
            generation: Generation(0),
            mode: Mode::Closed { since: now, window: Box::new(Window::new(now)), heard: None },
            openings: 0,
            ping_until: None,
            pings: 0,
            counts: BreakerCounts::default(),
            change: None,
        }
    }

    pub(super) fn state(&self) -> BreakerState {
        match self.mode {
            Mode::Closed { .. } => BreakerState::Closed,
            Mode::HalfOpen => BreakerState::HalfOpen,
            Mode::Open { .. } => BreakerState::Open,
        }
    }

    pub(super) fn counts(&self) -> BreakerCounts {
        self.counts
    }

    /// The change that the last input brought about, if it did.
    pub(super) fn take_change(&mut self) -> Option<Change> {
        self.change.take()
    }

    /// The generation to tag calls with that are not gated; none where their results count for nothing.
    pub(super) fn observing(&self) -> Option<Generation> {
        matches!(self.mode, Mode::Closed { .. }).then_some(self.generation)
    }

    /// Somebody wants to ask the store. What time it is needs not be known while all goes well.
    pub(super) fn admit(&mut self, now: &dyn Fn() -> Instant) -> Admission {
        if let Mode::Closed { window, .. } = &self.mode
            && self.ping_until.is_none()
            && !window.has_silent()
        {
            return Admission::Pass { generation: self.generation, ping: false };
        }
        let now = now();
        self.give_up_overdue_ping(now);
        match &self.mode {
            Mode::Closed { window, heard, .. } => {
                let quiet = heard.is_none_or(|heard| now.saturating_duration_since(heard) >= WINDOW / 2);
                let ping = quiet && window.tally(now).silent > 0 && self.ping_until.is_none();
                if ping {
                    self.begin_ping(now);
                }
                Admission::Pass { generation: self.generation, ping }
            }
            Mode::Open { until } if now < *until => self.refuse(*until, now),
            Mode::Open { .. } | Mode::HalfOpen => match self.ping_until {
                Some(until) => self.refuse(until, now),
                None => {
                    if self.state() == BreakerState::Open {
                        self.enter(Mode::HalfOpen, Change::HalfOpened);
                    }
                    self.begin_ping(now);
                    Admission::Probe { generation: self.generation }
                }
            },
        }
    }

    fn begin_ping(&mut self, now: Instant) {
        self.ping_until = Some(now + self.config.probe_timeout);
        self.pings += 1;
    }

    /// Of the ping that is under way, or the last one: another has another.
    pub(super) fn ping_number(&self) -> u64 {
        self.pings
    }

    /// A ping has its own timeout. One that does not end all the same is on a runtime that does not run, which says nothing of the store,
    /// but nobody would ever ask it again.
    fn give_up_overdue_ping(&mut self, now: Instant) {
        if self.ping_until.is_some_and(|until| now >= until + OVERDUE) {
            self.ping_until = None;
            self.pings += 1;
            if self.state() == BreakerState::HalfOpen {
                self.open(Why::Probe, now);
            }
        }
    }

    pub(super) fn count_refused(&mut self) {
        self.counts.refused += 1;
    }

    fn refuse(&mut self, until: Instant, now: Instant) -> Admission {
        self.count_refused();
        // A ping can be late.
        let retry_after = until.saturating_duration_since(now).max(Duration::from_millis(1));
        Admission::Refused { retry_after }
    }

    /// A call ended so that had been admitted, or begun, in this generation.
    pub(super) fn settle(&mut self, generation: Generation, outcome: Outcome, now: Instant) {
        let Mode::Closed { window, heard, .. } = &mut self.mode else { return };
        if generation != self.generation {
            return;
        }
        match outcome {
            Outcome::Unasked => {}
            Outcome::Answered => *heard = Some(now),
            Outcome::Success => {
                *heard = Some(now);
                window.now(now).successes += 1;
            }
            Outcome::Failure => window.now(now).failures += 1,
            Outcome::Silent => window.now(now).silent += 1,
        }
        if matches!(outcome, Outcome::Failure | Outcome::Silent) {
            self.judge(now);
        }
    }

    /// Opens it if too much went wrong.
    fn judge(&mut self, now: Instant) {
        let Mode::Closed { window, heard, .. } = &self.mode else { return };
        let Tally { failures, silent, successes } = window.tally(now);
        let is_heard = heard.is_some_and(|heard| now.saturating_duration_since(heard) < WINDOW);
        let failures = if is_heard { failures } else { failures + silent };
        let samples = failures + successes;
        let enough = samples >= u64::from(self.config.min_samples);
        if enough && failures * 100 >= samples * u64::from(self.config.error_rate) {
            self.open(Why::Failures { failures, samples }, now);
        }
    }

    /// The ping that was begun in this generation has ended: whether the store is well, or nothing if it was given up.
    pub(super) fn pinged(&mut self, generation: Generation, well: Option<bool>, now: Instant) {
        self.ping_until = None;
        let (Some(well), true) = (well, generation == self.generation) else { return };
        match &mut self.mode {
            Mode::Closed { .. } if !well => self.settle(generation, Outcome::Failure, now),
            Mode::Closed { heard, .. } => *heard = Some(now),
            Mode::HalfOpen if well => {
                let closed = Mode::Closed { since: now, window: Box::new(Window::new(now)), heard: Some(now) };
                self.enter(closed, Change::Closed);
            }
            Mode::HalfOpen => self.open(Why::Probe, now),
            // No ping begins here.
            Mode::Open { .. } => {}
        }
    }

    fn open(&mut self, why: Why, now: Instant) {
        if let Mode::Closed { since, .. } = self.mode
            && now.saturating_duration_since(since) >= WINDOW
        {
            self.openings = 0;
        }
        let BreakerConfig { open_time, max_open_time, .. } = self.config;
        let full = 1_u32.checked_shl(self.openings).map_or(max_open_time, |factor| open_time.saturating_mul(factor));
        self.openings = self.openings.saturating_add(1);
        let time = self.jittered(full.min(max_open_time));
        self.enter(Mode::Open { until: now + time }, Change::Opened { time, why });
    }

    /// Between half of it and all of it, so that the breakers of many processes do not probe in step.
    fn jittered(&mut self, time: Duration) -> Duration {
        time / 2 + (time / 2).mul_f64(self.random.share())
    }

    fn enter(&mut self, mode: Mode, change: Change) {
        self.generation.0 += 1;
        self.mode = mode;
        self.change = Some(change);
        match change {
            Change::Opened { .. } => self.counts.opened += 1,
            Change::HalfOpened => self.counts.half_opened += 1,
            Change::Closed => self.counts.closed += 1,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened { time, why: Why::Probe } => {
                write!(f, "open for {time:.1?}: the ping that probed the store failed")
            }
            Self::Opened { time, why: Why::Failures { failures, samples } } => {
                write!(f, "open for {time:.1?}: {failures} of {samples} calls failed within {WINDOW:?}")
            }
            Self::HalfOpened => f.write_str("half-open: the store is probed by a ping"),
            Self::Closed => f.write_str("closed: the store answered the ping"),
        }
    }
}
