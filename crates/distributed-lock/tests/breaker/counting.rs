//! What each answer of each call does to a closed breaker.

use distributed_lock::{
    Backend, Contention, ErrorKind, Inspect, LockKey, LockerExt, Release, ScopedLockerExt,
    breaker::{BreakerConfig, BreakerState, CircuitBreaker},
};
use lock_testkit::ERROR_KINDS;

use crate::support::{Breaker, Next, Pings, TTL, balanced, breaker, brittle, secs, settled, take, until_due};

fn after_failure(kind: ErrorKind) -> BreakerState {
    match kind {
        ErrorKind::Indeterminate | ErrorKind::Other | ErrorKind::Unavailable => BreakerState::Open,
        _ => BreakerState::Closed,
    }
}

#[tokio::test(start_paused = true)]
async fn every_error_of_every_call_opens_it_or_does_not_by_its_kind() {
    for kind in ERROR_KINDS {
        let wanted = after_failure(kind);
        for next in [Next::Fail(kind), Next::FailWithCode(kind), Next::Fail(kind).answered()] {
            let acquired = brittle();
            acquired.get_ref().next(next.clone());
            assert_eq!(acquired.try_acquire("k", TTL).await.unwrap_err().kind(), kind);
            assert_eq!(acquired.state(), wanted, "acquire: {next:?}");

            let ran = brittle();
            ran.get_ref().next(next.clone());
            let failed = ran.with_lock("k", async |_| ()).await.unwrap_err();
            assert!(failed.error.kind() == kind && failed.value.is_none());
            assert_eq!(ran.state(), wanted, "run: {next:?}");
        }
        let renewed = brittle();
        let mut guard = take(&renewed, "k").await;
        renewed.get_ref().memory.fail_next(kind);
        assert_eq!(guard.renew(TTL).await.unwrap_err().kind(), kind);
        // The grant before it was a success.
        assert_eq!(renewed.state(), wanted, "renew: {kind:?}");

        let released = brittle();
        let guard = take(&released, "k").await;
        released.get_ref().memory.fail_next(kind);
        assert_eq!(guard.release().await.unwrap_err().kind(), kind);
        assert_eq!(released.state(), wanted, "release: {kind:?}");

        let pinged = brittle();
        pinged.get_ref().pings(Pings::Fail(kind));
        assert_eq!(pinged.ping().await.unwrap_err().kind(), kind);
        assert_eq!(pinged.state(), wanted, "ping: {kind:?}");

        let inspected = CircuitBreaker::new(distributed_lock::MemoryLocker::new(), one()).unwrap();
        let (key, holder) =
            (LockKey::new("k").unwrap(), distributed_lock::Holder::new(distributed_lock::SessionId::new("7")));
        for call in 0..4 {
            let inspected = match inspected.state() {
                BreakerState::Closed => &inspected,
                _ => &CircuitBreaker::new(distributed_lock::MemoryLocker::new(), one()).unwrap(),
            };
            inspected.get_ref().fail_next(kind);
            let failed = match call {
                0 => inspected.holders(&key).await.map(drop),
                1 => inspected.waiters(&key).await.map(drop),
                2 => inspected.end_holder(&key, &holder).await.map(drop),
                _ => inspected.request_step_down(&key).await.map(drop),
            };
            assert_eq!(failed.unwrap_err().kind(), kind);
            assert_eq!(inspected.state(), wanted, "inspect {call}: {kind:?}");
        }
    }
}

fn one() -> BreakerConfig {
    BreakerConfig::new().with_min_samples(1)
}

#[tokio::test(start_paused = true)]
async fn contention_never_opens_it_unless_it_is_a_wait_used_up_in_silence() {
    let name = |name| LockKey::new(name).unwrap();
    let table = [
        (Contention::Held, BreakerState::Closed),
        (Contention::HeldHere, BreakerState::Closed),
        (Contention::Collision { held: name("a"), wanted: name("b") }, BreakerState::Closed),
        (Contention::StaleCommit, BreakerState::Closed),
        (Contention::NoConnection, BreakerState::Open),
        (Contention::WaitElapsed, BreakerState::Open),
    ];
    for (why, silent) in table {
        for (next, wanted) in
            [(Next::Contended(why.clone()), silent), (Next::Contended(why.clone()).answered(), BreakerState::Closed)]
        {
            let locker = brittle();
            locker.get_ref().next(next.clone());
            assert!(locker.try_acquire("k", TTL).await.unwrap().is_contended());
            assert_eq!(locker.state(), wanted, "acquire: {next:?}");
            let locker = brittle();
            locker.get_ref().next(next.clone());
            assert!(locker.try_with_lock("k", async |_| ()).await.unwrap().is_contended());
            assert_eq!(locker.state(), wanted, "run: {next:?}");
        }
    }
}

