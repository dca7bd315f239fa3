//! What writing a backend is like, and what it gets from the core for that.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod polling;
mod record;
mod scoped;
mod scripted;
mod store;
