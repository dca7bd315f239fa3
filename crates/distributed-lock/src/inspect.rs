use std::{fmt, time::Duration};

use async_trait::async_trait;

use crate::{Backend, FencingToken, LockKey, Result};

/// Who holds a key and who waits for it, and two ways to make a holder go. For operators and their tools, beside [`Locker`] and
/// [`ScopedLocker`].
///
/// What it shows was true when the store was asked, and can have changed when you read it: never take it for an answer to whether
/// you hold a lock. Holders and waiters of other processes are shown too, also those that took the key by other means.
///
/// [`Locker`]: crate::Locker
/// [`ScopedLocker`]: crate::ScopedLocker
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use distributed_lock::{Inspect, LockKey, LockerExt, LossCause, MemoryLocker};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locker = MemoryLocker::new();
/// let guard = locker.acquire("orders", Duration::from_secs(30)).await?;
///
/// let operator: Arc<dyn Inspect> = Arc::new(locker.peer());
/// let key = LockKey::new("orders")?;
/// for holder in operator.holders(&key).await? {
///     println!("{holder}");
///     assert!(operator.end_holder(&key, &holder).await?);
/// }
/// assert_eq!(guard.lost().await.cause(), LossCause::SessionEnded);
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Inspect: Backend {
    /// Who holds the key now; more than one only where somebody shares it by other means. Cancel safe.
    ///
    /// # Errors
    /// Any kind but `Contended` and `Lost`, when the store could not be asked.
    async fn holders(&self, key: &LockKey) -> Result<Vec<Holder>>;

    /// Who waits for the key in the store, the next one first where the store knows. Those that wait in their own process, for a
    /// connection or until they ask again, are not seen. Cancel safe.
    ///
    /// # Errors
    /// As [`holders`](Self::holders).
    async fn waiters(&self, key: &LockKey) -> Result<Vec<Waiter>>;

    /// Takes the key from this holder by ending the session that owns it, with everything else that the session owns; whether it
    /// was there to be ended. Its process is told as of any loss. Never ends another session than this one: a holder that came
    /// after it stays.
    ///
    /// The work under the lock may still be running: whoever gets the key next can overlap with it, as after any loss.
    ///
    /// Cancel safe: it was sent, or it was not.
    ///
    /// # Errors
    /// `Denied` when the store does not let this user end it, with what would; `InvalidInput` for a holder that another kind of
    /// locker named; otherwise as [`holders`](Self::holders).
    async fn end_holder(&self, key: &LockKey, holder: &Holder) -> Result<bool>;

    /// Asks whoever holds the key to step down; whether somebody held it. A holder hears it through
    /// [`Hold::step_down_requested`](crate::Hold::step_down_requested) and decides for itself. One that does not listen, or whose
    /// process is not reached just then, does not hear it: look whether it went, and ask again.
    ///
    /// Cancel safe: it was sent, or it was not.
    ///
    /// # Errors
    /// As [`holders`](Self::holders).
    async fn request_step_down(&self, key: &LockKey) -> Result<bool>;
}

/// What the store calls the owner of a lock. Opaque, never used twice, and text, so that an operator can copy it from one command
/// to the next.
///
/// ```
/// use distributed_lock::SessionId;
///
/// assert_eq!(SessionId::new("4711").to_string(), "4711");
/// ```
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct SessionId(String);

impl SessionId {
    /// The session that the store calls so.
    ///
    /// ```
    /// use distributed_lock::{Holder, SessionId};
    ///
    /// let copied_from_a_list = Holder::new(SessionId::new("4711"));
    /// # let _ = copied_from_a_list;
    /// ```
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// Its text.
    ///
    /// ```
    /// assert_eq!(distributed_lock::SessionId::new("4711").as_str(), "4711");
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Somebody who holds a key. A field is `None` where the store does not know it or does not show it to us.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Holder {
    /// The session that owns the lock.
    pub session: SessionId,
    /// How long it has held the key, by the store's clock; where the store keeps no time of a grant, at most how long.
    pub held_for: Option<Duration>,
    /// What its program calls itself.
    pub application_name: Option<String>,
    /// Where its program runs, as the store sees it: an address as a rule.
    pub host: Option<String>,
    /// The process id of its program.
    pub process: Option<u32>,
    /// The token minted with its grant.
    pub fencing_token: Option<FencingToken>,
}

impl Holder {
    /// One of which nothing is known but its session; fill the public fields.
    ///
    /// ```
    /// use distributed_lock::{Holder, SessionId};
    ///
    /// let mut holder = Holder::new(SessionId::new("4711"));
    /// holder.application_name = Some("billing".into());
    /// assert_eq!(holder.to_string(), r#""billing" holds it, session 4711"#);
    /// ```
    pub fn new(session: SessionId) -> Self {
        Self { session, held_for: None, application_name: None, host: None, process: None, fencing_token: None }
    }
}

/// One line; what programs call themselves is escaped.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_program(f, self.application_name.as_deref(), self.host.as_deref(), self.process)?;
        f.write_str(" holds it")?;
        self.held_for.iter().try_for_each(|held_for| write!(f, " for {held_for:?}"))?;
        write!(f, ", session {}", self.session)
    }
}

/// Somebody who waits for a key. A field is `None` where the store does not know it or does not show it to us.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Waiter {
    /// The session that wants the lock.
    pub session: SessionId,
    /// How long it has waited in the store's queue, by the store's clock.
    pub waiting_for: Option<Duration>,
    /// What its program calls itself.
    pub application_name: Option<String>,
    /// Where its program runs, as the store sees it: an address as a rule.
    pub host: Option<String>,
    /// The process id of its program.
    pub process: Option<u32>,
}

impl Waiter {
    /// One of which nothing is known but its session; fill the public fields.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{SessionId, Waiter};
    ///
    /// let mut waiter = Waiter::new(SessionId::new("4712"));
    /// waiter.waiting_for = Some(Duration::from_secs(2));
    /// assert_eq!(waiter.to_string(), "a program without a name waits for 2s, session 4712");
    /// ```
    pub fn new(session: SessionId) -> Self {
        Self { session, waiting_for: None, application_name: None, host: None, process: None }
    }
}

/// One line; what programs call themselves is escaped.
impl fmt::Display for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_program(f, self.application_name.as_deref(), self.host.as_deref(), self.process)?;
        f.write_str(" waits")?;
        self.waiting_for.iter().try_for_each(|waiting_for| write!(f, " for {waiting_for:?}"))?;
        write!(f, ", session {}", self.session)
    }
}

fn write_program(
    f: &mut fmt::Formatter<'_>,
    application_name: Option<&str>,
    host: Option<&str>,
    process: Option<u32>,
) -> fmt::Result {
    match application_name {
        Some(name) => write!(f, "{name:?}")?,
        None => f.write_str("a program without a name")?,
    }
    host.iter().try_for_each(|host| write!(f, " on {}", host.escape_debug()))?;
    process.iter().try_for_each(|process| write!(f, " in process {process}"))
}
