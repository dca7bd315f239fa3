//! The circuit breaker around a store that does as it is told, under paused time but for one test of two runtimes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counting;
mod gating;
mod probing;
mod scoped;
mod silence;
mod stacks;
mod support;
