use std::{error::Error as StdError, fmt, sync::Arc, time::Instant};

/// Why a hold ended before its holder released it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum LossCause {
    /// The locker was closed.
    Closed,
    /// The deadline passed without a confirmed renewal.
    DeadlinePassed,
    /// The store did not confirm our ownership in time, or refused to say. It may still count us as the holder.
    HeartbeatTimeout,
    /// The store says that it is not ours.
    NotOurs,
    /// Given up by the holder itself. Only a view that outlived its guard sees this, and never through `lost`.
    Released,
    /// The session that owned it ended, as far as we can see. The store may count us as the holder for longer.
    SessionEnded,
}

/// The end of a hold that its holder did not ask for.
///
/// ```
/// use distributed_lock::{Error, ErrorKind, Loss, LossCause};
///
/// let loss = Loss::new(LossCause::SessionEnded).with_source(std::io::Error::other("connection reset"));
/// assert_eq!(loss.to_string(), "the session that owned it ended");
/// assert_eq!(Error::from(loss).kind(), ErrorKind::Lost);
/// ```
#[derive(Clone, Debug)]
pub struct Loss {
    cause: LossCause,
    at: Option<Instant>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Loss {
    /// A loss for this cause.
    ///
    /// ```
    /// use distributed_lock::{Loss, LossCause};
    ///
    /// assert_eq!(Loss::new(LossCause::NotOurs).cause(), LossCause::NotOurs);
    /// ```
    pub const fn new(cause: LossCause) -> Self {
        Self { cause, at: None, source: None }
    }

    /// Adds the error that told us.
    ///
    /// ```
    /// use std::error::Error;
    /// use distributed_lock::{Loss, LossCause};
    ///
    /// let loss = Loss::new(LossCause::SessionEnded).with_source(std::io::Error::other("reset"));
    /// assert_eq!(loss.source().unwrap().to_string(), "reset");
    /// ```
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The cause.
    pub const fn cause(&self) -> LossCause {
        self.cause
    }

    /// When it happened, on the clock of its hold; the first stamp stays.
    pub(crate) fn stamped(mut self, at: Instant) -> Self {
        self.at.get_or_insert(at);
        self
    }

    pub(crate) fn at(&self) -> Option<Instant> {
        self.at
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.cause {
            LossCause::Closed => "the locker was closed",
            LossCause::DeadlinePassed => "the deadline passed without a confirmed renewal",
            LossCause::HeartbeatTimeout => "the store did not confirm ownership in time",
            LossCause::NotOurs => "the store says it is not ours",
            LossCause::Released => "it was released",
            LossCause::SessionEnded => "the session that owned it ended",
        })
    }
}

impl StdError for Loss {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
