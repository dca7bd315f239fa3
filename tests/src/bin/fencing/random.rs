//! Numbers that a seed gives again.

use std::ops::Range;

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Streams of one seed differ from each other.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed);
        random.0 = random.next() ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93);
        random
    }

    pub(crate) fn within(&mut self, range: Range<usize>) -> usize {
        let width = range.len().max(1) as u64;
        range.start + usize::try_from(self.next() % width).unwrap_or_default()
    }

    pub(crate) fn one_in(&mut self, number: usize) -> bool {
        self.within(0..number) == 0
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
