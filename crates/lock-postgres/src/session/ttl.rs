//! The TTL of a session of ours, from hold to hold.

use std::sync::atomic::{AtomicI32, Ordering};

use crate::timing::AT_REST_FACTOR;

/// The TTL, in ms, that a session of ours publishes with its beacon and has as its idle limit. Nobody else can change them, and a
/// session whose statement failed is destroyed. Most holds find the one they want, so that a grant is a single lock call.
#[derive(Debug)]
pub(super) struct SessionTtl {
    pub(super) at_rest: i32,
    now: AtomicI32,
    /// The idle limit where a heartbeat set it to what was left of a TTL.
    limit: AtomicI32,
}

impl SessionTtl {
    pub(super) fn new(at_rest: i32) -> Self {
        Self { at_rest, now: AtomicI32::new(at_rest), limit: AtomicI32::new(at_rest) }
    }

    pub(super) fn now(&self) -> i32 {
        self.now.load(Ordering::Relaxed)
    }

    pub(super) fn is(&self, millis: i32) -> bool {
        self.now() == millis && self.limit.load(Ordering::Relaxed) == millis
    }

    pub(super) fn set(&self, millis: i32, limit: i32) {
        self.now.store(millis, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// What it must be set to when a hold ends. The next hold may want the same one, so one that is a little longer stays: see
    /// [`Timing::longest_at_rest`](crate::timing::Timing::longest_at_rest).
    pub(super) fn to_rest(&self) -> Option<i32> {
        let longest = self.at_rest.saturating_mul(AT_REST_FACTOR);
        let may_stay = |millis: i32| self.at_rest <= millis && millis <= longest;
        let both = may_stay(self.now()) && may_stay(self.limit.load(Ordering::Relaxed));
        (!both).then_some(self.at_rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_s_ttl_is_put_back_unless_it_is_up_to_twice_the_one_at_rest() {
        let ttl = SessionTtl::new(17_000);
        for (now, to_rest) in
            [(17_000, None), (34_000, None), (16_999, Some(17_000)), (34_001, Some(17_000)), (i32::MAX, Some(17_000))]
        {
            ttl.set(now, now);
            assert!(ttl.is(now));
            assert_eq!(ttl.to_rest(), to_rest, "{now}");
        }
        ttl.set(60_000, 30_000);
        assert_eq!(ttl.to_rest(), Some(17_000), "a heartbeat set the limit, the beacon says another TTL");
        ttl.set(30_000, 29_000);
        assert!(!ttl.is(30_000) && !ttl.is(29_000), "a heartbeat set the limit to what was left");
        assert_eq!(SessionTtl::new(i32::MAX).to_rest(), None);
    }
}
