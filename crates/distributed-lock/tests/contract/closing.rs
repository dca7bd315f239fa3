//! What `close` ends and what it leaves alone.

use std::sync::{Arc, Barrier};

use distributed_lock::{Backend, ErrorKind, LockerExt, LossCause, MemoryLocker, ScopedLockerExt};

use crate::support::{TTL, bounded, is_free, poll_once, scoped, take};

#[tokio::test(start_paused = true)]
async fn closing_tells_holders_frees_their_keys_and_refuses_later_calls() {
    let locker = MemoryLocker::new();
    let other = locker.peer();
    let mut guard = take(&locker, "k").await;
    let theirs = take(&other, "theirs").await;
    locker.close().await.unwrap();
    assert_eq!(bounded(guard.lost()).await.cause(), LossCause::Closed);
    assert_eq!(guard.renew(TTL).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(locker.try_acquire("k", TTL).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(locker.acquire("k", TTL).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(locker.ping().await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(is_free(&other, "k").await);
    assert!(theirs.ensure_valid().is_ok() && other.ping().await.is_ok(), "another locker is not concerned");
    locker.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn closing_ends_the_waits_of_this_locker_only() {
    let locker = MemoryLocker::new();
    let other = locker.peer();
    let held = locker.hold("k").unwrap();
    let mut ours = Box::pin(locker.acquire("k", TTL));
    let mut theirs = Box::pin(other.acquire("k", TTL));
    assert!(poll_once(ours.as_mut()).is_none() && poll_once(theirs.as_mut()).is_none());
    locker.close().await.unwrap();
    assert_eq!(bounded(ours).await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(poll_once(theirs.as_mut()).is_none(), "still held");
    drop(held);
    assert!(bounded(theirs).await.unwrap().ensure_valid().is_ok(), "the closed waiter left the queue");
}

#[tokio::test(start_paused = true)]
async fn closing_during_a_slow_call_refuses_it() {
    let locker = MemoryLocker::new();
    locker.delay(TTL);
    let mut trying = Box::pin(locker.try_acquire("k", TTL));
    assert!(poll_once(trying.as_mut()).is_none());
    locker.close().await.unwrap();
    assert_eq!(bounded(trying).await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(is_free(&locker.peer(), "k").await);
}

#[tokio::test(start_paused = true)]
async fn a_scoped_locker_closes_the_locker_it_wraps() {
    let locker = Arc::new(MemoryLocker::new());
    let locks = scoped(Arc::clone(&locker));
    locks.close().await.unwrap();
    assert_eq!(locks.with_lock("k", async |_| ()).await.unwrap_err().error.kind(), ErrorKind::Closed);
    assert_eq!(locker.try_acquire("k", TTL).await.unwrap_err().kind(), ErrorKind::Closed);
}

/// Grants that race with the close are refused or ended by it: no hold of a closed locker lives on.
#[test]
fn no_grant_survives_a_close_that_runs_beside_it() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for _ in 0..300 {
        let locker = MemoryLocker::new();
        let start = Barrier::new(2);
        let (guards, refused) = std::thread::scope(|threads| {
            let closing = threads.spawn(|| {
                let runtime = runtime();
                start.wait();
                runtime.block_on(locker.close()).unwrap();
            });
            let acquired = runtime().block_on(async {
                start.wait();
                let mut guards = Vec::new();
                loop {
                    match locker.acquire(format!("k{}", guards.len()), TTL).await {
                        Ok(guard) => guards.push(guard),
                        Err(refused) => break (guards, refused),
                    }
                }
            });
            closing.join().unwrap();
            acquired
        });
        assert_eq!(refused.kind(), ErrorKind::Closed);
        assert!(guards.iter().all(|guard| guard.ensure_valid().is_err()), "a live hold of a closed locker");
    }
}
