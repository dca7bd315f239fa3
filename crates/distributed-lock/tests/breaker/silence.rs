//! Stores that do not answer, and callers that do not wait for it.

use distributed_lock::{
    Attempt, Contention, ErrorKind, LockerExt, MemoryLocker, Scoped, ScopedLockerExt, TokioClock,
    breaker::{BreakerConfig, BreakerState, CircuitBreaker},
};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{Breaker, Next, Pings, TTL, breaker, brittle, ms, secs, settled, take};

/// One caller whose deadline cancels its wait.
async fn cancelled(locker: &Breaker) {
    let called = timeout(ms(200), locker.acquire("k", TTL)).await;
    assert!(!matches!(called, Ok(Ok(_))), "{called:?}");
}

#[tokio::test(start_paused = true)]
async fn callers_who_cancel_open_it_before_a_store_that_says_nothing() {
    for dropped in [false, true] {
        let locker = breaker(BreakerConfig::new());
        // It was well once.
        drop(take(&locker, "before").await);
        let started = Instant::now();
        locker.get_ref().always(if dropped { Next::Silence } else { Next::Contended(Contention::NoConnection) });
        locker.get_ref().pings(Pings::Silence);
        while locker.state() == BreakerState::Closed {
            let sick = started.elapsed();
            assert!(sick <= secs(10) + ms(200), "still closed after {sick:?}");
            match dropped {
                true => cancelled(&locker).await,
                false => {
                    sleep(ms(200)).await;
                    assert!(locker.try_acquire("k", TTL).await.unwrap().is_contended());
                }
            }
        }
        assert!(started.elapsed() >= secs(10), "before the window was over: {:?}", started.elapsed());
        assert_eq!(locker.try_acquire("k", TTL).await.unwrap_err().kind(), ErrorKind::CircuitOpen);
    }
}

#[tokio::test(start_paused = true)]
async fn minimum_of_cancelled_calls_opens_it_before_a_store_that_never_answered() {
    let locker = breaker(BreakerConfig::new());
    // Beside these calls goes a ping, which is no call: it has not ended yet.
    locker.get_ref().pings(Pings::WellAfter(secs(60)));
    locker.get_ref().always(Next::Silence);
    for call in 1..=9 {
        let called = timeout(ms(10), locker.acquire("k", TTL)).await;
        assert!(called.is_err());
        assert_eq!(locker.state(), BreakerState::Closed, "call {call}");
    }
    cancelled(&locker).await;
    assert_eq!(locker.state(), BreakerState::Open);
}

#[tokio::test(start_paused = true)]
async fn hundred_cancelled_waits_for_a_key_that_somebody_holds_leave_it_closed() {
    let memory = MemoryLocker::new();
    let _somebody = memory.hold("k").unwrap();
    let config = BreakerConfig::new().with_min_samples(1);
    let session = CircuitBreaker::with_clock(memory.peer(), config.clone(), TokioClock).unwrap();
    let scoped = CircuitBreaker::with_clock(Scoped::new(memory.peer()), config, TokioClock).unwrap();
    for _ in 0..100 {
        assert!(timeout(ms(200), session.acquire("k", TTL)).await.is_err());
        assert!(timeout(ms(200), scoped.with_lock("k", async |_| ())).await.is_err());
        let waited = session.acquire_within("k", TTL, ms(200)).await.unwrap();
        assert!(matches!(waited, Attempt::Contended(Contention::WaitElapsed)));
    }
    assert_eq!((session.state(), scoped.state()), (BreakerState::Closed, BreakerState::Closed));
    assert_eq!((session.counts().opened, scoped.counts().opened), (0, 0));
}

/// A pool that is used up by holders who are silent, or a store whose locker does not say when it answers.
#[tokio::test(start_paused = true)]
async fn silent_calls_beside_a_store_that_answers_pings_leave_it_closed() {
    for next in [Next::Silence, Next::Contended(Contention::NoConnection), Next::Contended(Contention::WaitElapsed)] {
        let locker = breaker(BreakerConfig::new());
        drop(take(&locker, "before").await);
        locker.get_ref().always(next);
        let started = Instant::now();
        while started.elapsed() < secs(60) {
            let _contended_or_cancelled = timeout(ms(200), locker.acquire_within("k", TTL, secs(60))).await;
            sleep(ms(10)).await;
        }
        assert_eq!(locker.counts().opened, 0);
        let pinged = locker.get_ref().pinged();
        assert!((8..=14).contains(&pinged), "one ping about every five seconds: {pinged}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_ping_goes_beside_calls_that_are_answered() {
    let locker = breaker(BreakerConfig::new());
    locker.get_ref().always(Next::Contended(Contention::Held));
    for _ in 0..300 {
        assert!(locker.try_acquire("k", TTL).await.unwrap().is_contended());
        sleep(ms(200)).await;
    }
    assert_eq!(locker.get_ref().pinged(), 0);
}

#[tokio::test(start_paused = true)]
async fn ping_beside_calls_delays_nobody() {
    let locker = brittle();
    locker.get_ref().pings(Pings::Silence);
    drop(take(&locker, "before").await);
    locker.get_ref().next(Next::Contended(Contention::NoConnection));
    assert!(locker.try_acquire("k", TTL).await.unwrap().is_contended());
    sleep(secs(6)).await;
    let started = Instant::now();
    let _guard = take(&locker, "k").await;
    assert_eq!(started.elapsed(), ms(0));
    settled().await;
    assert_eq!(locker.get_ref().pinged(), 1);
}

#[tokio::test(start_paused = true)]
async fn wait_that_was_answered_and_then_cancelled_is_neutral() {
    let locker = brittle();
    locker.get_ref().pings(Pings::Silence);
    locker.get_ref().always(Next::Silence.answered());
    for _ in 0..100 {
        cancelled(&locker).await;
    }
    assert_eq!((locker.state(), locker.get_ref().pinged()), (BreakerState::Closed, 0));
    // The same without the answer.
    locker.get_ref().always(Next::Silence);
    sleep(secs(10)).await;
    cancelled(&locker).await;
    assert_eq!(locker.state(), BreakerState::Open);
}

#[tokio::test(start_paused = true)]
async fn breaker_around_a_breaker_hears_the_store_too() {
    let memory = MemoryLocker::new();
    let _somebody = memory.hold("k").unwrap();
    let config = BreakerConfig::new().with_min_samples(1);
    let inner = CircuitBreaker::with_clock(memory, config.clone(), TokioClock).unwrap();
    let outer = CircuitBreaker::with_clock(inner, config, TokioClock).unwrap();
    for _ in 0..100 {
        assert!(timeout(ms(200), outer.acquire("k", TTL)).await.is_err());
    }
    assert_eq!((outer.state(), outer.get_ref().state()), (BreakerState::Closed, BreakerState::Closed));
}
