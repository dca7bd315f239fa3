//! The formula that says whether a grace fits into a TTL. Pure.
//!
//! | | |
//! |---|---|
//! | T | the TTL |
//! | h, tau | from one renewal's send to the next; how long its answer may take |
//! | g | grace: how long a job that was told to end may take |
//! | delta | 100 ms for timers and threads that run late |
//! | rho | 1 %, by which the store's clock rate and ours may differ |
//! | m | the margin, max(T/10, 250 ms) |
//!
//! A renewal is sent h after the last one, or when that one was answered if this comes later, since renewals run one at a time. No
//! answer for tau is a loss. So a lease that was lost is taken as lost at most D = tau + tau + delta after the last proof of ownership
//! was sent, and h + tau + delta after it where answers come quickly. The constraint D + g <= T(1 - rho) - m leaves the job its
//! whole grace before the store lets anybody else in.

use std::{
    cmp::{max, min},
    time::{Duration, Instant},
};

use crate::InvalidInput;

pub(super) const DELTA: Duration = Duration::from_millis(100);
const LONGEST_HEARTBEAT: Duration = Duration::from_secs(5);
const LONGEST_ANSWER: Duration = Duration::from_secs(10);
const MIN_MARGIN: Duration = Duration::from_millis(250);
const LONGEST_TTL: u64 = 366 * 24 * 60 * 60;

/// The times of one lease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Timing {
    ttl: Duration,
    grace: Duration,
}

impl Timing {
    /// Checks that the grace fits, and that the store takes such a TTL.
    pub(super) fn checked(ttl: Duration, grace: Duration, min_ttl: Duration) -> Result<Self, InvalidInput> {
        let timing = Self { ttl, grace };
        if ttl < min_ttl {
            let rule = format!("this locker takes no TTL below {min_ttl:?}; {}", remedy(grace, min_ttl));
            return Err(InvalidInput::new("lease ttl", format_args!("{ttl:?}"), &rule));
        }
        if timing.fits() {
            return Ok(timing);
        }
        let rule = format!(
            "two answers of {:?} + {DELTA:?} + grace {grace:?} = {:?} must be at most ttl {ttl:?} - 1 % - margin {:?} = {:?}; {}",
            timing.answer(),
            timing.detection().saturating_add(grace),
            timing.margin(),
            timing.room(),
            remedy(grace, min_ttl),
        );
        Err(InvalidInput::new("lease ttl", format_args!("{ttl:?}"), &rule))
    }

    /// T.
    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// g.
    pub(super) fn grace(&self) -> Duration {
        self.grace
    }

    /// h.
    pub(super) fn heartbeat(&self) -> Duration {
        min(LONGEST_HEARTBEAT, self.ttl / 8)
    }

    /// tau: as much as fits, up to half of the TTL less the grace; never below h.
    pub(super) fn answer(&self) -> Duration {
        let fits = self.room().saturating_sub(self.grace.saturating_add(DELTA)) / 2;
        let usual = min(LONGEST_ANSWER, (self.ttl / 2).saturating_sub(self.grace));
        max(self.heartbeat(), min(usual, fits))
    }

    /// D: how long a loss can stay unnoticed.
    pub(super) fn detection(&self) -> Duration {
        self.patience().detection()
    }

    pub(super) fn patience(&self) -> Patience {
        Patience { heartbeat: self.heartbeat(), answer: self.answer() }
    }

    fn margin(&self) -> Duration {
        max(self.ttl / 10, MIN_MARGIN)
    }

    /// T(1 - rho) - m: how long after a proof of ownership was sent the store lets nobody else in.
    pub(super) fn room(&self) -> Duration {
        (self.ttl / 100 * 99).saturating_sub(self.margin())
    }

    fn fits(&self) -> bool {
        self.detection().saturating_add(self.grace) <= self.room()
    }
}

/// How long a renewal may stay unanswered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// h.
    pub(super) heartbeat: Duration,
    /// tau.
    pub(super) answer: Duration,
}

impl Patience {
    /// D.
    pub(super) fn detection(&self) -> Duration {
        max(self.heartbeat, self.answer) + self.answer + DELTA
    }

    /// By when the next renewal must be confirmed, after one that was sent at `sent` and confirmed at `answered`: sent in its turn,
    /// and answered within tau.
    pub(super) fn answer_due(&self, sent: Instant, answered: Instant) -> Instant {
        let next = max(sent + self.heartbeat, answered);
        // An answer that took longer than it may does not put off the next one.
        min(next + self.answer + DELTA, sent + self.detection())
    }
}

