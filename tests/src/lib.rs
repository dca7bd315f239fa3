//! Tests that cross crates are in `tests/`, measuring programs in `src/bin/`. The library only lets the README be tested.

/// Its Rust blocks run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[derive(Debug)]
pub struct Readme;
