//! The formula of a lease that the server's own timer enforces. Pure: the caller brings every instant.
//!
//! | | |
//! |---|---|
//! | T | the TTL, which is the server's timeout for a silent session |
//! | h, tau | heartbeat interval; how long an answer may take, counted from the send |
//! | g | grace: how long before the deadline work is told to stop |
//! | delta | 100 ms for timers and threads that run late |
//! | rho | 1 %, by which the server's clock rate and ours may differ |
//! | m | the margin, max(T/10, 250 ms): network, rounding, small steps of the server's wall clock |
//!
//! The deadline is the send of the last confirmed proof of ownership + T(1 - rho) - m, and the constraint
//! h + tau + g + delta <= T(1 - rho) - m leaves time to send a heartbeat, to miss its answer and to stop the work before it. It
//! holds for slow answers too, since a heartbeat goes whether or not the one before was answered; while one is unanswered h is at
//! least tau/8.

use std::{
    cmp::{max, min},
    time::{Duration, Instant},
};

use distributed_lock::InvalidInput;

/// The shortest TTL: below it the margin leaves no room for a heartbeat.
pub(crate) const MIN_TTL: Duration = Duration::from_secs(1);

/// The longest time PostgreSQL's settings can say.
pub(crate) const MAX_TTL: Duration = Duration::from_millis(MAX_MILLIS);

/// `i32::MAX`.
const MAX_MILLIS: u64 = 2_147_483_647;

/// How many times T the idle limit of a session may be that owns nothing: a hold with a TTL may leave its own limit behind.
pub(crate) const AT_REST_FACTOR: i32 = 2;

/// How many proofs of ownership may be unanswered. All of them fit into one write that the server takes in at once.
pub(crate) const MAX_IN_FLIGHT: u32 = 8;

const HEARTBEAT: Duration = Duration::from_secs(5);
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
const DELTA: Duration = Duration::from_millis(100);
const MIN_MARGIN: Duration = Duration::from_millis(250);
const MIN_WAITER_IDLE: Duration = Duration::from_secs(1);

/// The times of one lease. Every value meets the constraint with g = 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timing {
    ttl: Duration,
    heartbeat: Duration,
    query_timeout: Duration,
    margin: Duration,
    /// `None`: tau was set. Otherwise how short it may be derived.
    shortest_query_timeout: Option<Duration>,
}

impl Timing {
    /// The lease of an until-released hold, renewed for as long as it is held. Unless set: h = 5 s, tau = 10 s, and T the
    /// smallest whole second that the constraint allows, which is 17 s for these.
    pub(crate) fn for_session(
        heartbeat: Option<Duration>,
        query_timeout: Option<Duration>,
        session_ttl: Option<Duration>,
    ) -> Result<Self, InvalidInput> {
        let with_ttl =
            |ttl| Self::new(ttl, heartbeat.unwrap_or(HEARTBEAT), query_timeout.unwrap_or(QUERY_TIMEOUT), None);
        check_parts(heartbeat, query_timeout)?;
        match session_ttl {
            Some(ttl) => {
                check_ttl("session_ttl", ttl)?;
                with_ttl(ttl).checked("session_ttl", with_ttl)
            }
            None => {
                let ttl = smallest(with_ttl).unwrap_or(MAX_TTL);
                with_ttl(ttl).checked("session_ttl", with_ttl)
            }
        }
    }

    /// The lease of a hold with a TTL of its own. Unless set: h = min(5 s, T/8), tau = min(10 s, T/2).
    pub(crate) fn for_ttl(
        ttl: Duration,
        heartbeat: Option<Duration>,
        query_timeout: Option<Duration>,
    ) -> Result<Self, InvalidInput> {
        let with_ttl = |ttl: Duration| {
            let heartbeat = heartbeat.unwrap_or_else(|| min(HEARTBEAT, ttl / 8));
            match query_timeout {
                Some(set) => Self::new(ttl, heartbeat, set, None),
                None => Self::new(ttl, heartbeat, min(QUERY_TIMEOUT, ttl / 2), Some(ttl / 8)),
            }
        };
        check_parts(heartbeat, query_timeout)?;
        check_ttl("ttl", ttl)?;
        with_ttl(ttl).checked("ttl", with_ttl)
    }

    fn new(
        ttl: Duration,
        heartbeat: Duration,
        query_timeout: Duration,
        shortest_query_timeout: Option<Duration>,
    ) -> Self {
        Self { ttl, heartbeat, query_timeout, margin: max(ttl / 10, MIN_MARGIN), shortest_query_timeout }
    }

    /// T.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// h: from one heartbeat's send to the next.
    pub(crate) fn heartbeat(&self) -> Duration {
        self.heartbeat
    }

    /// The same while one is unanswered, so that no more than [`MAX_IN_FLIGHT`] ever are: a heartbeat goes whether or not the one
    /// before was answered, and tau is up to four times h unless they were set otherwise.
    pub(crate) fn heartbeat_unanswered(&self) -> Duration {
        max(self.heartbeat, self.query_timeout / MAX_IN_FLIGHT)
    }

    /// tau: no answer for so long after a send is a loss.
    pub(crate) fn query_timeout(&self) -> Duration {
        self.query_timeout
    }

    /// m.
    pub(crate) fn margin(&self) -> Duration {
        self.margin
    }

