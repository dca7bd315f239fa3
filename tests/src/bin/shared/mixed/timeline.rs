//! What happened, in order.

use ::tests::lease::clock;

use super::{
    contender::{Time, Wait},
    kind::Kind,
};

pub(super) struct Timeline {
    counted: Time,
    waits: Vec<(Kind, Wait)>,
    /// Of all of them, in order.
    grants: Vec<i64>,
}

impl Timeline {
    pub(super) fn new(counted: Time, waits: Vec<(Kind, Wait)>) -> Self {
        let mut grants: Vec<_> = waits.iter().map(|(_, wait)| wait.granted).collect();
        grants.sort_unstable();
        Self { counted, waits, grants }
    }

    /// As far as they lie in that time.
    fn of(&self, kind: Kind) -> impl Iterator<Item = Wait> {
        let Time { from, until } = self.counted;
        let clipped = move |wait: &Wait| Wait { asked: wait.asked.max(from), granted: wait.granted.min(until) };
        let of_kind = self.waits.iter().filter(move |(of, _)| *of == kind).map(|(_, wait)| wait);
        of_kind.map(clipped).filter(|wait| wait.asked < wait.granted)
    }

    /// How many there were in that time.
    pub(super) fn grants(&self, kind: Kind) -> usize {
        self.of(kind).filter(|wait| wait.granted < self.counted.until).count()
    }

    /// How many others were granted between an ask and its grant, at most. One that waits at the end has waited until then.
    pub(super) fn longest_wait(&self, kind: Kind) -> usize {
        self.of(kind).map(|wait| self.between(wait)).max().unwrap_or_default()
    }

    /// From an ask to its grant, at most.
    pub(super) fn longest_millis(&self, kind: Kind) -> f64 {
        self.of(kind).map(|wait| clock::millis(wait.granted - wait.asked)).fold(0.0, f64::max)
    }

    /// Whoever waits is granted nothing meanwhile, so they are all others'.
    fn between(&self, Wait { asked, granted }: Wait) -> usize {
        let first = self.grants.partition_point(|grant| *grant <= asked);
        self.grants.iter().skip(first).take_while(|grant| **grant < granted).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(waits: &[(Kind, i64, i64)]) -> Timeline {
        let waits = waits.iter().map(|&(kind, asked, granted)| (kind, Wait { asked, granted })).collect();
        Timeline::new(Time { from: 10, until: 100 }, waits)
    }

    #[test]
    fn only_grants_within_the_wait_count() {
        let seen = timeline(&[
            (Kind::Queued, 10, 20),
            (Kind::Foreign, 12, 30),
            (Kind::Scoped, 21, 35),
            (Kind::Queued, 22, 40),
            (Kind::Shared, 15, 41),
        ]);
        let longest = [Kind::Queued, Kind::Foreign, Kind::Scoped, Kind::Shared].map(|kind| seen.longest_wait(kind));
        assert_eq!(longest, [2, 1, 1, 4]);
        assert_eq!(seen.grants(Kind::Queued), 2);
    }

    #[test]
    fn one_that_waits_at_the_end_has_waited_until_then() {
        let seen = timeline(&[
            (Kind::Poller, 11, 101),
            (Kind::Queued, 11, 20),
            (Kind::Queued, 21, 30),
            (Kind::Queued, 31, 40),
        ]);
        assert_eq!((seen.grants(Kind::Poller), seen.longest_wait(Kind::Poller)), (0, 3));
    }

    #[test]
    fn what_lies_outside_of_the_time_does_not_count() {
        let seen =
            timeline(&[(Kind::Shared, 5, 30), (Kind::Shared, 100, 120), (Kind::Queued, 6, 9), (Kind::Queued, 9, 12)]);
        assert_eq!((seen.grants(Kind::Shared), seen.longest_wait(Kind::Shared)), (1, 1));
    }
}
