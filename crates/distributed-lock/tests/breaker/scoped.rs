//! Runs: the lock is judged, never the body.

use std::{future::pending, panic::resume_unwind, sync::Arc};

use distributed_lock::{
    ErrorKind, LockerExt, MemoryLocker, Scoped, ScopedLockerExt, TokioClock,
    breaker::{BreakerConfig, BreakerState, CircuitBreaker},
};
use tokio::{sync::oneshot, time::timeout};

use crate::support::{Next, Pings, TTL, breaker, brittle, ms, open, secs, settled, until_due};

#[tokio::test(start_paused = true)]
async fn body_that_fails_panics_or_is_dropped_opens_nothing() {
    let locker = brittle();
    for _ in 0..20 {
        assert!(locker.with_lock("k", async |_| Err::<(), _>("failed")).await.unwrap().is_err());
        let panics = tokio::spawn({
            let locker = Arc::clone(&locker);
            async move {
                let body = async |_| resume_unwind(Box::new("on purpose"));
                locker.with_lock::<(), _, _>("k", body).await
            }
        });
        assert!(panics.await.unwrap_err().is_panic());
        let dropped = timeout(ms(5), locker.with_lock("k", async |_| pending::<()>().await)).await;
        assert!(dropped.is_err());
    }
    assert_eq!(locker.state(), BreakerState::Closed);
}

/// The grant counts when the body starts, so that a long body does not keep it from being known.
#[tokio::test(start_paused = true)]
async fn grant_counts_when_the_body_starts() {
    let locker = breaker(BreakerConfig::new().with_min_samples(2).with_error_rate(100));
    let (end, ended) = oneshot::channel();
    let running = tokio::spawn({
        let locker = Arc::clone(&locker);
        async move { locker.with_lock("k", async move |_| ended.await.unwrap()).await }
    });
    settled().await;
    for _ in 0..3 {
        locker.get_ref().next(Next::Fail(ErrorKind::Unavailable));
        locker.try_acquire("other", TTL).await.unwrap_err();
    }
    assert_eq!(locker.state(), BreakerState::Closed, "the grant is not among the samples");
    end.send(()).unwrap();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn release_of_a_run_counts_if_it_fails_and_the_value_of_the_body_is_kept() {
    let memory = Arc::new(MemoryLocker::new());
    let config = BreakerConfig::new().with_min_samples(1).with_error_rate(50);
    let locker = CircuitBreaker::with_clock(Scoped::new(Arc::clone(&memory)), config, TokioClock).unwrap();
    let body = async |_| {
        memory.fail_next(ErrorKind::Unavailable);
        7
    };
    let failed = locker.with_lock("k", body).await.unwrap_err();
    assert_eq!((failed.error.kind(), failed.value), (ErrorKind::Unavailable, Some(7)));
    assert_eq!(locker.state(), BreakerState::Open, "one grant and one failure");
}

#[tokio::test(start_paused = true)]
async fn run_that_ends_after_it_opened_closes_nothing_and_frees_the_key() {
    let locker = brittle();
    let (end, ended) = oneshot::channel();
    let running = tokio::spawn({
        let locker = Arc::clone(&locker);
        async move { locker.with_lock("k", async move |_| ended.await.unwrap()).await }
    });
    settled().await;
    open(&locker).await;
    end.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(locker.state(), BreakerState::Open);
    assert!(!locker.get_ref().memory.peer().try_acquire("k", TTL).await.unwrap().is_contended());
}

#[tokio::test(start_paused = true)]
async fn wait_of_a_run_is_kept_beside_a_probe() {
    let locker = brittle();
    let _somebody = locker.get_ref().memory.hold("k").unwrap();
    open(&locker).await;
    until_due().await;
    locker.get_ref().pings(Pings::WellAfter(ms(300)));
    let started = tokio::time::Instant::now();
    let ran = locker.with_lock_within("k", secs(1), async |_| ()).await.unwrap();
    assert!(ran.is_contended());
    assert_eq!((started.elapsed(), locker.state()), (secs(1), BreakerState::Closed));
}
