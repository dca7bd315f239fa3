use std::{
    any::Any,
    fmt,
    future::{Future, pending},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::{BackendId, Clock, Error, FencingToken, LockKey, Loss, LossCause, Result, clock::sleep_or_forever};

/// A read-only view of one hold: what a body, a job or a watcher gets. Cheap to clone; does not keep the lock.
///
/// All its answers come from memory and the clock: none of its methods talks to the store or waits for it.
///
/// ```
/// use distributed_lock::{Hold, MemoryLocker, Scoped, ScopedLockerExt};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// async fn charge(hold: &Hold) -> distributed_lock::Result<u32> {
///     hold.ensure_valid()?; // before the side effect
///     Ok(42)
/// }
///
/// let locks = Scoped::new(MemoryLocker::new());
/// assert_eq!(locks.with_lock("orders", async |hold| charge(&hold).await).await??, 42);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Hold(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) locker: BackendId,
    pub(crate) key: LockKey,
    pub(crate) fencing_token: Option<FencingToken>,
    pub(crate) value: Option<Arc<dyn Any + Send + Sync>>,
    pub(crate) since: Instant,
    pub(crate) clock: Arc<dyn Clock>,
    // A std mutex: never held across an await. Cheaper than a watch channel, which every grant and release would pay for.
    pub(crate) state: Mutex<State>,
    pub(crate) changed: Notify,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes everybody who watches if the change says that it was one.
    pub(crate) fn modify(&self, change: impl FnOnce(&mut State) -> bool) -> bool {
        let mut state = self.state();
        let changed = change(&mut state);
        let watched = state.watched;
        drop(state);
        if changed && watched {
            self.changed.notify_waiters();
        }
        changed
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) deadline: Option<Instant>,
    pub(crate) max_grace: Option<Duration>,
    pub(crate) step_down: bool,
    pub(crate) cancelled: bool,
    /// Somebody has watched it: most are not, and telling costs.
    pub(crate) watched: bool,
    pub(crate) end: Option<Loss>,
}

impl State {
    /// Half-open: at the deadline instant it is over for us and free for others.
    pub(crate) fn end(&self, now: Instant) -> Option<Loss> {
        let passed = || self.deadline.filter(|deadline| now >= *deadline);
        self.end.clone().or_else(|| passed().map(|deadline| Loss::new(LossCause::DeadlinePassed).stamped(deadline)))
    }
}

enum Check<T> {
    Ready(T),
    LookAgain(Option<Instant>),
}

impl Hold {
    /// The key.
    ///
    /// ```
    /// use distributed_lock::MemoryLocker;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// assert_eq!(MemoryLocker::new().hold("orders")?.hold().key().as_str(), "orders");
    /// # Ok(()) }
    /// ```
    pub fn key(&self) -> &LockKey {
        &self.0.key
    }

