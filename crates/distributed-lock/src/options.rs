use std::time::Duration;

use crate::Ttl;

/// How long an acquire may wait: one budget for pool, connection and queue together.
///
/// ```
/// use std::time::Duration;
/// use distributed_lock::{AcquireOptions, LockKey, Locker, MemoryLocker, Ttl, Wait};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locker = MemoryLocker::new();
/// let _somebody = locker.hold("orders")?;
/// let options = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_wait(Wait::UpTo(Duration::from_millis(5)));
/// assert!(locker.acquire_opts(&LockKey::new("orders")?, &options).await?.is_contended());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wait {
    /// Until the lock is ours.
    Forever,
    /// Not at all for the lock; what it takes to ask, such as a connection of a pool, is waited for as the backend says.
    Never,
    /// At most this long; zero is the same as `Never`.
    UpTo(Duration),
}

impl Wait {
    /// The budget in whole milliseconds, rounded *up* so that a short wait never becomes a store's "zero means for ever".
    /// `None` is for ever, zero is not at all.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::Wait;
    ///
    /// assert_eq!(Wait::UpTo(Duration::from_nanos(1)).budget(), Some(Duration::from_millis(1)));
    /// assert_eq!(Wait::Forever.budget(), None);
    /// ```
    pub fn budget(self) -> Option<Duration> {
        match self {
            Self::Forever => None,
            Self::Never => Some(Duration::ZERO),
            Self::UpTo(limit) => {
                let millis = limit.as_nanos().div_ceil(1_000_000);
                Some(u64::try_from(millis).map_or(Duration::MAX, Duration::from_millis))
            }
        }
    }

    /// Whether it is a single try.
    pub(crate) fn is_try(self) -> bool {
        self.budget() == Some(Duration::ZERO)
    }
}

/// Whether a grant comes with a [`FencingToken`](crate::FencingToken).
///
/// ```
/// use distributed_lock::{AcquireOptions, Fencing, LockKey, Locker, MemoryLocker, Ttl};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_fencing(Fencing::Off);
/// let attempt = MemoryLocker::new().acquire_opts(&LockKey::new("orders")?, &options).await?;
/// assert_eq!(attempt.into_result()?.fencing_token(), None);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Fencing {
    /// As the locker is set.
    #[default]
    Default,
    /// Without.
    Off,
    /// With; a locker that mints none refuses (kind `Unsupported`).
    On,
}

/// What an acquire asks for. No `Default`: the TTL is a decision.
///
/// ```
/// use std::time::Duration;
/// use distributed_lock::{AcquireOptions, Ttl, Wait};
///
/// let options = AcquireOptions::new(Ttl::new(Duration::from_secs(30))?).with_wait(Wait::Forever);
/// assert_eq!(options.wait, Wait::Forever);
/// # Ok::<(), distributed_lock::InvalidInput>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct AcquireOptions {
    /// How long the hold lives without renewal.
    pub ttl: Ttl,
    /// How long to wait for it.
    pub wait: Wait,
    /// Whether to mint a fencing token.
    pub fencing: Fencing,
    /// Also ask the present holder to step down (see [`Hold::step_down_requested`](crate::Hold::step_down_requested)).
    pub ask_step_down: bool,
    /// What kind of lock this is, for metrics: never a name. `None` says nothing.
    pub class: Option<&'static str>,
}

impl AcquireOptions {
    /// A single try for a hold with this TTL.
    ///
    /// ```
    /// use distributed_lock::{AcquireOptions, Ttl, Wait};
    ///
    /// assert_eq!(AcquireOptions::new(Ttl::UNTIL_RELEASED).wait, Wait::Never);
    /// ```
    pub const fn new(ttl: Ttl) -> Self {
        Self { ttl, wait: Wait::Never, fencing: Fencing::Default, ask_step_down: false, class: None }
    }

    /// The same, waiting.
    ///
    /// ```
    /// use distributed_lock::{AcquireOptions, Ttl, Wait};
    ///
    /// let options = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_wait(Wait::Forever);
    /// assert_eq!(options.wait, Wait::Forever);
    /// ```
    #[must_use]
    pub const fn with_wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// The same, with this choice of fencing.
    #[must_use]
    pub const fn with_fencing(mut self, fencing: Fencing) -> Self {
        self.fencing = fencing;
        self
    }

    /// The same, asking the present holder to step down.
    ///
    /// ```
    /// use distributed_lock::{AcquireOptions, Ttl};
    ///
    /// assert!(AcquireOptions::new(Ttl::UNTIL_RELEASED).with_step_down_request().ask_step_down);
    /// ```
    #[must_use]
    pub const fn with_step_down_request(mut self) -> Self {
        self.ask_step_down = true;
        self
    }

    /// The same, with a label for metrics, such as `"order"` for all locks on orders. Static, so that there are only a few of them.
    ///
    /// ```
    /// use distributed_lock::{AcquireOptions, Ttl};
    ///
    /// assert_eq!(AcquireOptions::new(Ttl::UNTIL_RELEASED).with_class("order").class, Some("order"));
    /// ```
    #[must_use]
    pub const fn with_class(mut self, class: &'static str) -> Self {
        self.class = Some(class);
        self
    }
}

/// What a scoped run asks for.
///
/// ```
/// use distributed_lock::{Fencing, ScopedOptions, Wait};
///
/// let options = ScopedOptions::new(Wait::Never).with_fencing(Fencing::On);
/// assert_eq!(options.fencing, Fencing::On);
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct ScopedOptions {
    /// How long to wait for the lock.
    pub wait: Wait,
    /// Whether to mint a fencing token.
    pub fencing: Fencing,
    /// What kind of lock this is, for metrics: never a name. `None` says nothing.
    pub class: Option<&'static str>,
}

impl ScopedOptions {
    /// A run that waits this long for its lock.
    ///
    /// ```
    /// use distributed_lock::{Fencing, ScopedOptions, Wait};
    ///
    /// assert_eq!(ScopedOptions::new(Wait::Forever).fencing, Fencing::Default);
    /// ```
    pub const fn new(wait: Wait) -> Self {
        Self { wait, fencing: Fencing::Default, class: None }
    }

    /// The same, with this choice of fencing.
    #[must_use]
    pub const fn with_fencing(mut self, fencing: Fencing) -> Self {
        self.fencing = fencing;
        self
    }
    /// The same, with a label for metrics. See [`AcquireOptions::with_class`].
    #[must_use]
    pub const fn with_class(mut self, class: &'static str) -> Self {
        self.class = Some(class);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_wait_rounds_up_and_a_huge_one_clamps() {
        assert_eq!(Wait::UpTo(Duration::from_nanos(1)).budget(), Some(Duration::from_millis(1)));
        assert_eq!(Wait::UpTo(Duration::from_micros(1_400)).budget(), Some(Duration::from_millis(2)));
        assert_eq!(Wait::UpTo(Duration::ZERO).budget(), Wait::Never.budget());
        assert_eq!(Wait::Forever.budget(), None);
        assert!(Wait::UpTo(Duration::MAX).budget() >= Some(Duration::from_secs(u64::MAX / 1_000)));
        assert!(Wait::UpTo(Duration::ZERO).is_try() && !Wait::UpTo(Duration::from_nanos(1)).is_try());
    }
}
