//! What the tests share: a store that does as it is told, and breakers around it.

use std::{
    collections::VecDeque,
    fmt,
    future::{Future, pending},
    panic::resume_unwind,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Contention, Error, ErrorKind, Guarantees, LockGuard,
    LockKey, Locker, LockerExt, MemoryLocker, Release, Result, Scoped, ScopedLocker, ScopedOptions, TokioClock,
    backend::{ScopedBody, store_answered},
    breaker::{BreakerConfig, BreakerState, CircuitBreaker},
};
use tokio::time::sleep;

pub(crate) const TTL: Duration = Duration::from_secs(30);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// How the next acquire goes, or the next run before its body.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    Grant,
    Contended(Contention),
    Fail(ErrorKind),
    /// Fails with the store's own code.
    FailWithCode(ErrorKind),
    /// Nothing ever comes.
    Silence,
    /// The store answers, and this goes on.
    Answered(Box<Self>),
}

impl Next {
    pub(crate) fn answered(self) -> Self {
        Self::Answered(Box::new(self))
    }
}

/// How a ping goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pings {
    Well,
    WellAfter(Duration),
    Fail(ErrorKind),
    Silence,
    Panic,
}

/// An in-memory locker whose acquires and pings go as they are told.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) memory: MemoryLocker,
    script: Mutex<Script>,
}

#[derive(Debug)]
struct Script {
    next: VecDeque<Next>,
    /// Once nothing is next.
    always: Next,
    pings: Pings,
    pinged: u32,
    asked: u32,
}

impl Store {
    pub(crate) fn new() -> Self {
        let script = Script { next: VecDeque::new(), always: Next::Grant, pings: Pings::Well, pinged: 0, asked: 0 };
        Self { memory: MemoryLocker::new(), script: Mutex::new(script) }
    }

    pub(crate) fn next(&self, next: Next) {
        self.script.lock().unwrap().next.push_back(next);
    }

    pub(crate) fn always(&self, next: Next) {
        self.script.lock().unwrap().always = next;
    }

    pub(crate) fn pings(&self, pings: Pings) {
        self.script.lock().unwrap().pings = pings;
    }

    /// How many pings were begun.
    pub(crate) fn pinged(&self) -> u32 {
        self.script.lock().unwrap().pinged
    }

    /// How many acquires and runs reached it.
    pub(crate) fn asked(&self) -> u32 {
        self.script.lock().unwrap().asked
    }

    fn take(&self) -> Next {
        let mut script = self.script.lock().unwrap();
        script.asked += 1;
        script.next.pop_front().unwrap_or_else(|| script.always.clone())
    }

    /// What stands before a grant; nothing if it may come.
    async fn before(&self) -> Result<Option<Contention>> {
        let mut next = self.take();
        while let Next::Answered(then) = next {
            store_answered();
            next = *then;
        }
        match next {
            Next::Grant => Ok(None),
            Next::Contended(why) => Ok(Some(why)),
            Next::Fail(kind) => Err(Error::new(kind, "as told")),
            Next::FailWithCode(kind) => Err(Error::new(kind, "as told").with_code("42501")),
            Next::Silence | Next::Answered(_) => pending().await,
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}

#[async_trait]
impl Backend for Store {
    fn id(&self) -> BackendId {
        self.memory.id()
    }
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }
    fn guarantees(&self) -> Guarantees {
        self.memory.guarantees()
    }
    async fn ping(&self) -> Result<()> {
        let pings = {
            let mut script = self.script.lock().unwrap();
            script.pinged += 1;
            script.pings
        };
        match pings {
            Pings::Well => Ok(()),
            Pings::WellAfter(time) => {
                sleep(time).await;
                Ok(())
            }
            Pings::Fail(kind) => Err(Error::new(kind, "as told")),
            Pings::Silence => pending().await,
            // Without a word on the error stream.
            Pings::Panic => resume_unwind(Box::new("on purpose")),
        }
    }
    async fn close(&self) -> Result<()> {
        self.memory.close().await
    }
}

#[async_trait]
impl Locker for Store {
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        match self.before().await? {
            Some(why) => Ok(Attempt::Contended(why)),
            None => self.memory.acquire_opts(key, options).await,
        }
    }
}

#[async_trait]
impl ScopedLocker for Store {
    async fn run_scoped(
        &self,
        key: &LockKey,
        options: &ScopedOptions,
        body: ScopedBody<'_>,
    ) -> Result<Attempt<Release>> {
        match self.before().await? {
            Some(why) => Ok(Attempt::Contended(why)),
            None => Scoped::new(self.memory.peer()).run_scoped(key, options, body).await,
        }
    }
}

pub(crate) type Breaker = Arc<CircuitBreaker<Store>>;

pub(crate) fn breaker(config: BreakerConfig) -> Breaker {
    Arc::new(CircuitBreaker::with_clock(Store::new(), config, TokioClock).unwrap())
}

/// One that the first failure opens, whatever went well.
pub(crate) fn brittle() -> Breaker {
    breaker(BreakerConfig::new().with_min_samples(1).with_error_rate(1))
}

/// One that opens once as many have failed as went well.
pub(crate) fn balanced() -> Breaker {
    breaker(BreakerConfig::new().with_min_samples(1))
}

/// Lets a call fail, which opens a brittle one.
pub(crate) async fn open(locker: &Breaker) {
    locker.get_ref().next(Next::Fail(ErrorKind::Unavailable));
    let failed = locker.try_acquire("opens it", TTL).await.unwrap_err();
    assert_eq!((failed.kind(), locker.state()), (ErrorKind::Unavailable, BreakerState::Open));
}

/// Past the open time of the first opening.
pub(crate) async fn until_due() {
    sleep(ms(501)).await;
}

pub(crate) async fn take(locker: &Breaker, key: &str) -> LockGuard {
    locker.try_acquire(key, TTL).await.unwrap().acquired().unwrap()
}

/// Until other tasks have come as far as they can without time.
pub(crate) async fn settled() {
    sleep(ms(1)).await;
}

/// Turns a hang into a failure. Costs no real time while time is paused.
pub(crate) async fn bounded<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(secs(10_000), future).await.unwrap_or_else(|_| panic!("it never ended"))
}
