//! What happened, in order.

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
    /// Of the waits that began in that time.
    pub(super) fn new(counted: Time, waits: Vec<(Kind, Wait)>) -> Self {
        let mut grants: Vec<_> = waits.iter().map(|(_, wait)| wait.granted).collect();
        grants.sort_unstable();
        Self { counted, waits, grants }
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = Wait> {
        let Time { from, until } = self.counted;
        let counts = move |wait: &Wait| (from..until).contains(&wait.asked);
        self.waits.iter().filter(move |(of, _)| *of == kind).map(|(_, wait)| *wait).filter(counts)
    }

    /// How many there were in that time.
    pub(super) fn grants(&self, kind: Kind) -> usize {
        self.of(kind).filter(|wait| wait.granted < self.counted.until).count()
    }

    /// How many others were granted between an ask and its grant, at most. One that is still waiting at the end has waited until then.
    pub(super) fn longest_wait(&self, kind: Kind) -> usize {
        self.of(kind)
            .map(|wait| self.between(wait.asked, wait.granted.min(self.counted.until)))
            .max()
            .unwrap_or_default()
    }

    /// Whoever waits is granted nothing meanwhile, so they are all others'.
    fn between(&self, asked: i64, granted: i64) -> usize {
        self.grants
            .iter()
            .skip(self.grants.partition_point(|grant| *grant <= asked))
            .take_while(|grant| **grant < granted)
            .count()
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
    fn waits_that_began_too_early_or_too_late_do_not_count() {
        let seen = timeline(&[(Kind::Shared, 9, 30), (Kind::Shared, 100, 120), (Kind::Queued, 11, 12)]);
        assert_eq!((seen.grants(Kind::Shared), seen.longest_wait(Kind::Shared)), (0, 0));
    }
}
