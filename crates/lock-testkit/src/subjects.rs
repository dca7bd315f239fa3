//! The subjects that need no server: the in-memory locker, itself and inside the core's wrappers.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distributed_lock::{
    Backend, Instrumented, LockKey, Locker, LossCause, MemoryLocker, Result, Scoped, ScopedLocker,
    breaker::{BreakerConfig, CircuitBreaker},
};

use crate::{
    Faulty,
    conformance::{Missing, Store, Subject, Suite, Time},
};

/// A subject over the in-memory store: how it makes its lockers out of an in-memory one.
#[derive(Clone, Copy, Debug)]
pub struct InMemory {
    name: &'static str,
    suites: &'static [Suite],
    time: Time,
    locker: fn(MemoryLocker) -> Option<Arc<dyn Locker>>,
    scoped: fn(MemoryLocker) -> Option<Arc<dyn ScopedLocker>>,
}

impl InMemory {
    /// A subject of this name, put through these suites.
    #[must_use]
    pub const fn new(name: &'static str, suites: &'static [Suite]) -> Self {
        Self { name, suites, time: Time::Paused, locker: |_| None, scoped: |_| None }
    }

    /// The same, in real time.
    #[must_use]
    pub const fn in_real_time(mut self) -> Self {
        self.time = Time::Real;
        self
    }

    /// The same, whose session lockers are made by this.
    #[must_use]
    pub const fn with_locker(mut self, locker: fn(MemoryLocker) -> Option<Arc<dyn Locker>>) -> Self {
        self.locker = locker;
        self
    }

    /// The same, whose scoped lockers are made by this.
    #[must_use]
    pub const fn with_scoped(mut self, scoped: fn(MemoryLocker) -> Option<Arc<dyn ScopedLocker>>) -> Self {
        self.scoped = scoped;
        self
    }
}

/// So soon that a wait is explained in every case that has one.
const SOON: Duration = Duration::from_millis(1);

/// `memory`, `arc_dyn`, `box_dyn`, `scoped`, `faulty`, `breaker`, `scoped_breaker`, whose breaker is inside the adapter,
/// `instrumented`, `instrumented_dyn`, and `stack`: telemetry around a breaker.
#[must_use]
pub fn in_memory() -> Vec<Arc<dyn Subject>> {
    const BOTH: &[Suite] = &[Suite::Locker, Suite::Scoped];
    let subjects = [
        InMemory::new("memory", &[Suite::Locker]).with_locker(|memory| Some(Arc::new(memory))),
        InMemory::new("arc_dyn", BOTH)
            .with_locker(|memory| Some(Arc::new(Arc::new(memory) as Arc<dyn Locker>)))
            .with_scoped(|memory| Some(Arc::new(Arc::new(Scoped::new(memory)) as Arc<dyn ScopedLocker>))),
        InMemory::new("box_dyn", BOTH)
            .with_locker(|memory| Some(Arc::new(Box::new(memory) as Box<dyn Locker>)))
            .with_scoped(|memory| Some(Arc::new(Box::new(Scoped::new(memory)) as Box<dyn ScopedLocker>))),
        InMemory::new("scoped", &[Suite::Scoped])
            .with_locker(|memory| Some(Arc::new(memory)))
            .with_scoped(|memory| Some(Arc::new(Scoped::new(memory)))),
        InMemory::new("faulty", BOTH)
            .with_locker(|memory| Some(Arc::new(Faulty::new(memory))))
            .with_scoped(|memory| Some(Arc::new(Faulty::new(Scoped::new(memory))))),
        InMemory::new("breaker", BOTH)
            .with_locker(|memory| Some(Arc::new(breaker(memory)?)))
            .with_scoped(|memory| Some(Arc::new(breaker(Scoped::new(memory))?))),
        InMemory::new("scoped_breaker", &[Suite::Scoped])
            .with_locker(|memory| Some(Arc::new(memory)))
            .with_scoped(|memory| Some(Arc::new(Scoped::new(breaker(Arc::new(memory) as Arc<dyn Locker>)?)))),
        InMemory::new("instrumented", BOTH)
            .with_locker(|memory| Some(Arc::new(Instrumented::new(memory).explaining_waits(SOON))))
            .with_scoped(|memory| Some(Arc::new(Instrumented::new(Scoped::new(memory)).explaining_waits(SOON)))),
        InMemory::new("instrumented_dyn", BOTH)
            .with_locker(|memory| Some(Arc::new(Instrumented::new(Arc::new(memory) as Arc<dyn Locker>))))
            .with_scoped(|memory| {
                Some(Arc::new(Instrumented::new(Arc::new(Scoped::new(memory)) as Arc<dyn ScopedLocker>)))
            }),
        InMemory::new("stack", BOTH)
            .with_locker(|memory| Some(Arc::new(Instrumented::new(breaker(memory)?).explaining_waits(SOON))))
            .with_scoped(|memory| {
                Some(Arc::new(Instrumented::new(breaker(Scoped::new(memory))?).explaining_waits(SOON)))
            }),
    ];
    subjects.into_iter().map(|subject| Arc::new(subject) as _).collect()
}

fn breaker<L: Backend>(inner: L) -> Option<CircuitBreaker<L>> {
    CircuitBreaker::new(inner, BreakerConfig::new()).ok()
}

#[async_trait]
impl Subject for InMemory {
    fn name(&self) -> &str {
        self.name
    }
    fn time(&self) -> Time {
        self.time
    }
    fn suites(&self) -> &[Suite] {
        self.suites
    }
    async fn open(&self) -> std::result::Result<Arc<dyn Store>, Missing> {
        Ok(Arc::new(MemoryStore { subject: *self, first: MemoryLocker::new() }))
    }
}

#[derive(Debug)]
struct MemoryStore {
    subject: InMemory,
    first: MemoryLocker,
}

#[async_trait]
impl Store for MemoryStore {
    async fn locker(&self) -> Result<Option<Arc<dyn Locker>>> {
        Ok((self.subject.locker)(self.first.peer()))
    }
    async fn scoped(&self) -> Result<Option<Arc<dyn ScopedLocker>>> {
        Ok((self.subject.scoped)(self.first.peer()))
    }
    async fn lose(&self, key: &LockKey) -> Result<bool> {
        self.first.lose(key, LossCause::SessionEnded)
    }
}
