//! The way back: one ping at a time decides, whatever becomes of those who began it.

use std::sync::Arc;

use distributed_lock::{
    Attempt, Contention, ErrorKind, LockerExt,
    breaker::{BreakerConfig, BreakerState, CircuitBreaker},
};
use tokio::{
    runtime::Builder,
    time::{Instant, sleep, timeout},
};

use crate::support::{Breaker, Next, Pings, Store, TTL, bounded, brittle, ms, open, secs, settled, take, until_due};

/// Calls that come at the same time: how many got the lock, and how many were refused.
async fn crowd(locker: &Breaker, size: usize) -> (usize, usize) {
    let calls: Vec<_> = (0..size)
        .map(|caller| {
            let locker = Arc::clone(locker);
            tokio::spawn(async move { locker.acquire(format!("k{caller}"), TTL).await.map(drop) })
        })
        .collect();
    let (mut got, mut refused) = (0, 0);
    for call in calls {
        match bounded(call).await.unwrap() {
            Ok(()) => got += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::CircuitOpen);
                assert!(error.retry_after().is_some_and(|pause| !pause.is_zero() && pause <= secs(2)), "{error:?}");
                refused += 1;
            }
        }
    }
    (got, refused)
}

#[tokio::test(start_paused = true)]
async fn one_of_a_crowd_probes_and_is_let_in_and_the_others_are_refused_meanwhile() {
    let locker = brittle();
    open(&locker).await;
    assert_eq!(crowd(&locker, 10).await, (0, 10));
    until_due().await;
    assert_eq!((locker.get_ref().pinged(), locker.state()), (0, BreakerState::Open));
    locker.get_ref().pings(Pings::WellAfter(ms(50)));
    assert_eq!(crowd(&locker, 10).await, (1, 9));
    assert_eq!((locker.get_ref().pinged(), locker.state()), (1, BreakerState::Closed));
    assert_eq!(crowd(&locker, 10).await, (10, 0));
}

