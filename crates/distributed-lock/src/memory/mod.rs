use std::{fmt, sync::Arc};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::{
    AcquireOptions, Attempt, Backend, BackendId, Bound, Capabilities, Cleanup, Clock, Contention, Error, ErrorKind,
    Expiry, Fairness, Fencing, FencingStrength, Guarantees, LockKey, Locker, Reach, Result, TokioClock,
    answered::store_answered, clock::sleep_or_forever, telemetry::call::tell_waiting,
};

mod controls;
mod handle;
mod inspect;
mod store;

use controls::Faults;
use store::{Grant, Look, Place, Program, Store};

/// Locks in this process: first come, first served, with TTLs and fencing tokens. For tests, and for programs of one process.
///
/// Two lockers contend if they share a store: make the second with [`peer`](Self::peer). Time is tokio's, so paused time makes
/// every run the same.
///
/// # Controls for tests
/// [`hold`](Self::hold) and [`lose`](Self::lose) act on the store, whoever holds; [`fail_next`](Self::fail_next) and
/// [`delay`](Self::delay) act on this locker's own calls.
#[derive(Debug)]
pub struct MemoryLocker {
    store: Arc<Store>,
    id: BackendId,
    program: Program,
    faults: Arc<Faults>,
    closed: watch::Sender<bool>,
}

impl MemoryLocker {
    /// A locker with a store of its own.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = MemoryLocker::new().acquire("orders", Duration::from_secs(30)).await?;
    /// assert!(guard.fencing_token().is_some());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(TokioClock)
    }

    /// The same, on another clock. Timers stay tokio's.
    ///
    /// ```
    /// use distributed_lock::{MemoryLocker, SystemClock};
    ///
    /// let locker = MemoryLocker::with_clock(SystemClock);
    /// ```
    #[must_use]
    pub fn with_clock(clock: impl Clock) -> Self {
        Self::on(Arc::new(Store::new(Arc::new(clock))))
    }

    /// Another locker on the same store, as another process would have it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let ours = MemoryLocker::new();
    /// let theirs = ours.peer();
    /// let _guard = ours.acquire("orders", Duration::from_secs(30)).await?;
    /// assert!(theirs.try_acquire("orders", Duration::from_secs(30)).await?.is_contended());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn peer(&self) -> Self {
        Self::on(Arc::clone(&self.store))
    }

    /// The same, called so by [`Inspect`](crate::Inspect), as other stores call it by the name of its program.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::{Inspect, LockKey, LockerExt, MemoryLocker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let billing = MemoryLocker::new().with_application_name("billing");
    /// let _guard = billing.acquire("orders", Duration::from_secs(30)).await?;
    /// let holders = billing.peer().holders(&LockKey::new("orders")?).await?;
    /// assert_eq!(holders[0].application_name.as_deref(), Some("billing"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_application_name(mut self, name: impl Into<String>) -> Self {
        self.program = Some(name.into().into());
        self
    }

    fn on(store: Arc<Store>) -> Self {
        Self { store, id: BackendId::fresh(), program: None, faults: Arc::default(), closed: watch::Sender::new(false) }
    }

    fn ensure_open(&self) -> Result<()> {
        match *self.closed.borrow() {
            true => Err(Error::new(ErrorKind::Closed, "this locker was closed")),
            false => Ok(()),
        }
    }

    /// Looks at the key, unless this locker is closed. The check is under the store's lock, which `close` takes after it has set
    /// the flag: so a grant is either refused here or ended there.
    fn look(&self, grant: &Grant<'_>, place: Option<&Place<'_>>) -> Result<Look> {
        let mut state = self.store.lock();
        self.ensure_open()?;
        Ok(state.look(grant, place))
    }

    fn grant<'a>(&'a self, key: &'a LockKey, options: &'a AcquireOptions) -> Grant<'a> {
        Grant { store: &self.store, locker: self.id, program: &self.program, faults: &self.faults, key, options }
    }
}

impl Default for MemoryLocker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for MemoryLocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

#[async_trait]
impl Backend for MemoryLocker {
    fn id(&self) -> BackendId {
        self.id
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fairness: Fairness::Fifo,
            fencing: FencingStrength::Volatile,
            until_released: true,
            step_down: true,
            ..Capabilities::new(Expiry::Store, Reach::Process)
        }
    }

    fn guarantees(&self) -> Guarantees {
        const AT_ONCE: Bound = Bound::Within(std::time::Duration::ZERO);
        Guarantees {
            detection: AT_ONCE,
            overlap: AT_ONCE,
            cleanup: Cleanup { live: AT_ONCE, cut_waiter: AT_ONCE, ..Cleanup::NONE },
            takeover_released: AT_ONCE,
            takeover_killed: AT_ONCE,
            notes: vec![
                "bounds exclude the time in which the runtime does not poll".into(),
                "a task that hangs keeps its key until its TTL ends".into(),
            ],
            ..Guarantees::NONE
        }
    }

    async fn ping(&self) -> Result<()> {
        self.ensure_open()?;
        self.faults.strike().await
    }

    async fn close(&self) -> Result<()> {
        self.closed.send_replace(true);
        self.store.lock().close(self.id);
        Ok(())
    }
}

#[async_trait]
impl Locker for MemoryLocker {
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        self.ensure_open()?;
        let give_up = options.wait.budget().and_then(|budget| self.store.clock.now().checked_add(budget));
        self.faults.strike().await?;
        store_answered();
        let grant = self.grant(key, options);
        if options.wait.is_try() {
            return Ok(match self.look(&grant, None)? {
                Look::Ours(guard) => Attempt::Acquired(guard),
                Look::Held { here, .. } => Attempt::Contended(held(here)),
            });
        }
        let mut closed = self.closed.subscribe();
        let place = Place::queue(&self.store, &self.program, key);
        loop {
            let free_at = match self.look(&grant, Some(&place))? {
                Look::Ours(guard) => return Ok(Attempt::Acquired(guard)),
                Look::Held { free_at, here } => {
                    tell_waiting(&held(here));
                    free_at
                }
            };
            let now = self.store.clock.now();
            if give_up.is_some_and(|give_up| now >= give_up) {
                return Ok(Attempt::Contended(Contention::WaitElapsed));
            }
            let pause = [free_at, give_up].into_iter().flatten().min().map(|at| at.saturating_duration_since(now));
            // All arms are cancel safe: a wake-up is kept by its `Notify`, the rest is looked at anew.
            tokio::select! {
                () = place.woken() => {}
                _ = closed.changed() => {}
                () = sleep_or_forever(pause) => {}
            }
        }
    }
}

const fn held(here: bool) -> Contention {
    if here { Contention::HeldHere } else { Contention::Held }
}

/// The store mints a token for every grant; a caller that wants none is not shown it.
fn shows_token(options: &AcquireOptions) -> bool {
    options.fencing != Fencing::Off
}
