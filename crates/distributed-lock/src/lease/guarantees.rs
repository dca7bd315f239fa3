use std::{borrow::Cow, fmt, time::Duration};

use super::{
    LeaseConfig,
    timing::{DELTA, Timing},
};
use crate::{Bound, Cleanup, Expiry, Fairness, FencingStrength, Locker, World};

/// What a [`LeaseRunner`](super::LeaseRunner) promises in numbers, from its live settings and those of its locker.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use distributed_lock::{Bound, MemoryLocker, lease::{LeaseConfig, LeaseRunner}};
/// # fn main() -> distributed_lock::Result<()> {
/// let promised = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?.guarantees();
/// assert_eq!(promised.detection, Duration::from_millis(13_100));
/// assert_eq!(promised.overlap_partitioned, Bound::Within(Duration::ZERO));
/// println!("{promised}");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct LeaseGuarantees {
    /// D: how long a loss can stay unknown to a job whose process runs. That is when answers are slow; where they come at once it is
    /// a renewal interval, TTL/8, and half of D.
    pub detection: Duration,
    /// How long a job that was told to end may take.
    pub grace: Duration,
    /// How long an old and a new job can both work after the old one ended or its process was killed.
    pub overlap_ended: Bound,
    /// The same, after the old one's process froze; what it does until its next await after waking up is not counted.
    pub overlap_frozen: Bound,
    /// The same, after it was cut off from the store.
    pub overlap_partitioned: Bound,
    /// The same, after the store forgot the lease.
    pub overlap_forgotten: Bound,
    /// Until a standby leads after the job ended or stepped down.
    pub takeover_released: Bound,
    /// Until a standby leads after the holder's process was killed.
    pub takeover_killed: Bound,
    /// Until a standby leads after the holder froze or was suspended.
    pub takeover_frozen: Bound,
    /// Until a standby leads after the holder was cut off.
    pub takeover_partitioned: Bound,
    /// What stays in the store after a drop, and for how long.
    pub cleanup: Cleanup,
    /// In which order standbys get the lease.
    pub fairness: Fairness,
    /// Whether standbys hear that the lease may be free, rather than ask again and again.
    pub wakes: bool,
    /// What the order of the terms' tokens survives.
    pub fencing: FencingStrength,
    /// Which store this is; `None` before the first contact, and where the store has no identity.
    pub world: Option<World>,
    /// What the numbers do not say.
    pub notes: Vec<Cow<'static, str>>,
}

const NONE: Bound = Bound::Within(Duration::ZERO);

impl LeaseGuarantees {
    pub(super) fn new(locker: &dyn Locker, config: &LeaseConfig, timing: &Timing) -> Self {
        let (can, promised) = (locker.capabilities(), locker.guarantees());
        let forgotten = match config.takeover_delay {
            Some(_at_least_as_long) => NONE,
            None => Bound::Within(timing.detection() + timing.grace()),
        };
        // A session that ends while its owner is cut off or frozen ends the lease before the owner hears of it.
        let (frozen, partitioned) = match can.expiry {
            Expiry::Session => (Bound::Unbounded, forgotten),
            Expiry::Client | Expiry::Store => (NONE, NONE),
        };
        // The locker's numbers are those of its own default TTL: what comes on top of that stays the same.
        let for_ttl = |limit: Duration| match promised.ttl {
            Some(ttl) if limit >= ttl => timing.ttl().saturating_add(limit - ttl),
            _ => limit,
        };
        let at_deadline = |bound| match (bound, can.expiry) {
            (Bound::Within(limit), _) => Bound::Within(for_ttl(limit).max(timing.ttl() + DELTA)),
            (Bound::Unbounded, Expiry::Store) => Bound::Within(timing.ttl() + DELTA),
            (Bound::Unbounded, _) => Bound::Unbounded,
        };
        let poll = if can.can_wait() { Duration::ZERO } else { longest_pause(config.retry_interval) };
        let pauses = config.takeover_delay.unwrap_or_default().saturating_add(poll);
        let taken_over = |bound| match bound {
            Bound::Within(limit) => Bound::Within(pauses.saturating_add(limit)),
            Bound::Unbounded => Bound::Unbounded,
        };
        let mut cleanup = promised.cleanup;
        if let Bound::Within(limit) = cleanup.cut_holder {
            cleanup.cut_holder = Bound::Within(for_ttl(limit));
        }
        Self {
            detection: timing.detection(),
            grace: timing.grace(),
            overlap_ended: NONE,
            overlap_frozen: frozen,
            overlap_partitioned: partitioned,
            overlap_forgotten: forgotten,
            takeover_released: taken_over(promised.takeover_released),
            takeover_killed: taken_over(promised.takeover_killed),
            takeover_frozen: taken_over(at_deadline(promised.takeover_frozen)),
            takeover_partitioned: taken_over(at_deadline(promised.takeover_partitioned)),
            cleanup,
            fairness: can.fairness,
            wakes: can.can_wait(),
            fencing: can.fencing,
            world: promised.world,
            notes: promised.notes,
        }
    }
}

/// The retry interval and its whole jitter.
pub(super) fn longest_pause(retry_interval: Duration) -> Duration {
    retry_interval.saturating_add(retry_interval / 5)
}

/// One line, fit for a start-up log.
impl fmt::Display for LeaseGuarantees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cleanup { live, cut_waiter, cut_holder } = self.cleanup;
        write!(f, "detection <= {:?}, grace {:?}, ", self.detection, self.grace)?;
        write!(f, "overlap: ended or killed {}, frozen {}, ", self.overlap_ended, self.overlap_frozen)?;
        write!(f, "partitioned {}, store forgot it {}, ", self.overlap_partitioned, self.overlap_forgotten)?;
        write!(f, "takeover: released {}, killed {}, ", self.takeover_released, self.takeover_killed)?;
        write!(f, "frozen {}, partitioned {}, ", self.takeover_frozen, self.takeover_partitioned)?;
        write!(f, "cleanup: live {live}, cut waiter {cut_waiter}, cut holder {cut_holder}, ")?;
        write!(
            f,
            "standbys {}, ",
            match self.fairness {
                Fairness::Fifo => "queue",
                Fairness::Unordered if self.wakes => "are woken",
                Fairness::Unordered => "poll",
            }
        )?;
        write!(
            f,
            "fencing {}",
            match self.fencing {
                FencingStrength::Absent => "absent",
                FencingStrength::Volatile => "while the store lives",
                FencingStrength::Durable => "over restarts",
                FencingStrength::Failover => "over failovers",
            }
        )?;
        if let Some(world) = &self.world {
            write!(f, ", {world}")?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "; {note}"))
    }
}
