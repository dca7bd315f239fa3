//! One clock for all processes of this machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the clock that runs through a suspend.
#[must_use]
pub fn now() -> i64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// A duration as this clock counts it.
#[must_use]
pub fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// In milliseconds.
#[must_use]
pub fn millis(nanos: i64) -> f64 {
    Duration::from_nanos(nanos.unsigned_abs()).as_secs_f64() * if nanos < 0 { -1e3 } else { 1e3 }
}
