use std::{error::Error as _, fmt, future::Future, time::Duration};

use crate::{
    Error, ErrorKind, FencingToken, Hold, InvalidInput, LockKey, Loss, LossCause, Result, Ttl, backend::LockHandle,
    task,
};

/// Yours while it lives. Dropping it gives the lock up promptly and needs no runtime; `release` also says how it went.
///
/// Deliberately neither `Clone` nor `Deref`: what can be passed around is its [`Hold`], which does not keep the lock.
///
/// ```
/// use std::time::Duration;
/// use distributed_lock::{LockerExt, MemoryLocker};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let guard = MemoryLocker::new().acquire("orders", Duration::from_secs(30)).await?;
/// guard.ensure_valid()?;
/// guard.release().await?.exclusive()?;
/// # Ok(()) }
/// ```
#[must_use = "dropping a LockGuard gives the lock up"]
pub struct LockGuard {
    hold: Hold,
    ttl: Ttl,
    handle: Option<Box<dyn LockHandle>>,
}

/// How a hold ended.
#[derive(Clone, Debug)]
#[must_use = "a release can find that the lock had been lost"]
pub enum Release {
    /// Held to the end, and free now.
    Released,
    /// It had ended before, but nobody else had it in between.
    Lapsed(Loss),
    /// It had ended before, and somebody may have had it since.
    Lost(Loss),
}

impl Release {
    /// `Ok` if nobody else can have held the lock before our release.
    ///
    /// # Errors
    /// The [`Loss`], when somebody else may have held it.
    ///
    /// ```
    /// use distributed_lock::{LossCause, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = MemoryLocker::new();
    /// let guard = locker.hold("orders")?;
    /// locker.lose("orders", LossCause::SessionEnded)?;
    /// assert_eq!(guard.release().await?.exclusive().unwrap_err().cause(), LossCause::SessionEnded);
    /// # Ok(()) }
    /// ```
    pub fn exclusive(self) -> Result<(), Loss> {
        match self {
            Self::Released | Self::Lapsed(_) => Ok(()),
            Self::Lost(loss) => Err(loss),
        }
    }
}

/// How work under a guard ended.
#[derive(Debug)]
#[must_use = "the lock can have been lost while the work ran"]
pub enum Ran<T> {
    /// The work ended while the lock was held.
    Done(T),
    /// The lock was lost first.
    Lost {
        /// What the work returned, if it ended within the grace; otherwise it was dropped.
        value: Option<T>,
        /// Why the lock was lost.
        loss: Loss,
        /// How long the work ran on after the loss, its drop included.
        overrun: Duration,
    },
}

impl LockGuard {
    /// For backends: a guard over a fresh hold. Make it before the first await after the grant.
    pub fn new(hold: Hold, ttl: Ttl, handle: impl LockHandle + 'static) -> Self {
        Self { hold, ttl, handle: Some(Box::new(handle)) }
    }

