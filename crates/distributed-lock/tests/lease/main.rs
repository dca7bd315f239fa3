//! The lease runner on the in-memory backend, under paused time but for the races.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod contending;
mod exits;
mod ordering;
mod promises;
mod races;
mod support;
mod watching;
