use std::{fmt, time::Duration};

use crate::InvalidInput;

/// How long a hold lives without renewal: a duration (1 ms to 366 days), or until it is released.
///
/// Methods that want a TTL take `impl TryInto<Ttl>`: pass a `Duration` or [`Ttl::UNTIL_RELEASED`].
///
/// ```
/// use std::time::Duration;
/// use distributed_lock::Ttl;
///
/// assert!(Ttl::new(Duration::from_secs(30)).is_ok());
/// let refused = Ttl::new(Duration::ZERO).unwrap_err();
/// assert_eq!(refused.to_string(), "invalid ttl (0ns): must be between 1 ms and 366 days");
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ttl(Option<Duration>);

impl Ttl {
    /// Until released, or until the session that owns it ends. Only where
    /// [`Capabilities::until_released`](crate::Capabilities::until_released).
    pub const UNTIL_RELEASED: Self = Self(None);

    /// Parses a duration; the error names the value and the rule.
    ///
    /// # Errors
    /// For less than a millisecond or more than 366 days.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::Ttl;
    ///
    /// assert_eq!(Ttl::new(Duration::from_secs(30)).map(|ttl| ttl.to_string()), Ok("30s".to_owned()));
    /// assert!(Ttl::new(Duration::from_micros(999)).is_err());
    /// ```
    pub fn new(ttl: Duration) -> Result<Self, InvalidInput> {
        const MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);
        if (Duration::from_millis(1)..=MAX).contains(&ttl) {
            Ok(Self(Some(ttl)))
        } else {
            Err(InvalidInput::new("ttl", format_args!("{ttl:?}"), "must be between 1 ms and 366 days"))
        }
    }

    /// The duration; `None` means until released.
    ///
    /// ```
    /// use distributed_lock::Ttl;
    ///
    /// assert_eq!(Ttl::UNTIL_RELEASED.duration(), None);
    /// ```
    pub const fn duration(self) -> Option<Duration> {
        self.0
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ttl) => fmt::Debug::fmt(&ttl, f),
            None => f.write_str("until released"),
        }
    }
}

impl TryFrom<Duration> for Ttl {
    type Error = InvalidInput;
    fn try_from(ttl: Duration) -> Result<Self, InvalidInput> {
        Self::new(ttl)
    }
}
