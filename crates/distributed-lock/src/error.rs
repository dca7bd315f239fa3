use std::{borrow::Cow, convert::Infallible, error::Error as StdError, fmt, time::Duration};

use crate::{Contention, LockKey, Loss};

/// `std`'s `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn StdError + Send + Sync>;

/// What kind of failure; the only thing code should branch on.
///
/// | kind | what it means | try again |
/// |---|---|---|
/// | `Unavailable` | the store could not be used; you do not hold the lock, though the key can stay taken for up to [`Guarantees::cleanup`](crate::Guarantees::cleanup) | later |
/// | `Indeterminate` | it may have happened and nothing could undo it | after finding out |
/// | `Lost` | you held it and do not any more | after checking your work |
/// | `Contended` | the value needed the lock, and somebody else has it | when you like |
/// | `Deadlock` | you would have waited for yourself, or the store broke a circle of waits | after changing the order |
/// | `Denied`, `Misconfigured`, `InvalidInput`, `Unsupported` | asking again changes nothing | no |
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A job of this name already runs here.
    AlreadyRunning,
    /// The breaker refused; the store was not asked. See [`Error::retry_after`].
    CircuitOpen,
    /// This locker was closed.
    Closed,
    /// A caller asked for a value that only a held lock gives, and the lock was contended. Locker traits never return this kind.
    Contended,
    /// A wait that could never end: for a key the same task holds, or in a circle that the store broke.
    Deadlock,
    /// The store refused us: credentials or rights. Retrying does not help.
    Denied,
    /// It may have happened: the answer is missing and what could hold the lock could not be destroyed.
    Indeterminate,
    /// An argument or setting breaks a rule.
    InvalidInput,
    /// The store or this locker is at a limit (locks, connections).
    LimitReached,
    /// We no longer own what we owned; the source is a [`Loss`].
    Lost,
    /// The store or the way to it is set up so that locks cannot be trusted or had: a hot standby, a pooler, TLS demanded but absent.
    Misconfigured,
    /// Unclassified: please report it.
    Other,
    /// The store could not be used. You do not hold the lock.
    Unavailable,
    /// This backend cannot do that; its capabilities say so.
    Unsupported,
}

/// The one error of all backends: a kind, a message, the key, the store's own code, and the source. One word wide.
///
/// ```
/// use std::error::Error as _;
/// use distributed_lock::{Error, ErrorKind, LockKey};
///
/// let cause = std::io::Error::other("connection reset");
/// let error = Error::new(ErrorKind::Unavailable, "the store did not answer")
///     .with_key(&LockKey::new("orders")?)
///     .with_code("08006")
///     .with_source(cause);
/// assert_eq!(error.to_string(), r#"the store did not answer (lock "orders")"#);
/// assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, Some("08006")));
/// assert_eq!(error.source().unwrap().to_string(), "connection reset");
/// # Ok::<(), distributed_lock::InvalidInput>(())
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    key: Option<LockKey>,
    code: Option<Cow<'static, str>>,
    retry_after: Option<Duration>,
    source: Option<Source>,
}

