//! What users may rely on, shown on the in-memory backend under paused time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod closing;
mod controls;
mod dropping;
mod fencing;
mod holding;
mod nesting;
mod running;
mod scoped;
mod support;
mod time;
mod vocabulary;
mod waiting;