/// Fails as often as it succeeds: each of these is one success.
async fn opens_at_half(locker: &Breaker, failures: u32) {
    for _ in 0..failures {
        assert_eq!(locker.state(), BreakerState::Closed);
        locker.get_ref().next(Next::Fail(ErrorKind::Unavailable));
        locker.try_acquire("k", TTL).await.unwrap_err();
    }
    assert_eq!(locker.state(), BreakerState::Open, "after {failures} failures");
}

#[tokio::test(start_paused = true)]
async fn grants_bodies_renewals_releases_and_pings_each_count_as_one_success() {
    let locker = balanced();
    let mut guard = take(&locker, "held").await;
    guard.renew(TTL).await.unwrap();
    locker.ping().await.unwrap();
    locker.with_lock("k", async |_| ()).await.unwrap();
    assert!(matches!(guard.release().await.unwrap(), Release::Released));
    opens_at_half(&locker, 5).await;
}

#[tokio::test(start_paused = true)]
async fn release_that_finds_its_hold_ended_and_drops_count_for_nothing() {
    // One success among them would keep it closed.
    let locker = breaker(one().with_error_rate(100));
    let (lapsed, dropped) = (take(&locker, "lapsed").await, take(&locker, "dropped").await);
    drop(dropped);
    tokio::time::sleep(TTL).await;
    assert!(matches!(lapsed.release().await.unwrap(), Release::Lapsed(_)));
    // The grants are out of the window.
    opens_at_half(&locker, 1).await;
}

#[tokio::test(start_paused = true)]
async fn renewal_and_ping_that_are_dropped_count_for_nothing() {
    let locker = brittle();
    let mut guard = take(&locker, "k").await;
    tokio::time::sleep(TTL / 2).await;
    locker.get_ref().memory.delay(TTL);
    locker.get_ref().pings(Pings::Silence);
    assert!(tokio::time::timeout(TTL / 8, guard.renew(TTL)).await.is_err());
    assert!(tokio::time::timeout(TTL / 8, locker.ping()).await.is_err());
    settled().await;
    assert_eq!(locker.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_judged_before_the_minimum_of_samples() {
    let locker = breaker(BreakerConfig::new());
    for _ in 0..9 {
        locker.get_ref().next(Next::Fail(ErrorKind::Unavailable));
        locker.try_acquire("k", TTL).await.unwrap_err();
    }
    opens_at_half(&locker, 1).await;
}

/// The call began before it opened, and ended after it had closed again, or while it was open.
#[tokio::test(start_paused = true)]
async fn results_of_calls_that_began_in_an_older_state_count_for_nothing() {
    for fails in [false, true] {
        let locker = balanced();
        let mut late = take(&locker, "late").await;
        tokio::time::sleep(TTL / 2).await;
        locker.get_ref().memory.delay(secs(5));
        let renewing = tokio::spawn(async move { late.renew(TTL).await });
        settled().await;
        locker.get_ref().memory.delay(secs(0));
        opens_at_half(&locker, 1).await;
        until_due().await;
        let closed = take(&locker, "k").await;
        assert_eq!(locker.state(), BreakerState::Closed);
        tokio::time::sleep(secs(4)).await;
        if fails {
            locker.get_ref().memory.fail_next(ErrorKind::Unavailable);
        }
        assert_eq!(renewing.await.unwrap().is_err(), fails);
        assert_eq!(locker.state(), BreakerState::Closed);
        drop(closed);
        // Had its success counted, one failure would be one of two or of three.
        opens_at_half(&locker, 1).await;
    }
}
