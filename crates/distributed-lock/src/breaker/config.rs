use std::time::Duration;

use crate::InvalidInput;

/// The longest open time that makes sense: whoever wants more wants no lock at all.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

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
/// assert_eq!(refused.to_string(), "invalid error rate (0 %): must be 1 % to 100 %");
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

    /// Whether every setting keeps its rule; otherwise the first that does not.
    ///
    /// # Errors
    /// Names the setting, its value and the rule.
    ///
    /// ```
    /// use distributed_lock::breaker::BreakerConfig;
    ///
    /// let broken = BreakerConfig::new().with_min_samples(0).validate().unwrap_err();
    /// assert_eq!(broken.to_string(), "invalid minimum of samples (0): must be at least 1");
    /// ```
    pub fn validate(&self) -> Result<(), InvalidInput> {
        let Self { error_rate, min_samples, open_time, max_open_time, probe_timeout } = self;
        if !(1..=100).contains(error_rate) {
            return Err(InvalidInput::new("error rate", format_args!("{error_rate} %"), "must be 1 % to 100 %"));
        }
        if *min_samples == 0 {
            return Err(InvalidInput::new("minimum of samples", min_samples, "must be at least 1"));
        }
        for (what, time) in [("open time", open_time), ("probe timeout", probe_timeout)] {
            if !(Duration::from_millis(1)..=LONGEST).contains(time) {
                return Err(InvalidInput::new(what, format_args!("{time:?}"), "must be 1 ms to 24 h"));
            }
        }
        if !(*open_time..=LONGEST).contains(max_open_time) {
            let rule = format!("must be at least the open time, {open_time:?}, and at most 24 h");
            return Err(InvalidInput::new("longest open time", format_args!("{max_open_time:?}"), &rule));
        }
        Ok(())
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
            (new().with_error_rate(0), "invalid error rate (0 %): must be 1 % to 100 %"),
            (new().with_error_rate(101), "invalid error rate (101 %): must be 1 % to 100 %"),
            (new().with_min_samples(0), "invalid minimum of samples (0): must be at least 1"),
            (new().with_open_time(Duration::ZERO), "invalid open time (0ns): must be 1 ms to 24 h"),
            (new().with_open_time(beyond), "invalid open time (86400.000000001s): must be 1 ms to 24 h"),
            (new().with_probe_timeout(Duration::ZERO), "invalid probe timeout (0ns): must be 1 ms to 24 h"),
            (new().with_probe_timeout(Duration::MAX), "must be 1 ms to 24 h"),
            (
                new().with_max_open_time(ms(499)),
                "invalid longest open time (499ms): must be at least the open time, 500ms, and at most 24 h",
            ),
            (new().with_max_open_time(beyond), "at most 24 h"),
        ];
        for (config, message) in bad {
            let refused = config.validate().unwrap_err().to_string();
            assert!(refused.ends_with(message), "{refused}");
        }
    }
}
