//! Properties of the machine over random histories, and broken variants of it that the properties must catch.

mod facts;
mod fuzz;
mod monitor;
mod subject;
mod world;

use crate::random::Random;

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
