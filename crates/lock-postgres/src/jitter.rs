//! So that many who began together do not go on together.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// Between four fifths of it and all of it.
pub(crate) fn jittered(duration: Duration) -> Duration {
    // The keys of a `RandomState` come from the system, and each one has others.
    let [a, b, ..] = RandomState::new().hash_one(()).to_be_bytes();
    duration - duration / 5 * u32::from(u16::from_be_bytes([a, b])) / u32::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_between_four_fifths_and_all() {
        let all = Duration::from_secs(5);
        let drawn: Vec<_> = (0..200).map(|_| jittered(all)).collect();
        assert!(drawn.iter().all(|drawn| (all * 4 / 5..=all).contains(drawn)), "{drawn:?}");
        assert!(drawn.iter().any(|one| *one != drawn[0]), "it never varies");
    }
}
