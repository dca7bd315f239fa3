//! The part `breaker`: whether a circuit breaker goes around the locker, and when it opens.

use std::time::Duration;

use distributed_lock::{backend::Fields, breaker::BreakerConfig};

/// The limits of both open times.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// What the part sets; none where there is no such part. Faults stay with the fields.
pub(crate) fn read(fields: &mut Fields) -> Option<BreakerConfig> {
    let mut part = fields.part("breaker")?;
    let mut config = BreakerConfig::new();
    config.error_rate = part.integer("error_rate", "must be 1 to 100, in percent").unwrap_or(config.error_rate);
    config.min_samples = part.integer("min_samples", "must be a number from 1 on").unwrap_or(config.min_samples);
    config.open_time = part.duration("open_time").unwrap_or(config.open_time);
    config.max_open_time = part.duration("max_open_time").unwrap_or(config.max_open_time);
    config.probe_timeout = part.duration("probe_timeout").unwrap_or(config.probe_timeout);
    // A default in the place of what was refused must fit to the other, which is judged all the same.
    if part.has_refused("open_time") {
        config.open_time = config.open_time.min(config.max_open_time).max(SHORTEST);
    }
    if part.has_refused("max_open_time") {
        config.max_open_time = config.max_open_time.max(config.open_time).min(LONGEST);
    }
    part.check(config.validate());
    fields.check(part.finish().map_err(|invalid| invalid.under("breaker")));
    Some(config)
}
