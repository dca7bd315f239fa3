//! A circuit breaker inside of telemetry, and outside of it: both listen to what one call says, and both hear it.

use std::{future::pending, time::Duration};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Contention, Guarantees, Instrumented, LockKey, Locker,
    LockerExt, MemoryLocker, Result, TokioClock,
    backend::{heard_by_caller, store_answered, tell_waiting},
    breaker::{BreakerConfig, BreakerState, CircuitBreaker},
};
use metrics_util::debugging::DebuggingRecorder;
use tokio::time::timeout;

use crate::recorder::record;

const TTL: Duration = Duration::from_secs(30);
const CALLS: usize = 12;

/// Opens at the first call that ends without an answer.
fn breaker<L: Backend>(inner: L) -> CircuitBreaker<L> {
    let config = BreakerConfig::new().with_min_samples(1).with_error_rate(1);
    CircuitBreaker::with_clock(inner, config, TokioClock).unwrap()
}

/// Waits that their callers give up, one after the other.
async fn give_up(locker: &impl Locker) {
    for _ in 0..CALLS {
        let asking = locker.acquire("orders", TTL);
        assert!(timeout(Duration::from_millis(900), asking).await.is_err());
    }
}

fn contentions(backend: &str) -> [String; 1] {
    [format!("lock_contentions_total{{lock_backend={backend},lock_contention_reason=held}} {CALLS}")]
}

/// Its store answers in a task of its own that the lock is held, and never says more.
#[derive(Debug)]
struct Elsewhere(MemoryLocker);

impl std::fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Elsewhere")
    }
}

#[async_trait]
impl Backend for Elsewhere {
    fn id(&self) -> BackendId {
        self.0.id()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn guarantees(&self) -> Guarantees {
        self.0.guarantees()
    }
    async fn ping(&self) -> Result<()> {
        pending().await
    }
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Locker for Elsewhere {
    async fn acquire_opts(&self, _key: &LockKey, _options: &AcquireOptions) -> Result<Attempt> {
        let says = async {
            store_answered();
            tell_waiting(&Contention::Held);
        };
        tokio::spawn(heard_by_caller(says)).await.unwrap();
        pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn waits_given_up_are_counted_and_keep_the_breaker_closed_in_either_nesting() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let store = MemoryLocker::new();
    let _somebody = store.hold("orders").unwrap();
    let inside = Instrumented::new(breaker(store.peer()));
    give_up(&inside).await;
    assert_eq!(inside.get_ref().state(), BreakerState::Closed);
    assert_eq!(recorded.of("lock_contentions"), contentions("CircuitBreaker(Memory)"));
    let outside = breaker(Instrumented::new(store.peer()));
    give_up(&outside).await;
    assert_eq!(outside.state(), BreakerState::Closed);
    let both = [contentions("CircuitBreaker(Memory)"), contentions("Memory")].concat();
    assert_eq!(recorded.of("lock_contentions"), both);
}

#[tokio::test(start_paused = true)]
async fn what_work_of_a_call_says_in_a_task_of_its_own_is_heard_by_both_in_either_nesting() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let inside = Instrumented::new(breaker(Elsewhere(MemoryLocker::new())));
    give_up(&inside).await;
    assert_eq!(inside.get_ref().state(), BreakerState::Closed);
    assert_eq!(recorded.of("lock_contentions"), contentions("CircuitBreaker(Elsewhere)"));
    let outside = breaker(Instrumented::new(Elsewhere(MemoryLocker::new())));
    give_up(&outside).await;
    assert_eq!(outside.state(), BreakerState::Closed);
    let both = [contentions("CircuitBreaker(Elsewhere)"), contentions("Elsewhere")].concat();
    assert_eq!(recorded.of("lock_contentions"), both);
}
