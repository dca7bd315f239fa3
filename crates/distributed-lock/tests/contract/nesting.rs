//! A body that would wait for itself is told so; nobody else is.

use std::sync::Arc;

use distributed_lock::{
    Attempt, Contention, ErrorKind, LockerExt, MemoryLocker, Ran, Result, Scoped, ScopedLocker, ScopedLockerExt,
    ScopedOptions, Wait,
};

use crate::support::{Counted, TTL, bounded, refusal, scoped, secs, take};

fn locks() -> (Arc<MemoryLocker>, Arc<Scoped<Arc<MemoryLocker>>>) {
    let locker = Arc::new(MemoryLocker::new());
    (Arc::clone(&locker), Arc::new(scoped(locker)))
}

fn deadlocked<T>(answer: Result<T>) -> bool {
    answer.is_err_and(|error| error.kind() == ErrorKind::Deadlock && error.key().is_some_and(|key| key.as_str() == "k"))
}

#[tokio::test(start_paused = true)]
async fn every_waiting_call_for_the_key_of_its_own_body_is_a_deadlock() {
    let (locker, locks) = locks();
    let answers = bounded(locks.with_lock("k", async |_| {
        let options = ScopedOptions::new(Wait::UpTo(secs(1)));
        [
            deadlocked(locks.with_lock("k", async |_| ()).await.map_err(Into::into)),
            deadlocked(locks.with_lock_within("k", secs(1), async |_| ()).await.map_err(Into::into)),
            deadlocked(locks.with_lock_opts("k", options, async |_| ()).await.map_err(Into::into)),
            deadlocked(bounded(locker.acquire("k", TTL)).await),
            deadlocked(locker.acquire_within("k", TTL, secs(1)).await),
        ]
    }));
    assert_eq!(answers.await.unwrap(), [true; 5]);
}

#[tokio::test(start_paused = true)]
async fn work_under_a_guard_is_told_as_well() {
    let (locker, locks) = locks();
    let mut guard = take(&locker, "k").await;
    let work = async {
        [
            deadlocked(bounded(locker.acquire("k", TTL)).await),
            deadlocked(locks.with_lock("k", async |_| ()).await.map_err(Into::into)),
            deadlocked(locker.acquire("another", TTL).await),
        ]
    };
    assert!(matches!(bounded(guard.run(secs(1), work)).await.unwrap(), Ran::Done([true, true, false])));
}

#[tokio::test(start_paused = true)]
async fn a_try_is_contended_as_ever() {
    let (locker, locks) = locks();
    locks
        .with_lock("k", async |_| {
            assert_eq!(refusal(&locker, "k").await, Contention::HeldHere);
            let zero = locker.acquire_within("k", TTL, secs(0)).await.unwrap();
            assert_eq!(zero.into_result().unwrap_err(), Contention::HeldHere);
            let tried = locks.try_with_lock("k", async |_| ()).await.unwrap();
            assert!(matches!(tried, Attempt::Contended(Contention::HeldHere)));
        })
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn another_locker_and_another_key_are_no_deadlock() {
    let (locker, locks) = locks();
    let peer = locker.peer();
    let elsewhere = MemoryLocker::new();
    locks
        .with_lock("k", async |_| {
            let waited = peer.acquire_within("k", TTL, secs(1)).await.unwrap();
            assert_eq!(waited.into_result().unwrap_err(), Contention::WaitElapsed);
            assert!(bounded(elsewhere.acquire("k", TTL)).await.is_ok());
            assert!(bounded(locker.acquire("K", TTL)).await.is_ok());
        })
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_outer_body_counts_and_an_ended_one_does_not() {
    let (locker, locks) = locks();
    locks
        .with_lock("k", async |_| {
            locks
                .with_lock("inner", async |_| {
                    assert!(deadlocked(bounded(locker.acquire("k", TTL)).await));
                    let inner = bounded(locker.acquire("inner", TTL)).await.unwrap_err();
                    assert_eq!((inner.kind(), inner.key().unwrap().as_str()), (ErrorKind::Deadlock, "inner"));
                })
                .await
                .unwrap();
            assert!(bounded(locker.acquire("inner", TTL)).await.is_ok());
            assert!(deadlocked(bounded(locker.acquire("k", TTL)).await), "still under the outer one");
        })
        .await
        .unwrap();
    assert!(bounded(locker.acquire("k", TTL)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_mark_goes_through_wrappers() {
    let locker = Arc::new(MemoryLocker::new());
    let locks: Arc<dyn ScopedLocker> = Arc::new(Box::new(scoped(Counted::new(Arc::clone(&locker)))));
    let seen = locks.with_lock("k", async |_| deadlocked(bounded(locker.acquire("k", TTL)).await)).await;
    assert!(seen.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_sibling_joined_beside_the_body_simply_waits() {
    let (locker, locks) = locks();
    let body = locks.with_lock("k", async |_| tokio::time::sleep(secs(5)).await);
    let (ran, waited) = bounded(async { tokio::join!(body, locker.acquire("k", TTL)) }).await;
    assert!(ran.is_ok() && waited.is_ok());

    let mut guard = take(&locker, "k2").await;
    let work = guard.run(secs(1), tokio::time::sleep(secs(5)));
    let (ran, waited) = bounded(async { tokio::join!(work, locker.acquire_within("k2", TTL, secs(9))) }).await;
    assert!(matches!(ran.unwrap(), Ran::Done(())));
    assert_eq!(waited.unwrap().into_result().unwrap_err(), Contention::WaitElapsed);
}

#[tokio::test(start_paused = true)]
async fn a_spawned_task_simply_waits() {
    let (locker, locks) = locks();
    let mut spawned = None;
    locks
        .with_lock("k", async |_| {
            let task = tokio::spawn({
                let locker = Arc::clone(&locker);
                async move { locker.acquire("k", TTL).await.map(drop) }
            });
            tokio::time::sleep(secs(5)).await;
            assert!(!task.is_finished());
            spawned = Some(task);
        })
        .await
        .unwrap();
    bounded(spawned.unwrap()).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_bodies_interleaved_in_one_task_keep_their_marks_apart() {
    let (locker, locks) = locks();
    let crossed = |mine: &'static str, other: &'static str| {
        let (locker, locks) = (Arc::clone(&locker), Arc::clone(&locks));
        async move {
            locks
                .with_lock(mine, async |_| {
                    tokio::time::sleep(secs(1)).await;
                    let own = locker.acquire_within(mine, TTL, secs(1)).await;
                    let others = locker.acquire_within(other, TTL, secs(1)).await;
                    tokio::time::sleep(secs(1)).await;
                    (own.unwrap_err().kind(), others.unwrap().into_result().unwrap_err())
                })
                .await
                .unwrap()
        }
    };
    let expected = (ErrorKind::Deadlock, Contention::WaitElapsed);
    let both = bounded(async { tokio::join!(crossed("a", "b"), crossed("b", "a")) }).await;
    assert_eq!(both, (expected.clone(), expected));
}