    /// Until when a proof of ownership sent at `sent` may be relied on, if from then on the server lets a silent session
    /// live for `server_ttl`: T itself, or what was left of it. `sent` at the earliest.
    pub(crate) fn deadline(&self, sent: Instant, server_ttl: Duration) -> Instant {
        let reliable = slowed(server_ttl).saturating_sub(self.margin);
        // An instant too far to be named comes from no timeout of ours; nothing is promised then.
        sent.checked_add(reliable).unwrap_or(sent)
    }

    /// The largest g that the constraint allows: with the tau that was set, or with T/8 where tau is derived.
    pub(crate) fn max_grace(&self) -> Duration {
        let query_timeout =
            self.shortest_query_timeout.map_or(self.query_timeout, |least| min(self.query_timeout, least));
        let detection = Self { query_timeout, ..*self }.detection();
        self.room().saturating_sub(detection)
    }

    /// T_w: how long a session that waits for a lock may be silent at a time when it should not be.
    pub(crate) fn waiter_idle(&self) -> Duration {
        max(MIN_WAITER_IDLE, min(self.query_timeout, self.ttl / 4))
    }

    /// The longest idle limit of a session that owns nothing, T being the one for holds until released.
    pub(crate) fn longest_at_rest(&self) -> Duration {
        self.ttl * AT_REST_FACTOR.unsigned_abs()
    }

    /// D: how long a loss can stay unnoticed while the socket stays open.
    pub(crate) fn detection(&self) -> Duration {
        self.heartbeat_unanswered().saturating_add(self.query_timeout).saturating_add(DELTA)
    }

    /// T(1 - rho) - m.
    fn room(&self) -> Duration {
        slowed(self.ttl).saturating_sub(self.margin)
    }

    fn fits(&self) -> bool {
        self.detection() <= self.room()
    }

    /// Itself if it meets the constraint, else an error that shows the numbers and the TTL that would do.
    fn checked(self, what: &str, with_ttl: impl Fn(Duration) -> Self) -> Result<Self, InvalidInput> {
        if self.fits() {
            return Ok(self);
        }
        let remedy = match smallest(with_ttl) {
            Some(ttl) => format!("a {what} of {ttl:?} would do, or shorter times"),
            None => format!("no {what} would do, so shorten these times"),
        };
        let Self { ttl, query_timeout, margin, .. } = self;
        let unanswered = self.heartbeat_unanswered();
        let heartbeat = match self.heartbeat {
            heartbeat if heartbeat < unanswered => format!("{heartbeat:?}, {unanswered:?} while one is unanswered,"),
            heartbeat => format!("{heartbeat:?}"),
        };
        let rule = format!(
            "heartbeat_interval {heartbeat} + query_timeout {query_timeout:?} + {DELTA:?} = {:?} must be at most \
             {what} {ttl:?} - 1 % - margin {margin:?} = {:?}; {remedy}",
            self.detection(),
            self.room(),
        );
        Err(InvalidInput::new(what, format_args!("{ttl:?}"), &rule))
    }
}

/// A time as PostgreSQL's timeout settings take it: whole milliseconds rounded down, so that the server is never later than
/// we say, and never 0, which would switch the timeout off.
pub(crate) fn server_millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// What is left of a wait as the text of `lock_timeout`: milliseconds rounded up to at least 1. `"0"`, which PostgreSQL
/// takes as for ever, if there is no limit or one too long for the setting; a caller's own timer bounds the latter.
pub(crate) fn lock_timeout_text(budget: Option<Duration>) -> String {
    let millis = budget.map(|budget| budget.as_nanos().div_ceil(1_000_000).max(1));
    millis.filter(|millis| *millis <= u128::from(MAX_MILLIS)).unwrap_or(0).to_string()
}

/// What is left of a duration on a clock that runs faster than ours by rho; nanoseconds that do not divide are left out.
fn slowed(duration: Duration) -> Duration {
    duration / 100 * 99
}

/// The smallest whole second that meets the constraint. A longer TTL leaves more room than it lengthens what it derives.
fn smallest(with_ttl: impl Fn(Duration) -> Timing) -> Option<Duration> {
    let fits = |seconds| with_ttl(Duration::from_secs(seconds)).fits();
    let (mut low, mut high) = (MIN_TTL.as_secs(), MAX_TTL.as_secs());
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

fn check_parts(heartbeat: Option<Duration>, query_timeout: Option<Duration>) -> Result<(), InvalidInput> {
    for (what, part) in [("heartbeat_interval", heartbeat), ("query_timeout", query_timeout)] {
        if let Some(part) = part.filter(|part| *part < Duration::from_millis(1)) {
            return Err(InvalidInput::new(what, format_args!("{part:?}"), "must be at least 1ms"));
        }
    }
    Ok(())
}

fn check_ttl(what: &str, ttl: Duration) -> Result<(), InvalidInput> {
    if ttl < MIN_TTL {
        let rule = format!("must be at least {MIN_TTL:?}, so that a margin and a heartbeat fit");
        return Err(InvalidInput::new(what, format_args!("{ttl:?}"), &rule));
    }
    if ttl.as_millis() > u128::from(MAX_MILLIS) {
        let rule = format!("must be at most {MAX_TTL:?} (24 days), the longest timeout that PostgreSQL has");
        return Err(InvalidInput::new(what, format_args!("{ttl:?}"), &rule));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
