use std::time::Duration;

use crate::InvalidInput;

/// The longest open time that makes sense: whoever wants more wants no lock at all.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The shortest time that timers keep.
const SHORTEST: Duration = Duration::from_millis(1);

/// When a [`CircuitBreaker`](super::CircuitBreaker) opens, and for how long. Checked where the breaker is made.
///
/// ```
/// use std::time::Duration;
/// use distributed_lock::{MemoryLocker, breaker::{BreakerConfig, CircuitBreaker}};
///
/// let config = BreakerConfig::new().with_error_rate(80).with_open_time(Duration::from_secs(1));
/// assert!(CircuitBreaker::new(MemoryLocker::new(), config).is_ok());
///
/// let never = BreakerConfig::new().with_error_rate(0);
/// let refused = CircuitBreaker::new(MemoryLocker::new(), never).unwrap_err();
/// assert_eq!(refused.to_string(), "invalid error_rate (0 %): must be 1 % to 100 %");
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct BreakerConfig {
    /// The share of failures, in percent, from which on it opens: 1 to 100. Default 50.
    pub error_rate: u8,
    /// How many calls must have succeeded or failed within the window before it can open; at least 1. Default 10.
    pub min_samples: u32,
    /// How long it stays open the first time, less up to half of it by chance; each time that follows doubles it. From 1 ms on.
    /// Default 500 ms.
    pub open_time: Duration,
    /// The longest open time; from `open_time` to a day. Default 30 s.
    pub max_open_time: Duration,
    /// How long the answer to the ping may take that decides whether it closes again. From 1 ms to a day. Default 2 s.
    pub probe_timeout: Duration,
}