impl Error {
    /// An error of this kind; the message is one lowercase clause without the source, the key or any secret.
    ///
    /// ```
    /// use distributed_lock::{Error, ErrorKind};
    ///
    /// assert_eq!(Error::new(ErrorKind::Closed, "this locker was closed").to_string(), "this locker was closed");
    /// ```
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), key: None, code: None, retry_after: None, source: None }))
    }

    /// Adds the key it is about.
    ///
    /// ```
    /// use distributed_lock::{Error, ErrorKind, LockKey};
    ///
    /// let error = Error::new(ErrorKind::Unavailable, "no answer").with_key(&LockKey::new("orders")?);
    /// assert_eq!(error.key().unwrap().as_str(), "orders");
    /// # Ok::<(), distributed_lock::InvalidInput>(())
    /// ```
    #[must_use]
    pub fn with_key(mut self, key: &LockKey) -> Self {
        self.0.key = Some(key.clone());
        self
    }

    /// Adds the store's own code, such as an SQLSTATE.
    ///
    /// ```
    /// use distributed_lock::{Error, ErrorKind};
    ///
    /// assert_eq!(Error::new(ErrorKind::Denied, "refused").with_code("28P01").code(), Some("28P01"));
    /// ```
    #[must_use]
    pub fn with_code(mut self, code: impl Into<Cow<'static, str>>) -> Self {
        self.0.code = Some(code.into());
        self
    }

    /// Adds when it makes sense to try again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{Error, ErrorKind};
    ///
    /// let error = Error::new(ErrorKind::CircuitOpen, "the breaker is open").with_retry_after(Duration::from_secs(5));
    /// assert_eq!(error.retry_after(), Some(Duration::from_secs(5)));
    /// ```
    #[must_use]
    pub fn with_retry_after(mut self, pause: Duration) -> Self {
        self.0.retry_after = Some(pause);
        self
    }

    /// Adds what caused it.
    ///
    /// ```
    /// use std::error::Error as _;
    /// use distributed_lock::{Error, ErrorKind};
    ///
    /// assert!(Error::new(ErrorKind::Other, "odd answer").with_source("got 3 rows").source().is_some());
    /// ```
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The kind.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{ErrorKind, LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let refused = MemoryLocker::new().try_acquire("", Duration::from_secs(30)).await.unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    /// # Ok(()) }
    /// ```
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The key it is about, if known. Printed with the message, quoted and escaped.
    pub fn key(&self) -> Option<&LockKey> {
        self.0.key.as_ref()
    }

    /// The store's own code, such as an SQLSTATE.
    pub fn code(&self) -> Option<&str> {
        self.0.code.as_deref()
    }

    /// When to try again; `None` if trying again is pointless or the moment is unknown.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Nothing is held and the same call may succeed later.
    ///
    /// ```
    /// use distributed_lock::{Error, ErrorKind};
    ///
    /// assert!(Error::new(ErrorKind::Unavailable, "no answer").is_retryable());
    /// assert!(!Error::new(ErrorKind::Indeterminate, "no answer").is_retryable());
    /// ```
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind(), ErrorKind::CircuitOpen | ErrorKind::LimitReached | ErrorKind::Unavailable)
    }
}

