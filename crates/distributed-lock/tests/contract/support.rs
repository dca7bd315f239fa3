//! What the tests share: bounded waits, single polls, a clock that jumps, and a wrapper that counts.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Clock, Contention, Guarantees, LockGuard, LockKey,
    Locker, LockerExt, Release, Result, Scoped, TokioClock, Ttl, backend::LockHandle,
};

pub(crate) const TTL: Duration = Duration::from_secs(30);

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn scoped<L: Locker>(locker: L) -> Scoped<L> {
    Scoped::new(locker).with_ttl(Ttl::new(TTL).unwrap())
}

pub(crate) async fn take(locker: &(impl Locker + ?Sized), key: &str) -> LockGuard {
    locker.try_acquire(key, TTL).await.unwrap().acquired().unwrap()
}

/// Why a single try is refused.
pub(crate) async fn refusal(locker: &(impl Locker + ?Sized), key: &str) -> Contention {
    locker.try_acquire(key, TTL).await.unwrap().into_result().unwrap_err()
}

pub(crate) async fn is_free(locker: &(impl Locker + ?Sized), key: &str) -> bool {
    locker.try_acquire(key, TTL).await.unwrap().acquired().is_some()
}

/// Turns a hang into a failure. Costs no real time while time is paused.
pub(crate) async fn bounded<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(secs(10_000), future).await.unwrap_or_else(|_| panic!("it never ended"))
}

/// How long after `start` it is on the runtime's clock.
pub(crate) fn since(start: Instant) -> Duration {
    TokioClock.now() - start
}

/// One poll, without a runtime.
pub(crate) fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Whether a fresh view of a fact is ready now.
pub(crate) fn ready(future: impl Future) -> bool {
    poll_once(std::pin::pin!(future)).is_some()
}

/// Polls at most this often, giving other tasks a turn after each, then drops.
pub(crate) async fn poll_then_drop<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        if let Some(output) = poll_once(future.as_mut()) {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// Says when it was dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct DropTime(Arc<Mutex<Option<Instant>>>);

pub(crate) struct DropProbe(DropTime);

impl DropTime {
    pub(crate) fn probe(&self) -> DropProbe {
        DropProbe(self.clone())
    }

    pub(crate) fn get(&self) -> Option<Instant> {
        *self.0.lock().unwrap()
    }
}

impl Drop for DropProbe {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap() = Some(TokioClock.now());
    }
}

/// Work that hears nothing: it never ends by itself.
pub(crate) async fn deaf(probe: DropProbe) {
    let _probe = probe;
    std::future::pending::<()>().await;
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

/// A wrapper as an author would write it: counts how holds are given up.
#[derive(Debug)]
pub(crate) struct Counted<L> {
    pub(crate) locker: L,
    pub(crate) counts: Arc<Counts>,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    released: AtomicU32,
    abandoned: AtomicU32,
}

impl Counts {
    /// Releases and abandons.
    pub(crate) fn get(&self) -> (u32, u32) {
        (self.released.load(Ordering::SeqCst), self.abandoned.load(Ordering::SeqCst))
    }
}

impl<L> Counted<L> {
    pub(crate) fn new(locker: L) -> Self {
        Self { locker, counts: Arc::default() }
    }
}

impl<L: fmt::Display> fmt::Display for Counted<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counted({})", self.locker)
    }
}

#[async_trait]
impl<L: Locker> Backend for Counted<L> {
    fn id(&self) -> BackendId {
        self.locker.id()
    }
    fn capabilities(&self) -> Capabilities {
        self.locker.capabilities()
    }
    fn guarantees(&self) -> Guarantees {
        self.locker.guarantees()
    }
    async fn ping(&self) -> Result<()> {
        self.locker.ping().await
    }
    async fn close(&self) -> Result<()> {
        self.locker.close().await
    }
}

#[async_trait]
impl<L: Locker> Locker for Counted<L> {
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        let attempt = self.locker.acquire_opts(key, options).await?;
        let counts = Arc::clone(&self.counts);
        Ok(attempt.map(|guard| guard.map_handle(|handle| CountedHandle { handle, counts })))
    }
}

#[derive(Debug)]
struct CountedHandle {
    handle: Box<dyn LockHandle>,
    counts: Arc<Counts>,
}

#[async_trait]
impl LockHandle for CountedHandle {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        self.handle.renew(ttl).await
    }
    async fn release(&mut self) -> Result<Release> {
        let released = self.handle.release().await?;
        self.counts.released.fetch_add(1, Ordering::SeqCst);
        Ok(released)
    }
    fn abandon(&mut self) {
        self.counts.abandoned.fetch_add(1, Ordering::SeqCst);
        self.handle.abandon();
    }
}

/// A flag that several parts of a test see.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flag(Arc<AtomicBool>);

impl Flag {
    pub(crate) fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_up(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