    /// For wrappers: puts the handle into another.
    pub fn map_handle<H: LockHandle + 'static>(mut self, wrap: impl FnOnce(Box<dyn LockHandle>) -> H) -> Self {
        self.handle = self.handle.take().map(|handle| Box::new(wrap(handle)) as _);
        self
    }

    /// A view to pass around.
    ///
    /// ```
    /// use distributed_lock::MemoryLocker;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = MemoryLocker::new().hold("orders")?;
    /// let view = guard.hold();
    /// tokio::spawn(async move { println!("held for {:?}", view.age()) }).await?;
    /// # Ok(()) }
    /// ```
    pub fn hold(&self) -> Hold {
        self.hold.clone()
    }

    /// See [`Hold::key`].
    pub fn key(&self) -> &LockKey {
        self.hold.key()
    }

    /// See [`Hold::fencing_token`].
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.hold.fencing_token()
    }

    /// See [`Hold::lost`]. Cancel safe.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        self.hold.lost()
    }

    /// See [`Hold::ensure_valid`].
    pub fn ensure_valid(&self) -> Result<()> {
        self.hold.ensure_valid()
    }

    /// See [`Hold::remaining`].
    pub fn remaining(&self) -> Option<Duration> {
        self.hold.remaining()
    }

    /// Gives it a new TTL from now on; may shorten. A lost hold stays lost. Cancel safe: the hold then ends at the old or at the
    /// new deadline, and says the earlier one.
    ///
    /// # Errors
    /// `Lost` when it is no longer ours; `InvalidInput` for a bad TTL. Anything but `Lost` leaves the hold as it was.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut guard = MemoryLocker::new().acquire("orders", Duration::from_secs(30)).await?;
    /// guard.renew(Duration::from_secs(60)).await?;
    /// assert!(guard.remaining() > Some(Duration::from_secs(30)));
    /// # Ok(()) }
    /// ```
    pub async fn renew(&mut self, ttl: impl TryInto<Ttl, Error: Into<Error>>) -> Result<()> {
        let ttl = ttl.try_into().map_err(Into::into)?;
        if let Err(lost) = self.hold.ensure_valid() {
            // Wakes those who watch: after a suspend their timers are late.
            self.hold.finish(Loss::new(LossCause::DeadlinePassed));
            return Err(lost);
        }
        let renewed = match &mut self.handle {
            Some(handle) => handle.renew(ttl).await,
            None => Ok(()),
        };
        match &renewed {
            Ok(()) => self.ttl = ttl,
            Err(error) if error.kind() == ErrorKind::Lost => self.hold.finish(loss_of(error)),
            Err(_) => {}
        }
        renewed
    }

    /// Gives the lock up and says how the hold ended. Only the owner can; there is no second release.
    ///
    /// Cancel safe: dropped midway, the lock is freed as by dropping the guard.
    ///
    /// # Errors
    /// When the store's answer is missing; the lock is then freed as by dropping the guard.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{LockerExt, MemoryLocker, Release};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = MemoryLocker::new().acquire("orders", Duration::from_secs(30)).await?;
    /// assert!(matches!(guard.release().await?, Release::Released));
    /// # Ok(()) }
    /// ```
    pub async fn release(mut self) -> Result<Release> {
        self.hold.finish(Loss::new(LossCause::Released));
        let outcome = match &mut self.handle {
            Some(handle) => handle.release().await?,
            None => Release::Released,
        };
        self.handle = None;
        Ok(match (outcome, self.hold.loss()) {
            // Our clock saw the deadline pass, or the record knows the cause better than the answer does.
            (Release::Released | Release::Lapsed(_), Some(loss)) => Release::Lapsed(loss),
            (Release::Lost(_), Some(loss)) => Release::Lost(loss),
            (outcome, None) => outcome,
        })
    }

    /// Runs work under the lock, renewing the TTL every eighth of it meanwhile.
    ///
    /// The work is told to end through [`Hold::cancelled`]: on a loss, and at the latest `grace` before the deadline when
    /// renewals fail. Then it has `grace` to end and is dropped after that. While the store may still count us as the holder the
    /// grace ends with the deadline, so that nobody else works meanwhile. Work that cannot be dropped (`spawn_blocking`) is not
    /// bounded by this.
    ///
    /// Cancel safe: the work is dropped, the guard stays yours.
    ///
    /// # Errors
    /// `InvalidInput` for a grace that does not fit into the TTL beside a renewal that fails. What [`renew`](Self::renew) failed
    /// with, when too little is left to start and the store did not give more. The work has not been polled then.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{LockerExt, MemoryLocker, Ran};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut guard = MemoryLocker::new().acquire("report", Duration::from_secs(30)).await?;
    /// match guard.run(Duration::from_secs(5), async { 42 }).await? {
    ///     Ran::Done(pages) => assert_eq!(pages, 42),
    ///     Ran::Lost { value, loss, overrun } => println!("{loss}, {overrun:?} ago; finished: {}", value.is_some()),
    /// }
    /// guard.release().await?.exclusive()?;
    /// # Ok(()) }
    /// ```
    pub async fn run<T>(&mut self, grace: Duration, work: impl Future<Output = T>) -> Result<Ran<T>> {
        let hold = self.hold.clone();
        self.ensure_fits(grace)?;
        let fresh = self.freshen(grace).await;
        if let Some(loss) = hold.loss() {
            return Ok(Ran::Lost { value: None, loss, overrun: Duration::ZERO });
        }
        fresh?;
        hold.set_cancelled(false);
        let mut work = Box::pin(task::under(hold.locker(), hold.key().clone(), work));
        // All arms are cancel safe: the work is polled again below, a renewal by `LockHandle::renew`, the watches by `Hold`.
        let ending = tokio::select! {
            biased;
            value = &mut work => return Ok(Ran::ended(&hold, value)),
            loss = self.keep_alive() => Some(loss),
            () = hold.near_deadline(grace) => None,
        };
        hold.set_cancelled(true);
        let grace = match (&ending, hold.until_deadline()) {
            (None, Some(left)) => left,
            (Some(loss), Some(left)) if may_still_be_ours(loss) => grace.min(left),
            _ => grace,
        };
        match tokio::time::timeout(grace, &mut work).await {
            Ok(value) => Ok(Ran::ended(&hold, value)),
            Err(_elapsed) => {
                drop(work);
                let loss = ending.or_else(|| hold.loss());
                let loss = loss.unwrap_or_else(|| Loss::new(LossCause::DeadlinePassed).stamped(hold.now()));
                Ok(Ran::Lost { value: None, overrun: hold.overrun(&loss), loss })
            }
        }
    }

    fn ensure_fits(&self, grace: Duration) -> Result<()> {
        match self.hold.max_grace() {
            Some(limit) if grace > limit => {
                let rule = format!("must be at most {limit:?} for a TTL of {}; use a longer TTL", self.ttl);
                Err(InvalidInput::new("grace", format_args!("{grace:?}"), &rule).into())
            }
            _ => Ok(()),
        }
    }

    /// A hold that is already near its deadline would have its work told to end at once.
    async fn freshen(&mut self, grace: Duration) -> Result<()> {
        let due = match (self.ttl.duration(), self.hold.remaining()) {
            (Some(ttl), Some(left)) => left <= grace.saturating_add(ttl / 8),
            _ => false,
        };
        match due && self.hold.loss().is_none() {
            true => self.renew(self.ttl).await,
            false => Ok(()),
        }
    }

    /// Renews at an eighth of the TTL until the hold is lost. A renewal that fails for another reason is tried again, sooner.
    pub(crate) async fn keep_alive(&mut self) -> Loss {
        let mut lost = std::pin::pin!(self.hold.lost());
        let Some(ttl) = self.ttl.duration() else { return lost.await };
        let mut pause = ttl / 8;
        loop {
            let renewed = async {
                tokio::time::sleep(pause).await;
                self.renew(self.ttl).await
            };
            tokio::select! {
                biased;
                loss = &mut lost => return loss,
                renewed = renewed => pause = if renewed.is_ok() { ttl / 8 } else { ttl / 16 },
            }
        }
    }
}

/// The loss that an error of that kind tells of.
pub(crate) fn loss_of(error: &Error) -> Loss {
    let told = error.source().and_then(|source| source.downcast_ref::<Loss>());
    told.cloned().unwrap_or_else(|| Loss::new(LossCause::NotOurs))
}

/// After these the store can count us as the holder until the deadline, and lets nobody else in before it: a connection that broke says
/// nothing of what the store keeps.
pub(crate) fn may_still_be_ours(loss: &Loss) -> bool {
    matches!(loss.cause(), LossCause::DeadlinePassed | LossCause::HeartbeatTimeout | LossCause::SessionEnded)
}

impl<T> Ran<T> {
    fn ended(hold: &Hold, value: T) -> Self {
        match hold.loss() {
            None => Self::Done(value),
            Some(loss) => Self::Lost { value: Some(value), overrun: hold.overrun(&loss), loss },
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("hold", &self.hold)
            .field("ttl", &self.ttl)
            .field("handle", &self.handle)
            .finish()
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.hold.finish(Loss::new(LossCause::Released));
        if let Some(mut handle) = self.handle.take() {
            handle.abandon();
        }
    }
}