/// What the user can do about it.
fn remedy(grace: Duration, min_ttl: Duration) -> String {
    match smallest(grace, min_ttl) {
        Some(ttl) => format!("the smallest whole second that would do for this grace is {ttl:?}"),
        None => "no ttl would do, so shorten the grace".to_owned(),
    }
}

/// The smallest whole second that fits. A longer TTL leaves more room than it lengthens what is derived from it.
fn smallest(grace: Duration, min_ttl: Duration) -> Option<Duration> {
    let fits = |seconds| {
        let ttl = Duration::from_secs(seconds);
        ttl >= min_ttl && Timing { ttl, grace }.fits()
    };
    let (mut low, mut high) = (1, LONGEST_TTL);
    if !fits(high) {
        return None;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(Duration::from_secs(low))
}

#[cfg(test)]
impl Timing {
    /// A defect that the properties of the machine must catch: a check that forgot the grace.
    pub(super) fn checked_without_grace(ttl: Duration, grace: Duration) -> Option<Self> {
        let timing = Self { ttl, grace };
        (timing.detection() <= timing.room()).then_some(timing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, TokioClock};

    const MS: Duration = Duration::from_millis(1);

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn the_defaults_fit_with_these_numbers() {
        let timing = Timing::checked(secs(23), secs(5), MS).unwrap();
        assert_eq!(timing.heartbeat(), 2_875 * MS);
        assert_eq!(timing.answer(), 6_500 * MS);
        assert_eq!(timing.detection(), 13_100 * MS);
        assert_eq!(timing.room(), 20_470 * MS);
    }

    #[test]
    fn a_grace_that_does_not_fit_is_refused_with_the_numbers_and_the_smallest_ttl_that_would_do() {
        let refused = Timing::checked(secs(6), secs(5), MS).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "invalid lease ttl (6s): two answers of 750ms + 100ms + grace 5s = 6.6s must be at most ttl 6s - 1 % - margin 600ms \
             = 5.34s; the smallest whole second that would do for this grace is 8s"
        );
        let refused = Timing::checked(secs(23), Duration::MAX, MS).unwrap_err();
        assert!(refused.to_string().ends_with("no ttl would do, so shorten the grace"), "{refused}");
    }

    #[test]
    fn the_ttl_must_be_one_that_the_locker_takes() {
        let refused = Timing::checked(secs(9), secs(5), secs(10)).unwrap_err();
        assert!(refused.to_string().contains("below 10s; the smallest whole second"), "{refused}");
        assert!(Timing::checked(secs(10), secs(5), secs(10)).is_ok());
    }

    #[test]
    fn an_answer_is_due_tau_after_its_renewal_was_sent_and_d_after_the_last_proof_at_the_latest() {
        let (ms, start) = (|n: u32| MS * n, TokioClock.now());
        let patience = Patience { heartbeat: ms(3_000), answer: ms(6_000) };
        assert_eq!(patience.detection(), ms(12_100));
        for (answered_after, due_after) in
            [(0, 9_100), (3_000, 9_100), (5_000, 11_100), (6_000, 12_100), (7_000, 12_100)]
        {
            assert_eq!(
                patience.answer_due(start, start + ms(answered_after)),
                start + ms(due_after),
                "{answered_after}"
            );
        }
        let rare = Patience { heartbeat: ms(6_000), answer: ms(1_000) };
        assert_eq!(rare.detection(), ms(7_100));
        assert_eq!(rare.answer_due(start, start + ms(1_000)), start + ms(7_100));
    }

    #[test]
    fn the_smallest_is_the_smallest_and_everything_above_it_fits() {
        for grace in (0..200_000).step_by(377).map(|ms| ms * MS) {
            let smallest = smallest(grace, MS).unwrap();
            let fits = |ttl| Timing { ttl, grace }.fits();
            assert!(smallest == secs(1) || !fits(smallest - secs(1)), "{grace:?}: {smallest:?}");
            assert!((0..100).all(|more| fits(smallest + secs(more))), "{grace:?}: {smallest:?}");
            let timing = Timing { ttl: smallest, grace };
            let sum = timing.answer() * 2 + DELTA + grace;
            assert!(timing.heartbeat() <= timing.answer());
            assert!(sum <= timing.ttl() * 99 / 100 - max(timing.ttl() / 10, MIN_MARGIN));
        }
    }
}