/// With everything it carries, for logs.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, message, key, code, retry_after, source } = &*self.0;
        f.debug_struct("Error")
            .field("kind", kind)
            .field("message", message)
            .field("key", key)
            .field("code", code)
            .field("retry_after", retry_after)
            .field("source", source)
            .finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match &self.0.key {
            Some(key) => write!(f, " (lock {key:?})"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<Contention> for Error {
    fn from(contention: Contention) -> Self {
        Self::new(ErrorKind::Contended, "the lock was not acquired").with_source(contention)
    }
}

impl From<InvalidInput> for Error {
    fn from(invalid: InvalidInput) -> Self {
        Self::new(ErrorKind::InvalidInput, "invalid input").with_source(invalid)
    }
}

impl From<Loss> for Error {
    fn from(loss: Loss) -> Self {
        Self::new(ErrorKind::Lost, "the lock is no longer held").with_source(loss)
    }
}

/// So that an already parsed key or TTL fits where one is parsed.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl<T> From<ScopedError<T>> for Error {
    fn from(failed: ScopedError<T>) -> Self {
        failed.error
    }
}

/// Values that break a rule, found at construction: a key, a TTL, a setting. One as a rule, or all that a configuration has.
///
/// ```
/// use distributed_lock::LockKey;
///
/// assert!(LockKey::new("").unwrap_err().to_string().contains("must be 1 to 512 bytes long"));
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InvalidInput(Box<[Fault]>);

#[derive(Clone, Debug, Eq, PartialEq)]
struct Fault {
    what: Box<str>,
    /// The value and the rule.
    why: Box<str>,
}

impl InvalidInput {
    /// Names what it is, the value (no secret, no lock name) and the rule.
    ///
    /// ```
    /// use distributed_lock::InvalidInput;
    ///
    /// let invalid = InvalidInput::new("pool size", 0, "must be at least 1");
    /// assert_eq!(invalid.to_string(), "invalid pool size (0): must be at least 1");
    /// ```
    pub fn new(what: &str, value: impl fmt::Display, rule: &str) -> Self {
        Self(Box::new([Fault { what: what.into(), why: format!("({value}): {rule}").into() }]))
    }

    /// One error that names each of these faults once, or none if there are none.
    ///
    /// # Errors
    /// If there is a fault.
    ///
    /// ```
    /// use distributed_lock::InvalidInput;
    ///
    /// let faults = ["a", "b"].map(|field| InvalidInput::new(field, 0, "must be at least 1"));
    /// assert_eq!(
    ///     InvalidInput::all(faults).unwrap_err().to_string(),
    ///     "invalid configuration (2 faults): invalid a (0): must be at least 1; invalid b (0): must be at least 1",
    /// );
    /// assert!(InvalidInput::all([]).is_ok());
    /// ```
    pub fn all(faults: impl IntoIterator<Item = Self>) -> Result<(), Self> {
        let mut each = Vec::<Fault>::new();
        for fault in faults.into_iter().flat_map(|invalid| invalid.0) {
            if !each.contains(&fault) {
                each.push(fault);
            }
        }
        if each.is_empty() { Ok(()) } else { Err(Self(each.into())) }
    }

    /// The same, found in this part of a configuration. A field's name joins with a dot, words with a colon.
    ///
    /// ```
    /// use distributed_lock::InvalidInput;
    ///
    /// let field = InvalidInput::new("pool_size", 0, "must be at least 1").under("postgres");
    /// assert_eq!(field.to_string(), "invalid postgres.pool_size (0): must be at least 1");
    /// let words = InvalidInput::new("connection parameter port", 0, "must be at least 1").under("url").under("postgres");
    /// assert_eq!(words.to_string(), "invalid postgres.url: connection parameter port (0): must be at least 1");
    /// ```
    #[must_use]
    pub fn under(mut self, part: &str) -> Self {
        for Fault { what, .. } in &mut self.0 {
            let is_path = what.split_once(' ').is_none_or(|(first, _words)| first.ends_with(':'));
            *what = format!("{part}{}{what}", if is_path { "." } else { ": " }).into();
        }
        self
    }
}

/// The faults stand in one line.
impl fmt::Display for InvalidInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() > 1 {
            write!(f, "invalid configuration ({} faults): ", self.0.len())?;
        }
        for (index, Fault { what, why }) in self.0.iter().enumerate() {
            write!(f, "{}invalid {what} {why}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl StdError for InvalidInput {}

/// A scoped run that did not end well, with the body's value if the body ran to its end.
///
/// ```
/// use distributed_lock::{ErrorKind, LossCause, MemoryLocker, Scoped, ScopedLockerExt};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryLocker::new();
/// let locks = Scoped::new(store.peer());
/// let body = async |_hold| store.lose("orders", LossCause::SessionEnded);
/// let failed = locks.with_lock("orders", body).await.unwrap_err();
/// assert_eq!(failed.error.kind(), ErrorKind::Lost);
/// assert!(failed.value.is_some(), "the body ran to its end");
/// # Ok(()) }
/// ```
#[non_exhaustive]
pub struct ScopedError<T> {
    /// What went wrong; kind `Lost` means that exclusivity is not proven to the end.
    pub error: Error,
    /// What the body returned; `None` if it never ran.
    pub value: Option<T>,
}

impl<T> ScopedError<T> {
    /// For backends with scoped runs of their own: what went wrong, and the body's value if it ran to its end.
    pub fn new(error: impl Into<Error>, value: Option<T>) -> Self {
        Self { error: error.into(), value }
    }
}

/// Does not ask for `T: Debug`, so that `?` works into boxed errors whatever the body returns.
impl<T> fmt::Debug for ScopedError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedError").field("error", &self.error).field("ran", &self.value.is_some()).finish()
    }
}

impl<T> fmt::Display for ScopedError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> StdError for ScopedError<T> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}
