//! The queue: order, leavers, budgets, and when the first in it wakes up.

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    AcquireOptions, Attempt, Clock, Contention, LockKey, Locker, LockerExt, LossCause, MemoryLocker, TokioClock, Ttl,
    Wait,
};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::support::{TTL, bounded, is_free, poll_once, refusal, secs, since, take};

/// Spawns waiters in this order; each says its number when served and then gives the lock up.
async fn queue_up(store: &MemoryLocker, numbers: std::ops::Range<u32>) -> (Vec<JoinHandle<()>>, mpsc::Receiver<u32>) {
    let (served, order) = mpsc::channel(16);
    let mut waiters = Vec::new();
    for n in numbers {
        let (locker, served) = (store.peer(), served.clone());
        waiters.push(tokio::spawn(async move {
            let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
            served.send(n).await.unwrap();
            drop(guard);
        }));
        tokio::task::yield_now().await;
    }
    (waiters, order)
}

async fn rest(mut order: mpsc::Receiver<u32>) -> Vec<u32> {
    let mut all = Vec::new();
    while let Some(n) = bounded(order.recv()).await {
        all.push(n);
    }
    all
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_and_at_once() {
    let locker = MemoryLocker::new();
    let guard = take(&locker, "k").await;
    let (_waiters, order) = queue_up(&locker, 0..5).await;
    let start = TokioClock.now();
    drop(guard);
    assert_eq!(rest(order).await, [0, 1, 2, 3, 4]);
    assert_eq!(since(start), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_costs_nobody_else_the_place() {
    for leaver in 0..4 {
        let locker = MemoryLocker::new();
        let guard = take(&locker, "k").await;
        let (waiters, order) = queue_up(&locker, 0..4).await;
        waiters[leaver as usize].abort();
        tokio::task::yield_now().await;
        let start = TokioClock.now();
        drop(guard);
        let expected: Vec<u32> = (0..4).filter(|n| *n != leaver).collect();
        assert_eq!((rest(order).await, since(start)), (expected, Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_with_the_wake_up_hands_it_on() {
    let locker = MemoryLocker::new();
    let guard = take(&locker, "k").await;
    let mut first = Box::pin(locker.acquire("k", TTL));
    let mut second = Box::pin(locker.acquire("k", TTL));
    assert!(poll_once(first.as_mut()).is_none() && poll_once(second.as_mut()).is_none());
    drop(guard); // wakes the first
    drop(first);
    let start = TokioClock.now();
    assert!(bounded(second).await.unwrap().ensure_valid().is_ok());
    assert_eq!(since(start), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_try_does_not_overtake_the_queue() {
    let locker = MemoryLocker::new();
    let guard = take(&locker, "k").await;
    let mut waiter = Box::pin(locker.acquire("k", TTL));
    assert!(poll_once(waiter.as_mut()).is_none());
    drop(guard);
    assert_eq!(refusal(&locker.peer(), "k").await, Contention::Held);
    assert!(poll_once(waiter.as_mut()).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_when_its_budget_does() {
    let locker = MemoryLocker::new();
    let _held = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    for (limit, expected) in [
        (Duration::ZERO, Contention::HeldHere),
        (Duration::from_nanos(1), Contention::WaitElapsed),
        (secs(3), Contention::WaitElapsed),
    ] {
        let start = TokioClock.now();
        let waited = bounded(locker.acquire_within("k", TTL, limit)).await.unwrap();
        assert_eq!(waited.into_result().unwrap_err(), expected);
        assert_eq!(since(start), Wait::UpTo(limit).budget().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_huge_budget_waits_like_for_ever() {
    let locker = Arc::new(MemoryLocker::new());
    let guard = take(&locker, "k").await;
    let waiting = Arc::clone(&locker);
    let waiter = tokio::spawn(async move { waiting.acquire_within("k", TTL, Duration::MAX).await.unwrap() });
    tokio::task::yield_now().await;
    drop(guard);
    assert!(bounded(waiter).await.unwrap().acquired().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_budget_counts_a_slow_call_as_well() {
    let locker = MemoryLocker::new();
    let _held = locker.hold("k").unwrap();
    locker.delay(secs(2));
    let start = TokioClock.now();
    assert!(bounded(locker.acquire_within("k", TTL, secs(3))).await.unwrap().is_contended());
    assert_eq!(since(start), secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_the_key_at_the_very_end_of_the_ttl() {
    let locker = MemoryLocker::new();
    let _ignored = locker.acquire("k", secs(5)).await.unwrap();
    let start = TokioClock.now();
    let _next = bounded(locker.acquire("k", TTL)).await.unwrap();
    assert_eq!(since(start), secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_shortens_wakes_the_waiter_at_the_new_end() {
    let locker = MemoryLocker::new();
    let mut guard = take(&locker, "k").await;
    let start = TokioClock.now();
    let renew = async {
        tokio::time::sleep(secs(1)).await;
        guard.renew(secs(2)).await.unwrap();
    };
    let other = locker.peer();
    let wait = async { bounded(other.acquire("k", TTL)).await.map(|_guard| since(start)).unwrap() };
    let ((), acquired_after) = tokio::join!(renew, wait);
    assert_eq!(acquired_after, secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_lengthens_moves_the_wake_up_of_the_waiter() {
    let locker = MemoryLocker::new();
    let mut guard = locker.acquire("k", secs(5)).await.unwrap();
    let start = TokioClock.now();
    let renew = async {
        tokio::time::sleep(secs(4)).await;
        guard.renew(secs(5)).await.unwrap();
    };
    let other = locker.peer();
    let wait = async { bounded(other.acquire("k", TTL)).await.map(|_guard| since(start)).unwrap() };
    let ((), acquired_after) = tokio::join!(renew, wait);
    assert_eq!(acquired_after, secs(9));
}

#[tokio::test(start_paused = true)]
async fn the_second_in_the_queue_wakes_for_the_end_of_the_first() {
    let locker = MemoryLocker::new();
    let guard = take(&locker, "k").await;
    let (first, second) = (locker.peer(), locker.peer());
    let start = TokioClock.now();
    let first = tokio::spawn(async move { first.acquire("k", secs(7)).await.unwrap() });
    tokio::task::yield_now().await;
    let second = tokio::spawn(async move { second.acquire("k", TTL).await.unwrap() });
    tokio::task::yield_now().await;
    drop(guard);
    let _first = bounded(first).await.unwrap();
    let _second = bounded(second).await.unwrap();
    assert_eq!(since(start), secs(7));
}

#[tokio::test(start_paused = true)]
async fn a_loss_serves_the_waiter_at_once_and_the_old_holder_knows() {
    let locker = MemoryLocker::new();
    let old = take(&locker, "k").await;
    let mut waiter = Box::pin(locker.acquire("k", TTL));
    assert!(poll_once(waiter.as_mut()).is_none());
    locker.lose("k", LossCause::NotOurs).unwrap();
    let new = poll_once(waiter.as_mut()).unwrap().unwrap();
    assert!(old.ensure_valid().is_err() && new.ensure_valid().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_waiting_step_down_request_reaches_every_holder_it_waits_for() {
    let locker = MemoryLocker::new();
    let guard = take(&locker, "k").await;
    let options = AcquireOptions::new(Ttl::new(TTL).unwrap()).with_wait(Wait::Forever).with_step_down_request();
    let (other, key) = (locker.peer(), LockKey::new("k").unwrap());
    let polite = async {
        guard.hold().step_down_requested().await;
        guard.release().await.unwrap().exclusive()
    };
    let (released, acquired) = bounded(async { tokio::join!(polite, other.acquire_opts(&key, &options)) }).await;
    assert!(released.is_ok() && matches!(acquired.unwrap(), Attempt::Acquired(_)));
    assert!(is_free(&locker, "k").await);
}