    /// The token minted with this grant, where one was.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = MemoryLocker::new().acquire("orders", Duration::from_secs(30)).await?;
    /// println!("update .. where fence <= {}", guard.hold().fencing_token().ok_or("this locker mints none")?);
    /// # Ok(()) }
    /// ```
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.0.fencing_token
    }

    /// What the backend attached to this grant, if it is of this type. Passes through every wrapper; backends build their own
    /// features on it.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{BackendId, LockKey, SystemClock, backend::HoldRecord};
    ///
    /// let record = HoldRecord::draft(BackendId::fresh(), LockKey::new("orders")?, Arc::new(SystemClock))
    ///     .with_value(Arc::new(String::from("session 7")))
    ///     .open();
    /// assert_eq!(*record.hold().backend_value::<String>().unwrap(), "session 7");
    /// assert!(record.hold().backend_value::<u32>().is_none());
    /// # Ok::<(), distributed_lock::InvalidInput>(())
    /// ```
    pub fn backend_value<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.value.as_ref()?).downcast().ok()
    }

    /// How long ago it was granted.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::MemoryLocker;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = MemoryLocker::new().hold("orders")?;
    /// tokio::time::advance(Duration::from_secs(5)).await; // paused time
    /// assert_eq!(guard.hold().age(), Duration::from_secs(5));
    /// # Ok(()) }
    /// ```
    pub fn age(&self) -> Duration {
        self.now().saturating_duration_since(self.0.since)
    }

    /// What is left until the deadline, zero when over; `None` while it has no deadline.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = MemoryLocker::new().acquire("orders", Duration::from_secs(30)).await?;
    /// tokio::time::advance(Duration::from_secs(20)).await; // paused time
    /// assert_eq!(guard.hold().remaining(), Some(Duration::from_secs(10)));
    /// # Ok(()) }
    /// ```
    pub fn remaining(&self) -> Option<Duration> {
        let now = self.now();
        let state = self.0.state();
        if state.end(now).is_some() {
            return Some(Duration::ZERO);
        }
        state.deadline.map(|deadline| deadline.saturating_duration_since(now))
    }

    /// `Ok` while we can prove that it is ours. Synchronous and cheap: call it before every side effect.
    ///
    /// Right even when timers are late, as after a suspend, because it reads the clock itself.
    ///
    /// # Errors
    /// Kind `Lost`, with the [`Loss`] as its source.
    ///
    /// ```
    /// use distributed_lock::{ErrorKind, LossCause, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = MemoryLocker::new();
    /// let guard = locker.hold("orders")?;
    /// guard.hold().ensure_valid()?;
    /// locker.lose("orders", LossCause::SessionEnded)?;
    /// assert_eq!(guard.hold().ensure_valid().unwrap_err().kind(), ErrorKind::Lost);
    /// # Ok(()) }
    /// ```
    pub fn ensure_valid(&self) -> Result<()> {
        self.end().map_or(Ok(()), |loss| Err(Error::from(loss).with_key(self.key())))
    }

    /// Completes when the hold is lost, with the cause; never after a release. Owned, so it can be spawned.
    ///
    /// Cancel safe. After a suspend it may fire late; `ensure_valid` does not.
    ///
    /// ```
    /// use distributed_lock::{LossCause, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = MemoryLocker::new();
    /// let guard = locker.hold("orders")?;
    /// let watch = tokio::spawn(guard.hold().lost());
    /// locker.lose("orders", LossCause::SessionEnded)?;
    /// assert_eq!(watch.await?.cause(), LossCause::SessionEnded);
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        let watched = self.clone().watch(|state, now| match state.end(now) {
            Some(loss) => Check::Ready(loss),
            None => Check::LookAgain(state.deadline),
        });
        async move {
            match watched.await {
                loss if loss.cause() == LossCause::Released => pending().await,
                loss => loss,
            }
        }
    }

    /// Completes when the work under this hold must end: it is lost, or [`LockGuard::run`](crate::LockGuard::run) needs what is
    /// left before the deadline as the grace of its work. Never after a release. Cancel safe.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{LockerExt, MemoryLocker, Ran};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = MemoryLocker::new();
    /// let mut guard = locker.acquire("orders", Duration::from_secs(8)).await?;
    /// let hold = guard.hold();
    /// locker.delay(Duration::from_secs(3600)); // renewals get no answer
    /// let work = async {
    ///     tokio::select! {
    ///         () = hold.cancelled() => "wound down in time",
    ///         () = tokio::time::sleep(Duration::from_secs(60)) => "finished",
    ///     }
    /// };
    /// assert!(matches!(guard.run(Duration::from_secs(2), work).await?, Ran::Done("wound down in time")));
    /// # Ok(()) }
    /// ```
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + use<> {
        let watched = self.clone().watch(|state, now| match state.end(now) {
            Some(loss) => Check::Ready(loss.cause() == LossCause::Released),
            None if state.cancelled => Check::Ready(false),
            None => Check::LookAgain(state.deadline),
        });
        async move {
            if watched.await {
                pending().await
            }
        }
    }

    /// Completes when at most `margin` is left before the deadline. Cancel safe.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = MemoryLocker::new().acquire("orders", Duration::from_secs(30)).await?;
    /// guard.hold().near_deadline(Duration::from_secs(10)).await;
    /// assert_eq!(guard.remaining(), Some(Duration::from_secs(10)));
    /// # Ok(()) }
    /// ```
    pub fn near_deadline(&self, margin: Duration) -> impl Future<Output = ()> + Send + use<> {
        self.clone().watch(move |state, now| match state.deadline {
            Some(deadline) if deadline.saturating_duration_since(now) <= margin => Check::Ready(()),
            deadline => Check::LookAgain(deadline.and_then(|deadline| deadline.checked_sub(margin))),
        })
    }

    /// Completes when somebody who waits asked us to step down. A courtesy: nothing is taken away. Cancel safe.
    ///
    /// ```
    /// use distributed_lock::{AcquireOptions, LockKey, Locker, MemoryLocker, Ttl};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = MemoryLocker::new();
    /// let guard = locker.hold("orders")?;
    /// let asking = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_step_down_request();
    /// assert!(locker.acquire_opts(&LockKey::new("orders")?, &asking).await?.is_contended());
    /// guard.hold().step_down_requested().await;
    /// # Ok(()) }
    /// ```
    pub fn step_down_requested(&self) -> impl Future<Output = ()> + Send + use<> {
        self.clone().watch(|state, _| if state.step_down { Check::Ready(()) } else { Check::LookAgain(None) })
    }

    /// The locker that granted it.
    pub(crate) fn locker(&self) -> BackendId {
        self.0.locker
    }

    /// How it ended, if it has.
    pub(crate) fn end(&self) -> Option<Loss> {
        let state = self.0.state();
        match (&state.end, state.deadline) {
            // Most are asked after a release: then no clock is read.
            (Some(end), _) => Some(end.clone()),
            (None, None) => None,
            (None, Some(_)) => state.end(self.now()),
        }
    }

    /// The loss, if it was lost.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.end().filter(|loss| loss.cause() != LossCause::Released)
    }

    /// How long after the loss it is now.
    pub(crate) fn overrun(&self, loss: &Loss) -> Duration {
        loss.at().map_or(Duration::ZERO, |at| self.now().saturating_duration_since(at))
    }

    /// The longest grace that fits between a renewal that fails and the deadline; `None` is any.
    pub(crate) fn max_grace(&self) -> Option<Duration> {
        self.0.state().max_grace
    }

    /// What is left until the deadline, whether or not the hold was lost before it.
    pub(crate) fn until_deadline(&self) -> Option<Duration> {
        let now = self.now();
        self.0.state().deadline.map(|deadline| deadline.saturating_duration_since(now))
    }

    /// Tells the work to end, or that new work has not been told yet.
    pub(crate) fn set_cancelled(&self, cancelled: bool) {
        self.0.modify(|state| std::mem::replace(&mut state.cancelled, cancelled) != cancelled);
    }

    /// Ends it once; the first end stays.
    pub(crate) fn finish(&self, loss: Loss) {
        let now = self.now();
        self.0.modify(|state| {
            let first = state.end.is_none();
            if first {
                state.end = Some(state.end(now).unwrap_or_else(|| loss.stamped(now)));
            }
            first
        });
    }

    pub(crate) fn now(&self) -> Instant {
        self.0.clock.now()
    }

    async fn watch<T>(self, check: impl Fn(&State, Instant) -> Check<T>) -> T {
        loop {
            // Made before the look, so that no change between look and wait is missed.
            let changed = self.0.changed.notified();
            let now = self.now();
            // A named step, so that the lock ends before the await.
            let checked = {
                let mut state = self.0.state();
                state.watched = true;
                check(&state, now)
            };
            let look_again = match checked {
                Check::Ready(value) => return value,
                Check::LookAgain(at) => at.map(|at| at.saturating_duration_since(now)),
            };
            // Both arms are cancel safe: the state is looked at again, and the sleep computed anew.
            tokio::select! {
                () = changed => {}
                () = sleep_or_forever(look_again) => {}
            }
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { key, fencing_token, .. } = &*self.0;
        f.debug_struct("Hold")
            .field("key", key)
            .field("fencing_token", fencing_token)
            .field("state", &*self.0.state())
            .finish()
    }
}
