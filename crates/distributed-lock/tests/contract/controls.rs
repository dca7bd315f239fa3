//! What the in-memory backend offers to users' tests.

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    Attempt, Backend, Clock, Contention, ErrorKind, Hold, LockerExt, LossCause, MemoryLocker, ScopedLockerExt,
    TokioClock,
};

use crate::support::{TTL, bounded, is_free, refusal, scoped, secs, since, take};

#[tokio::test(start_paused = true)]
async fn hold_makes_contention_until_its_guard_is_gone() {
    let locker = MemoryLocker::new();
    let somebody = locker.hold("k").unwrap();
    assert_eq!(refusal(&locker, "k").await, Contention::Held, "as somebody else");
    assert_eq!(locker.hold("k").unwrap_err().kind(), ErrorKind::Contended);
    assert_eq!(locker.hold("").unwrap_err().kind(), ErrorKind::InvalidInput);
    tokio::time::advance(TTL * 1000).await;
    assert_eq!(refusal(&locker, "k").await, Contention::Held, "it has no TTL");
    drop(somebody);
    assert!(is_free(&locker, "k").await);
    locker.hold("k").unwrap().release().await.unwrap().exclusive().unwrap();
    assert!(is_free(&locker, "k").await);
}

#[tokio::test(start_paused = true)]
async fn hold_is_on_the_store_and_outlives_a_close() {
    let locker = MemoryLocker::new();
    let other = locker.peer();
    let somebody = locker.hold("k").unwrap();
    locker.close().await.unwrap();
    assert!(somebody.ensure_valid().is_ok());
    assert_eq!(refusal(&other, "k").await, Contention::Held);
}

#[tokio::test(start_paused = true)]
async fn lose_takes_the_key_from_whoever_has_it_for_the_cause_given() {
    let locker = MemoryLocker::new();
    let other = locker.peer();
    for cause in [LossCause::SessionEnded, LossCause::HeartbeatTimeout, LossCause::NotOurs, LossCause::Closed] {
        let theirs = take(&other, "k").await;
        assert!(locker.lose("k", cause).unwrap());
        assert_eq!(bounded(theirs.lost()).await.cause(), cause);
        assert!(is_free(&locker, "k").await);
        let lost = theirs.release().await.unwrap().exclusive().unwrap_err();
        assert_eq!(lost.cause(), cause);
    }
    assert!(!locker.lose("k", LossCause::NotOurs).unwrap(), "nobody holds it");
    assert_eq!(locker.lose("", LossCause::NotOurs).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test(start_paused = true)]
async fn lose_says_that_nobody_holds_a_key_whose_ttl_has_ended() {
    let locker = MemoryLocker::new();
    let lapsed = take(&locker, "k").await;
    tokio::time::advance(TTL).await;
    assert!(!locker.lose("k", LossCause::NotOurs).unwrap());
    assert_eq!(bounded(lapsed.lost()).await.cause(), LossCause::DeadlinePassed, "the first end stays");
}

#[tokio::test(start_paused = true)]
async fn fail_next_fails_the_calls_of_this_locker_in_order() {
    let locker = MemoryLocker::new();
    let other = locker.peer();
    locker.fail_next(ErrorKind::Unavailable);
    locker.fail_next(ErrorKind::Denied);
    assert!(is_free(&other, "k").await, "another locker is not concerned");
    assert_eq!(locker.try_acquire("k", TTL).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(locker.ping().await.unwrap_err().kind(), ErrorKind::Denied);
    assert!(is_free(&locker, "k").await);
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_leaves_the_hold_and_a_failed_release_frees_the_key() {
    let locker = MemoryLocker::new();
    let mut guard = take(&locker, "k").await;
    tokio::time::advance(secs(10)).await;
    locker.fail_next(ErrorKind::Unavailable);
    assert_eq!(guard.renew(TTL).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(guard.remaining(), Some(TTL - secs(10)));
    locker.fail_next(ErrorKind::Indeterminate);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Indeterminate);
    assert!(is_free(&locker, "k").await);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_says_lost_ends_the_hold() {
    let locker = MemoryLocker::new();
    let mut guard = take(&locker, "k").await;
    locker.fail_next(ErrorKind::Lost);
    assert_eq!(guard.renew(TTL).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(bounded(guard.lost()).await.cause(), LossCause::NotOurs);
}

#[tokio::test(start_paused = true)]
async fn a_delay_slows_every_call_of_this_locker_until_it_is_taken_back() {
    let locker = MemoryLocker::new();
    let other = locker.peer();
    let mut guard = take(&locker, "k").await;
    locker.delay(secs(1));
    let start = TokioClock.now();
    guard.renew(TTL).await.unwrap();
    assert_eq!((since(start), guard.remaining()), (secs(1), Some(TTL)));
    locker.ping().await.unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    assert_eq!(since(start), secs(3));
    assert!(is_free(&other, "k").await);
    assert_eq!(since(start), secs(3), "another locker is not concerned");
    locker.delay(Duration::ZERO);
    assert!(is_free(&locker, "k").await);
    assert_eq!(since(start), secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_service_test_can_bring_about_every_answer() {
    let locker = Arc::new(MemoryLocker::new());
    let locks = scoped(Arc::clone(&locker));
    let somebody = locker.hold("k").unwrap();
    assert!(matches!(locks.try_with_lock("k", async |_| ()).await.unwrap(), Attempt::Contended(Contention::Held)));
    drop(somebody);
    locker.fail_next(ErrorKind::Unavailable);
    let failed = bounded(locks.with_lock("k", async |_| ())).await.unwrap_err();
    assert_eq!((failed.error.kind(), failed.value), (ErrorKind::Unavailable, None));
    let body = async |hold: Hold| {
        assert!(locker.lose("k", LossCause::SessionEnded).unwrap());
        bounded(hold.lost()).await.cause()
    };
    let lost = bounded(locks.with_lock("k", body)).await.unwrap_err();
    assert_eq!((lost.error.kind(), lost.value), (ErrorKind::Lost, Some(LossCause::SessionEnded)));
}
