//! What is not told passes through as it is.

use std::time::Duration;

use distributed_lock::{Backend, Inspect, Instrumented, LockKey, LockerExt, LossCause, MemoryLocker};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn operators_see_ask_and_end_holders_through_it() {
    let store = MemoryLocker::new();
    let locker = Instrumented::new(store.peer());
    let key = LockKey::new("orders").unwrap();
    let guard = locker.acquire("orders", TTL).await.unwrap();
    let rival = store.peer();
    let waiter = tokio::spawn(async move { rival.acquire("orders", TTL).await });
    sleep(Duration::from_secs(1)).await;
    let [holder] = <[_; 1]>::try_from(locker.holders(&key).await.unwrap()).unwrap();
    assert_eq!(holder.held_for, Some(Duration::from_secs(1)));
    assert_eq!(locker.waiters(&key).await.unwrap().len(), 1);
    assert!(locker.request_step_down(&key).await.unwrap());
    assert!(locker.end_holder(&key, &holder).await.unwrap());
    assert_eq!(guard.lost().await.cause(), LossCause::SessionEnded);
    waiter.await.unwrap().unwrap().release().await.unwrap().exclusive().unwrap();
}

#[test]
fn promises_are_those_of_the_locker_inside() {
    let store = MemoryLocker::new();
    let locker = Instrumented::new(store.peer());
    assert_eq!(locker.guarantees().to_string(), store.guarantees().to_string());
    assert_eq!(format!("{:?}", locker.capabilities()), format!("{:?}", store.capabilities()));
    assert_eq!(locker.id(), locker.get_ref().id());
}