#[tokio::test(start_paused = true)]
async fn failed_probe_opens_it_again_at_once_and_for_longer() {
    let locker = brittle();
    open(&locker).await;
    let mut full = ms(500);
    for _ in 0..10 {
        sleep(full + ms(1)).await;
        full = secs(30).min(full * 2);
        locker.get_ref().pings(Pings::Fail(ErrorKind::Unavailable));
        let refused = locker.try_acquire("k", TTL).await.unwrap_err();
        assert_eq!((refused.kind(), locker.state()), (ErrorKind::CircuitOpen, BreakerState::Open));
        let pause = refused.retry_after().unwrap();
        assert!((full / 2..=full).contains(&pause), "{pause:?} of {full:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn probe_of_a_silent_store_ends_by_its_own_timeout_and_nobody_waits_for_ever() {
    let locker = brittle();
    open(&locker).await;
    until_due().await;
    locker.get_ref().pings(Pings::Silence);
    let started = Instant::now();
    let refused = bounded(locker.acquire("k", TTL)).await.unwrap_err();
    assert_eq!((refused.kind(), started.elapsed()), (ErrorKind::CircuitOpen, secs(2)));
    assert_eq!(locker.state(), BreakerState::Open);
}

#[tokio::test(start_paused = true)]
async fn probe_goes_on_when_its_caller_leaves_and_closes_it() {
    let locker = brittle();
    open(&locker).await;
    until_due().await;
    locker.get_ref().pings(Pings::WellAfter(ms(300)));
    assert!(timeout(ms(200), locker.acquire("k", TTL)).await.is_err());
    assert_eq!(locker.state(), BreakerState::HalfOpen);
    sleep(ms(101)).await;
    assert_eq!((locker.state(), locker.get_ref().pinged()), (BreakerState::Closed, 1));
}

#[tokio::test(start_paused = true)]
async fn budget_of_the_caller_covers_the_probe_and_the_wait() {
    let locker = brittle();
    let _somebody = locker.get_ref().memory.hold("k").unwrap();
    open(&locker).await;
    until_due().await;
    locker.get_ref().pings(Pings::WellAfter(ms(300)));
    let started = Instant::now();
    let early = locker.acquire_within("k", TTL, ms(100)).await.unwrap_err();
    assert_eq!((early.kind(), started.elapsed()), (ErrorKind::CircuitOpen, ms(100)));
    assert_eq!(early.retry_after(), Some(ms(1_900)));
    sleep(ms(300)).await;
    open(&locker).await;
    sleep(secs(1)).await;
    let started = Instant::now();
    let waited = locker.acquire_within("k", TTL, secs(1)).await.unwrap();
    assert!(matches!(waited, Attempt::Contended(Contention::WaitElapsed)), "{waited:?}");
    assert_eq!(started.elapsed(), secs(1));
}

#[tokio::test(start_paused = true)]
async fn probe_that_panics_is_given_back_and_the_next_call_probes() {
    let locker = brittle();
    open(&locker).await;
    until_due().await;
    locker.get_ref().pings(Pings::Panic);
    for _ in 0..3 {
        let refused = locker.try_acquire("k", TTL).await.unwrap_err();
        assert_eq!((refused.kind(), locker.state()), (ErrorKind::CircuitOpen, BreakerState::HalfOpen));
        assert!(refused.retry_after().is_some());
    }
    assert_eq!((locker.get_ref().pinged(), locker.counts().refused), (3, 3));
    locker.get_ref().pings(Pings::Well);
    drop(take(&locker, "k").await);
}

/// The runtime on which a probe runs lives, and is not driven.
#[test]
fn probe_on_a_runtime_that_stands_still_keeps_nobody_out_for_ever() {
    let config = BreakerConfig::new().with_min_samples(1).with_open_time(ms(1)).with_probe_timeout(secs(1));
    let locker = Arc::new(CircuitBreaker::new(Store::new(), config).unwrap());
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let still = runtime();
    still.block_on(async {
        open(&locker).await;
        locker.get_ref().pings(Pings::Silence);
        while locker.get_ref().pinged() == 0 {
            let _refused_or_dropped = timeout(ms(5), locker.acquire("k", TTL)).await;
        }
        assert_eq!(locker.state(), BreakerState::HalfOpen);
    });
    locker.get_ref().pings(Pings::Well);
    let got = runtime().block_on(async {
        let trying = async {
            loop {
                match locker.try_acquire("k", TTL).await {
                    Ok(attempt) => break !attempt.is_contended(),
                    Err(refused) => sleep(refused.retry_after().unwrap()).await,
                }
            }
        };
        timeout(secs(20), trying).await
    });
    assert!(got.expect("the breaker waits for a ping that nobody drives"));
    drop(still);
    assert_eq!(locker.state(), BreakerState::Closed);
}

/// The runtime on which a probe runs ends under it.
#[test]
fn probe_that_its_runtime_took_along_is_given_back_and_the_next_call_probes() {
    let config = BreakerConfig::new().with_min_samples(1).with_open_time(ms(1));
    let locker = Arc::new(CircuitBreaker::new(Store::new(), config).unwrap());
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    runtime().block_on(async {
        open(&locker).await;
        locker.get_ref().pings(Pings::Silence);
        while locker.state() == BreakerState::Open {
            let _refused_or_dropped = timeout(ms(5), locker.acquire("k", TTL)).await;
        }
        assert_eq!(locker.state(), BreakerState::HalfOpen);
    });
    locker.get_ref().pings(Pings::Well);
    runtime().block_on(async { drop(take(&locker, "k").await) });
    assert_eq!(locker.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn acquires_that_were_waiting_when_it_opened_go_on_get_the_lock_and_close_nothing() {
    let locker = brittle();
    let somebody = locker.get_ref().memory.hold("k").unwrap();
    let waiting = tokio::spawn({
        let locker = Arc::clone(&locker);
        async move { locker.acquire("k", TTL).await }
    });
    settled().await;
    open(&locker).await;
    until_due().await;
    drop(somebody);
    let guard = bounded(waiting).await.unwrap().unwrap();
    assert_eq!(locker.state(), BreakerState::Open, "closed without a probe");
    guard.release().await.unwrap().exclusive().unwrap();
    // One who has waited since before gives up after it has closed again.
    let waiting = {
        let locker = Arc::clone(&locker);
        locker.get_ref().pings(Pings::Well);
        drop(take(&locker, "k").await);
        let held = locker.get_ref().memory.hold("k").unwrap();
        let waiting = tokio::spawn(async move { locker.acquire("k", TTL).await });
        settled().await;
        (waiting, held)
    };
    open(&locker).await;
    sleep(secs(1)).await;
    drop(take(&locker, "other").await);
    assert_eq!(locker.state(), BreakerState::Closed);
    waiting.0.abort();
    settled().await;
    assert_eq!(locker.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn lasting_sickness_is_probed_ever_less_often_and_health_is_seen_by_the_next_probe() {
    let locker = brittle();
    open(&locker).await;
    locker.get_ref().pings(Pings::Fail(ErrorKind::Unavailable));
    locker.get_ref().always(Next::Fail(ErrorKind::Unavailable));
    let started = Instant::now();
    while started.elapsed() < secs(600) {
        locker.try_acquire("k", TTL).await.unwrap_err();
        sleep(ms(100)).await;
    }
    let probes = locker.get_ref().pinged();
    // About six while the time grows, then one every 15 s to 30 s.
    assert!((22..=48).contains(&probes), "{probes} probes in ten minutes");
    assert_eq!(locker.get_ref().asked(), 1, "nothing but pings reached the store");
    locker.get_ref().pings(Pings::Well);
    locker.get_ref().always(Next::Grant);
    let well = Instant::now();
    while locker.try_acquire("k", TTL).await.is_err() {
        sleep(ms(100)).await;
    }
    assert!(well.elapsed() <= secs(30) + ms(100), "{:?}", well.elapsed());
}
