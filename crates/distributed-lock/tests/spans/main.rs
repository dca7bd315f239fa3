//! Spans and log lines, through the subscriber of a test.
//!
//! Every test of this program sets one before anything else, and tests without one are in the program `telemetry`: tracing asks once for
//! each span and line whether anybody wants it, and while there is one subscriber alone it asks in the thread that comes there first. One
//! without a subscriber would answer no for all others.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod calls;
mod canary;
mod explaining;
mod lease;
#[path = "../telemetry/meter.rs"]
mod meter;
mod names;
mod page;
#[path = "../telemetry/recorder.rs"]
mod recorder;
mod releases;
mod tracer;
