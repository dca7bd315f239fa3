//! Spans, log lines and metrics, through the recorder, the meter and the subscriber of a test.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod breaker;
mod canary;
mod explaining;
mod golden;
mod lease;
mod meter;
mod recorder;
mod spans;
mod table;
mod tracer;
