//! Properties of the machine over random histories, and broken variants of it that the properties must catch.

mod facts;
mod fuzz;
mod monitor;
mod subject;
mod world;

/// A small seeded generator (splitmix64): a failure names its seed.
pub(super) struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Both ends included.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next() % n == 0
    }
}

/// At least as many as show every defect.
fn rounds() -> u64 {
    const ENOUGH: u64 = 3_000;
    lock_testkit::requirement::rounds(ENOUGH).max(ENOUGH)
}

/// Every seed keeps the properties.
fn holds(check: impl Fn(u64) -> Result<(), String>) {
    for seed in 0..rounds() {
        if let Err(broken) = check(seed) {
            panic!("seed {seed}: {broken}");
        }
    }
}

/// Some seed shows this break: what the properties are worth.
fn catches(what: &str, check: impl Fn(u64) -> Result<(), String>) {
    let found = (0..rounds()).find_map(|seed| check(seed).err());
    match found {
        Some(broken) => assert!(broken.contains(what), "caught as something else: {broken}"),
        None => panic!("not caught"),
    }
}
