//! The breaker in stacks, behind pointers and beside the adapter.

use std::sync::Arc;

use distributed_lock::{
    Attempt, Backend, ErrorKind, Inspect, LockKey, Locker, LockerExt, MemoryLocker, Scoped, ScopedLocker,
    ScopedLockerExt,
    breaker::{BreakerConfig, BreakerState, CircuitBreaker},
};

use crate::support::TTL;

fn around<L: Backend>(inner: L) -> CircuitBreaker<L> {
    CircuitBreaker::new(inner, BreakerConfig::new().with_min_samples(1)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn stack_prints_itself_from_the_outside_in() {
    assert_eq!(around(Scoped::new(MemoryLocker::new())).to_string(), "CircuitBreaker(Scoped(Memory))");
    assert_eq!(Scoped::new(around(MemoryLocker::new())).to_string(), "Scoped(CircuitBreaker(Memory))");
    let chosen: Arc<dyn Locker> = Arc::new(around(Arc::new(MemoryLocker::new()) as Arc<dyn Locker>));
    assert_eq!(chosen.to_string(), "CircuitBreaker(Memory)");
}

#[tokio::test(start_paused = true)]
async fn locker_chosen_at_run_time_is_wrapped_and_injected() {
    let memory = Arc::new(MemoryLocker::new());
    let chosen: Arc<dyn Locker> = Arc::clone(&memory) as _;
    let injected: Arc<dyn ScopedLocker> = Arc::new(around(Scoped::new(chosen)));
    assert_eq!(injected.with_lock("k", async |_| 7).await.unwrap(), 7);
    memory.fail_next(ErrorKind::Unavailable);
    assert_eq!(injected.try_with_lock("k", async |_| 7).await.unwrap_err().error.kind(), ErrorKind::Unavailable);
    assert_eq!(injected.try_with_lock("k", async |_| 7).await.unwrap_err().error.kind(), ErrorKind::CircuitOpen);
}

#[tokio::test(start_paused = true)]
async fn adapter_around_a_breaker_runs_its_body_to_the_end_while_it_is_open() {
    let memory = MemoryLocker::new();
    let breaker = Arc::new(around(memory.peer()));
    let locks = Scoped::new(Arc::clone(&breaker));
    let ran = locks
        .with_lock("k", async |hold| {
            breaker.get_ref().fail_next(ErrorKind::Unavailable);
            breaker.try_acquire("other", TTL).await.unwrap_err();
            assert_eq!(breaker.state(), BreakerState::Open);
            // Long enough for renewals.
            tokio::time::sleep(TTL * 2).await;
            hold.ensure_valid()
        })
        .await;
    ran.unwrap().unwrap();
    assert!(matches!(memory.try_acquire("k", TTL).await.unwrap(), Attempt::Acquired(_)));
}

#[tokio::test(start_paused = true)]
async fn operators_see_through_it_while_it_is_open() {
    let memory = MemoryLocker::new();
    let breaker = around(memory.peer());
    let guard = breaker.acquire("k", TTL).await.unwrap();
    breaker.get_ref().fail_next(ErrorKind::Unavailable);
    breaker.try_acquire("other", TTL).await.unwrap_err();
    assert_eq!(breaker.state(), BreakerState::Open);
    let operator: Arc<dyn Inspect> = Arc::new(breaker);
    let key = LockKey::new("k").unwrap();
    let holders = operator.holders(&key).await.unwrap();
    assert_eq!((holders.len(), operator.waiters(&key).await.unwrap().len()), (1, 0));
    assert!(operator.request_step_down(&key).await.unwrap());
    assert!(operator.end_holder(&key, &holders[0]).await.unwrap());
    assert!(guard.ensure_valid().is_err());
}
