//! What dropping a future or a guard at any point leaves behind: nothing.

use std::sync::Arc;

use distributed_lock::{Locker, LockerExt, MemoryLocker, ScopedLockerExt};

use crate::support::{Counted, Flag, TTL, bounded, is_free, poll_once, poll_then_drop, scoped, secs, take};

#[tokio::test(start_paused = true)]
async fn a_future_dropped_at_any_poll_leaves_the_key_free_and_no_waiter() {
    let work = async || {
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
    };
    let body = async |_| work().await;
    for polls in 0..12 {
        let store = MemoryLocker::new();
        let locker: Arc<dyn Locker> = Arc::new(Counted::new(store.peer()));
        let locks = scoped(Arc::clone(&locker));
        let free = async |what: &str| {
            assert!(is_free(&store, "k").await, "{what} dropped after {polls} polls");
        };
        drop(poll_then_drop(locker.try_acquire("k", TTL), polls).await);
        free("try_acquire").await;
        let blocker = take(&store, "k").await;
        drop(poll_then_drop(locker.acquire("k", TTL), polls).await);
        drop(poll_then_drop(locks.with_lock("k", body), polls).await);
        drop(blocker);
        free("a wait").await;
        drop(poll_then_drop(take(&locker, "k").await.release(), polls).await);
        free("release").await;
        drop(poll_then_drop(locks.with_lock("k", body), polls).await);
        free("with_lock").await;
        let mut guard = take(&locker, "k").await;
        drop(poll_then_drop(guard.run(secs(1), work()), polls).await);
        assert!(!is_free(&store, "k").await, "run leaves the guard");
        drop(poll_then_drop(guard.renew(TTL), polls).await);
        assert!(!is_free(&store, "k").await, "renew leaves the guard");
        drop(guard);
        free("the guard").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_dropped_midway_leaves_the_key_free() {
    let locker = MemoryLocker::new();
    let other = locker.peer();
    locker.delay(secs(1));
    for (millis, acquired) in [(999, false), (1_001, true)] {
        let limit = std::time::Duration::from_millis(millis);
        let tried = tokio::time::timeout(limit, locker.try_acquire("k", TTL)).await;
        assert_eq!(tried.is_ok(), acquired);
        drop(tried);
        assert!(is_free(&other, "k").await);
    }
    locker.delay(secs(0));
    let guard = take(&locker, "k").await;
    locker.delay(secs(1));
    assert!(tokio::time::timeout(secs(0), guard.release()).await.is_err());
    assert!(is_free(&other, "k").await, "an interrupted release is followed by an abandon");
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_given_up_exactly_once() {
    let store = MemoryLocker::new();
    let locker = Counted::new(store.peer());
    take(&locker, "k").await.release().await.unwrap().exclusive().unwrap();
    assert_eq!(locker.counts.get(), (1, 0), "released and not abandoned");
    drop(take(&locker, "k").await);
    assert_eq!(locker.counts.get(), (1, 1), "dropped");
    let guard = take(&locker, "k").await;
    locker.locker.fail_next(distributed_lock::ErrorKind::Unavailable);
    guard.release().await.unwrap_err();
    assert_eq!(locker.counts.get(), (1, 2), "a failed release abandons");
    assert!(poll_then_drop(take(&locker, "k").await.release(), 0).await.is_none());
    assert_eq!(locker.counts.get(), (1, 3), "a release that never ran abandons");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_scoped_run_drops_the_body_before_it_frees_the_lock() {
    struct Probe(MemoryLocker, Flag);
    impl Drop for Probe {
        fn drop(&mut self) {
            let tried = poll_once(std::pin::pin!(self.0.try_acquire("k", TTL)));
            if tried.unwrap().unwrap().is_contended() {
                self.1.raise();
            }
        }
    }
    let store = MemoryLocker::new();
    let locks = scoped(store.peer());
    let still_held = Flag::default();
    let probe = Probe(store.peer(), still_held.clone());
    let run = locks.with_lock("k", async move |_| {
        let _probe = probe;
        std::future::pending::<()>().await;
    });
    assert!(poll_then_drop(run, 3).await.is_none());
    assert!(still_held.is_up(), "the lock was freed while the body lived");
    assert!(is_free(&store, "k").await);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_cancelled_waits_leave_a_queue_that_works() {
    let store = MemoryLocker::new();
    let held = take(&store, "k").await;
    let locker = store.peer();
    let mut waits: Vec<_> = (0..1_000).map(|_| Box::pin(locker.acquire("k", TTL))).collect();
    for wait in &mut waits {
        assert!(poll_once(wait.as_mut()).is_none());
    }
    drop(waits);
    let mut last = Box::pin(locker.acquire("k", TTL));
    assert!(poll_once(last.as_mut()).is_none());
    drop(held);
    assert!(bounded(last).await.unwrap().ensure_valid().is_ok());
    assert!(is_free(&store, "k").await);
}
