//! What was seen in the last ten seconds, second by second.

use std::time::{Duration, Instant};

/// What the breaker looks back on.
pub(super) const WINDOW: Duration = Duration::from_secs(10);

const SECONDS: usize = 10;

/// Counts in a ring of seconds, so that its size does not depend on how many calls there are. The oldest second leaves as a whole.
#[derive(Clone, Debug)]
pub(super) struct Window {
    origin: Instant,
    seconds: [Second; SECONDS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Second {
    /// Which second since the origin this is.
    number: u64,
    tally: Tally,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Tally {
    pub(super) failures: u64,
    /// Calls that ended without an answer.
    pub(super) silent: u64,
    pub(super) successes: u64,
}

impl Window {
    pub(super) fn new(origin: Instant) -> Self {
        Self { origin, seconds: [Second::default(); SECONDS] }
    }

    fn number(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_secs()
    }

    /// The counts of the second that it is now.
    pub(super) fn now(&mut self, now: Instant) -> &mut Tally {
        let number = self.number(now);
        let second = &mut self.seconds[(number % SECONDS as u64) as usize];
        if second.number != number {
            *second = Second { number, tally: Tally::default() };
        }
        &mut second.tally
    }

    /// Whether any call at all ended without an answer, within the window or before it.
    pub(super) fn has_silent(&self) -> bool {
        self.seconds.iter().any(|second| second.tally.silent > 0)
    }

    pub(super) fn tally(&self, now: Instant) -> Tally {
        let number = self.number(now);
        let recent = |second: &&Second| number - number.min(second.number) < SECONDS as u64;
        self.seconds.iter().filter(recent).fold(Tally::default(), |sum, Second { tally, .. }| Tally {
            failures: sum.failures + tally.failures,
            silent: sum.silent + tally.silent,
            successes: sum.successes + tally.successes,
        })
    }
}
