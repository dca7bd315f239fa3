//! Metrics, through the recorder and the meter of a test. What looks at spans and log lines is in the program `spans`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod breaker;
mod cardinality;
mod golden;
mod lease;
mod meter;
mod passing;
mod recorder;
mod saturated;
mod table;
