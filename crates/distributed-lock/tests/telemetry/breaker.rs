//! A circuit breaker inside of telemetry, and outside of it: both listen to what one call says, and both hear it.

use std::{future::pending, time::Duration};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Contention, ErrorKind, Guarantees, Instrumented,
    LockKey, Locker, LockerExt, MemoryLocker, Result, TokioClock,
    backend::{heard_by_caller, store_answered, tell_waiting},
    breaker::{BreakerConfig, BreakerState, CircuitBreaker},
    telemetry::Telemetry,
};
use metrics_util::debugging::DebuggingRecorder;
use tokio::time::{sleep, timeout};

use crate::{meter::Exported, recorder::record};

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

#[tokio::test(start_paused = true)]
async fn every_change_and_refusal_of_a_breaker_is_counted_and_its_state_shown() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let exported = Exported::new();
    let telemetry = Telemetry::new().with_meter(&exported.meter());
    let store = breaker(MemoryLocker::new()).with_telemetry(telemetry.clone());
    let locker = Instrumented::new(store).with_telemetry(telemetry);
    let memory = || locker.get_ref().get_ref();
    // The recorder's gauge is taken away by a look, the meter's is not.
    let is = |value: u32| {
        exported.lines().contains(&format!("lock.breaker.state[{{state}}]{{lock.backend=Memory}} {value}"))
    };
    assert!(is(0), "{:?}", exported.lines());
    let kind = async || locker.try_acquire("orders", TTL).await.unwrap_err().kind();

    memory().fail_next(ErrorKind::Unavailable);
    assert_eq!(kind().await, ErrorKind::Unavailable);
    assert!(is(2), "{:?}", exported.lines());
    for _ in 0..3 {
        assert_eq!(kind().await, ErrorKind::CircuitOpen);
    }
    sleep(Duration::from_millis(501)).await;
    memory().delay(Duration::from_secs(1)); // the ping
    let asking = locker.try_acquire("orders", TTL);
    assert!(timeout(Duration::from_millis(10), asking).await.is_err());
    assert!(is(1), "{:?}", exported.lines());
    sleep(Duration::from_secs(2)).await;
    memory().delay(Duration::ZERO);
    assert!(locker.try_acquire("orders", TTL).await.unwrap().acquired().is_some());
    assert_eq!(
        recorded.of("lock_breaker"),
        [
            "lock_breaker_refusals_total{lock_backend=Memory} 3",
            "lock_breaker_state{lock_backend=Memory} 0",
            "lock_breaker_transitions_total{lock_backend=Memory,lock_breaker_to=closed} 1",
            "lock_breaker_transitions_total{lock_backend=Memory,lock_breaker_to=half_open} 1",
            "lock_breaker_transitions_total{lock_backend=Memory,lock_breaker_to=open} 1",
        ]
    );
    let breakers: Vec<_> = exported.lines().into_iter().filter(|line| line.starts_with("lock.breaker")).collect();
    assert_eq!(
        breakers,
        [
            "lock.breaker.refusals[{call}]{lock.backend=Memory} 3",
            "lock.breaker.state[{state}]{lock.backend=Memory} 0",
            "lock.breaker.transitions[{transition}]{lock.backend=Memory,lock.breaker.to=closed} 1",
            "lock.breaker.transitions[{transition}]{lock.backend=Memory,lock.breaker.to=half_open} 1",
            "lock.breaker.transitions[{transition}]{lock.backend=Memory,lock.breaker.to=open} 1",
        ]
    );
    // The callers that it refused are seen beside the store's own error.
    let failed = recorded.of("lock_wait_duration_seconds{error_type");
    let each = ["circuit_open,lock_backend=CircuitBreaker(Memory),lock_outcome=error} [0.0, 0.0, 0.0]", "unavailable"];
    assert_eq!(failed.len(), each.len(), "{failed:?}");
    for (line, told) in failed.iter().zip(each) {
        assert!(line.starts_with(&format!("lock_wait_duration_seconds{{error_type={told}")), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn breaker_tells_nothing_unless_it_is_asked_to() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let locker = breaker(MemoryLocker::new());
    locker.get_ref().fail_next(ErrorKind::Unavailable);
    for _ in 0..2 {
        assert!(locker.try_acquire("orders", TTL).await.is_err());
    }
    assert_eq!(locker.state(), BreakerState::Open);
    assert_eq!(recorded.lines(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn breaker_that_is_dropped_while_it_is_open_is_shown_as_open_no_longer() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let store = MemoryLocker::new();
    let locker = breaker(store.peer()).with_telemetry(Telemetry::new());
    locker.get_ref().fail_next(ErrorKind::Unavailable);
    let _ = locker.try_acquire("orders", TTL).await;
    assert_eq!(locker.state(), BreakerState::Open);
    drop(locker);
    assert_eq!(recorded.of("lock_breaker_state"), ["lock_breaker_state{lock_backend=Memory} 0"]);
}
