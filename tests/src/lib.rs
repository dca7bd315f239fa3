//! Tests that cross crates are in `tests/`, measuring programs in `src/bin/`; the library is what both stand on.

pub mod lease;

/// Its Rust blocks run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[derive(Debug)]
pub struct Readme;
