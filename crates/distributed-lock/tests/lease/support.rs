//! What the tests share: runners over one store, logs, a locker without a queue, one whose releases hang, a clock that jumps.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Clock, Error, Fairness, Guarantees, Hold, LockGuard,
    LockKey, Locker, LockerExt, MemoryLocker, Release, Result, TokioClock, Ttl,
    backend::{HoldRecord, LockHandle, poll_until},
    lease::{LeaseConfig, LeaseRunner},
};

pub(crate) const TTL: Duration = Duration::from_secs(23);
pub(crate) const GRACE: Duration = Duration::from_secs(5);
pub(crate) const RETRY: Duration = Duration::from_secs(5);
/// h of the defaults, and how long after its last proof was sent a lease is taken as lost where answers come at once.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(2_875);
pub(crate) const UNCONFIRMED: Duration = Duration::from_millis(9_475);
pub(crate) const MS: Duration = Duration::from_millis(1);

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// One replica: a runner over a locker of its own.
pub(crate) fn replica(store: &MemoryLocker) -> LeaseRunner {
    over(store.peer(), LeaseConfig::new())
}

pub(crate) fn over(locker: impl Locker, config: LeaseConfig) -> LeaseRunner {
    LeaseRunner::new(Arc::new(locker), config).unwrap()
}

/// Turns a hang into a failure. Costs no real time while time is paused.
pub(crate) async fn bounded<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(secs(10_000), future).await.unwrap_or_else(|_| panic!("it never ended"))
}

pub(crate) fn since(start: Instant) -> Duration {
    TokioClock.now() - start
}

pub(crate) async fn is_free(store: &MemoryLocker, key: &str) -> bool {
    store.peer().try_acquire(key, TTL).await.unwrap().acquired().is_some()
}

/// What happened, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// A config whose events go here, shortened to before the first of `:` and `;`.
    pub(crate) fn hooked(&self, config: LeaseConfig) -> LeaseConfig {
        let log = self.clone();
        config.with_hook(move |event| {
            let line = event.to_string();
            log.add(line.split([':', ';']).next().unwrap());
        })
    }

    /// Adds this line when dropped, with the time since `start`.
    pub(crate) fn on_drop(&self, start: Instant) -> OnDrop {
        OnDrop { log: self.clone(), start }
    }
}

pub(crate) struct OnDrop {
    log: Log,
    start: Instant,
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.log.add(format!("dropped after {:?}", since(self.start)));
    }
}

/// Tokio's clock, but for jumps of which no timer hears, as a suspend is.
#[derive(Clone, Debug, Default)]
pub(crate) struct JumpingClock(Arc<Mutex<Duration>>);

impl JumpingClock {
    pub(crate) fn jump(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

impl Clock for JumpingClock {
    fn now(&self) -> Instant {
        TokioClock.now() + *self.0.lock().unwrap()
    }
}

type Change = fn(&mut Capabilities);
type Fail = dyn Fn() -> Option<Error> + Send + Sync;

/// The in-memory locker, less able.
pub(crate) struct Weaker {
    locker: MemoryLocker,
    change: Change,
    queues: bool,
    fail: Option<Box<Fail>>,
    release_hangs: bool,
    max_grace: Option<Duration>,
    promise: fn(&mut Guarantees),
}

impl Weaker {
    pub(crate) fn new(locker: MemoryLocker, change: Change) -> Self {
        Self { locker, change, queues: true, fail: None, release_hangs: false, max_grace: None, promise: |_| {} }
    }

    /// One that promises otherwise.
    pub(crate) fn promising(locker: MemoryLocker, promise: fn(&mut Guarantees)) -> Self {
        Self { promise, ..Self::new(locker, |_| {}) }
    }

    /// One whose waiters poll.
    pub(crate) fn polling(locker: MemoryLocker) -> Self {
        let change: Change = |can| can.fairness = Fairness::Unordered;
        Self { queues: false, ..Self::new(locker, change) }
    }

    /// One whose attempts fail while this says so.
    pub(crate) fn failing(locker: MemoryLocker, fail: impl Fn() -> Option<Error> + Send + Sync + 'static) -> Self {
        Self { fail: Some(Box::new(fail)), ..Self::new(locker, |_| {}) }
    }

    /// Called at each attempt.
    pub(crate) fn on_attempt(&mut self, fail: impl Fn() -> Option<Error> + Send + Sync + 'static) {
        self.fail = Some(Box::new(fail));
    }

    /// One whose grants allow no more than this.
    pub(crate) fn with_max_grace(self, limit: Duration) -> Self {
        Self { max_grace: Some(limit), ..self }
    }

    pub(crate) fn with_hanging_releases(locker: MemoryLocker) -> Self {
        Self { release_hangs: true, ..Self::new(locker, |_| {}) }
    }
}

impl fmt::Debug for Weaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Weaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Weaker({})", self.locker)
    }
}

#[async_trait]
impl Backend for Weaker {
    fn id(&self) -> BackendId {
        self.locker.id()
    }
    fn capabilities(&self) -> Capabilities {
        let mut can = self.locker.capabilities();
        (self.change)(&mut can);
        can
    }
    fn guarantees(&self) -> Guarantees {
        let mut promised = self.locker.guarantees();
        (self.promise)(&mut promised);
        promised
    }
    async fn ping(&self) -> Result<()> {
        self.locker.ping().await
    }
    async fn close(&self) -> Result<()> {
        self.locker.close().await
    }
}

#[async_trait]
impl Locker for Weaker {
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        if let Some(error) = self.fail.as_ref().and_then(|fail| fail()) {
            return Err(error);
        }
        let attempt = match self.queues {
            true => self.locker.acquire_opts(key, options).await?,
            false => {
                let once = options.clone().with_wait(distributed_lock::Wait::Never);
                poll_until(options.wait, || self.locker.acquire_opts(key, &once)).await?
            }
        };
        let hangs = self.release_hangs;
        if let (Some(limit), Attempt::Acquired(guard)) = (self.max_grace, &attempt) {
            return Ok(Attempt::Acquired(limited(guard.hold(), limit, attempt)));
        }
        Ok(attempt.map(|guard| guard.map_handle(|handle| Hanging { handle, hangs })))
    }
}

/// A hold of its own over the granted one.
fn limited(inner: Hold, limit: Duration, granted: Attempt) -> LockGuard {
    let deadline = inner.remaining().map(|left| TokioClock.now() + left);
    let record = HoldRecord::draft(BackendId::fresh(), inner.key().clone(), Arc::new(TokioClock))
        .with_deadline(deadline)
        .with_max_grace(Some(limit))
        .open();
    LockGuard::new(record.hold(), Ttl::new(TTL).unwrap(), Outer { guard: granted.acquired() })
}

#[derive(Debug)]
struct Outer {
    guard: Option<LockGuard>,
}

#[async_trait]
impl LockHandle for Outer {
    async fn renew(&mut self, _ttl: Ttl) -> Result<()> {
        Ok(())
    }
    async fn release(&mut self) -> Result<Release> {
        match self.guard.take() {
            Some(guard) => guard.release().await,
            None => Ok(Release::Released),
        }
    }
    fn abandon(&mut self) {
        self.guard = None;
    }
}

#[derive(Debug)]
struct Hanging {
    handle: Box<dyn LockHandle>,
    hangs: bool,
}

#[async_trait]
impl LockHandle for Hanging {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        self.handle.renew(ttl).await
    }
    async fn release(&mut self) -> Result<Release> {
        match self.hangs {
            true => std::future::pending().await,
            false => self.handle.release().await,
        }
    }
    fn abandon(&mut self) {
        self.handle.abandon();
    }
}