impl BreakerConfig {
    /// Opens at half of ten calls, for half a second at first and for 30 s at most.
    ///
    /// ```
    /// use distributed_lock::breaker::BreakerConfig;
    ///
    /// assert_eq!((BreakerConfig::new().error_rate, BreakerConfig::new().min_samples), (50, 10));
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            error_rate: 50,
            min_samples: 10,
            open_time: Duration::from_millis(500),
            max_open_time: Duration::from_secs(30),
            probe_timeout: Duration::from_secs(2),
        }
    }

    /// The same, opening at this share of failures, in percent.
    ///
    /// ```
    /// use distributed_lock::breaker::BreakerConfig;
    ///
    /// assert_eq!(BreakerConfig::new().with_error_rate(80).error_rate, 80);
    /// ```
    #[must_use]
    pub const fn with_error_rate(mut self, percent: u8) -> Self {
        self.error_rate = percent;
        self
    }

    /// The same, judging from this many calls on.
    ///
    /// ```
    /// use distributed_lock::breaker::BreakerConfig;
    ///
    /// assert_eq!(BreakerConfig::new().with_min_samples(3).min_samples, 3);
    /// ```
    #[must_use]
    pub const fn with_min_samples(mut self, calls: u32) -> Self {
        self.min_samples = calls;
        self
    }

    /// The same, open for this long at first.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::breaker::BreakerConfig;
    ///
    /// assert_eq!(BreakerConfig::new().with_open_time(Duration::from_secs(1)).open_time, Duration::from_secs(1));
    /// ```
    #[must_use]
    pub const fn with_open_time(mut self, time: Duration) -> Self {
        self.open_time = time;
        self
    }

    /// The same, open for this long at most.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::breaker::BreakerConfig;
    ///
    /// assert_eq!(BreakerConfig::new().with_max_open_time(Duration::from_secs(5)).max_open_time, Duration::from_secs(5));
    /// ```
    #[must_use]
    pub const fn with_max_open_time(mut self, time: Duration) -> Self {
        self.max_open_time = time;
        self
    }

    /// The same, with this limit for the ping that probes the store.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::breaker::BreakerConfig;
    ///
    /// assert_eq!(BreakerConfig::new().with_probe_timeout(Duration::from_secs(1)).probe_timeout, Duration::from_secs(1));
    /// ```
    #[must_use]
    pub const fn with_probe_timeout(mut self, limit: Duration) -> Self {
        self.probe_timeout = limit;
        self
    }

    /// Whether every setting keeps its rule; otherwise all that do not.
    ///
    /// # Errors
    /// Names each such setting, its value and the rule.
    ///
    /// ```
    /// use distributed_lock::breaker::BreakerConfig;
    ///
    /// let broken = BreakerConfig::new().with_min_samples(0).validate().unwrap_err();
    /// assert_eq!(broken.to_string(), "invalid min_samples (0): must be at least 1");
    /// ```
    pub fn validate(&self) -> Result<(), InvalidInput> {
        let Self { error_rate, min_samples, open_time, max_open_time, probe_timeout } = self;
        let mut faults = Vec::new();
        if !(1..=100).contains(error_rate) {
            faults.push(InvalidInput::new("error_rate", format_args!("{error_rate} %"), "must be 1 % to 100 %"));
        }
        if *min_samples == 0 {
            faults.push(InvalidInput::new("min_samples", min_samples, "must be at least 1"));
        }
        for (what, time) in [("open_time", open_time), ("probe_timeout", probe_timeout)] {
            if !(SHORTEST..=LONGEST).contains(time) {
                faults.push(InvalidInput::new(what, format_args!("{time:?}"), "must be 1 ms to 24 h"));
            }
        }
        // One that is out of its own range is no measure for the other.
        let least = Some(*open_time).filter(|time| (SHORTEST..=LONGEST).contains(time)).unwrap_or(SHORTEST);
        if !(least..=LONGEST).contains(max_open_time) {
            let rule = format!("must be at least the open_time, {least:?}, and at most 24 h");
            faults.push(InvalidInput::new("max_open_time", format_args!("{max_open_time:?}"), &rule));
        }
        InvalidInput::all(faults)
    }
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_at_its_limit_passes_and_one_beyond_is_refused_with_its_value_and_rule() {
        let (new, ms, day) = (BreakerConfig::new, Duration::from_millis, LONGEST);
        let good = [
            new(),
            new().with_error_rate(1),
            new().with_error_rate(100),
            new().with_min_samples(1),
            new().with_min_samples(u32::MAX),
            new().with_open_time(ms(1)),
            new().with_open_time(day).with_max_open_time(day),
            new().with_max_open_time(ms(500)),
            new().with_probe_timeout(ms(1)),
            new().with_probe_timeout(day),
        ];
        for config in good {
            assert_eq!(config.validate(), Ok(()), "{config:?}");
        }
        let beyond = day + Duration::from_nanos(1);
        let bad = [
            (new().with_error_rate(0), "invalid error_rate (0 %): must be 1 % to 100 %"),
            (new().with_error_rate(101), "invalid error_rate (101 %): must be 1 % to 100 %"),
            (new().with_min_samples(0), "invalid min_samples (0): must be at least 1"),
            (new().with_open_time(Duration::ZERO), "invalid open_time (0ns): must be 1 ms to 24 h"),
            (new().with_open_time(beyond), "invalid open_time (86400.000000001s): must be 1 ms to 24 h"),
            (new().with_probe_timeout(Duration::ZERO), "invalid probe_timeout (0ns): must be 1 ms to 24 h"),
            (new().with_probe_timeout(Duration::MAX), "must be 1 ms to 24 h"),
            (
                new().with_max_open_time(ms(499)),
                "invalid max_open_time (499ms): must be at least the open_time, 500ms, and at most 24 h",
            ),
            (new().with_max_open_time(beyond), "at most 24 h"),
        ];
        for (config, message) in bad {
            let refused = config.validate().unwrap_err().to_string();
            assert!(refused.ends_with(message), "{refused}");
        }
    }

    #[test]
    fn all_settings_that_break_a_rule_are_in_one_error() {
        let all = BreakerConfig::new().with_error_rate(0).with_min_samples(0).with_open_time(Duration::ZERO);
        let all = all.with_max_open_time(Duration::ZERO).with_probe_timeout(Duration::ZERO);
        let told = all.validate().unwrap_err().to_string();
        assert!(told.starts_with("invalid configuration (5 faults): invalid error_rate (0 %): "), "{told}");
    }
}
