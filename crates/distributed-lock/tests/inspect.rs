//! Who holds, who waits, ending a holder and asking it to step down: on the in-memory backend, under paused time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    AcquireOptions, Backend, ErrorKind, FencingToken, Holder, Inspect, LockGuard, LockKey, Locker, LockerExt,
    LossCause, MemoryLocker, Result, Scoped, SessionId, Ttl, Wait,
};
use tokio::{task::JoinHandle, time::timeout};

const TTL: Duration = Duration::from_secs(30);

fn key() -> LockKey {
    LockKey::new("k").unwrap()
}

async fn take(locker: &MemoryLocker) -> LockGuard {
    locker.try_acquire("k", TTL).await.unwrap().acquired().unwrap()
}

/// One who waits for ever, already in the queue behind `ahead` others.
async fn queued(locker: &MemoryLocker, ahead: usize) -> JoinHandle<Result<LockGuard>> {
    let waiting = locker.peer();
    let waiter = tokio::spawn(async move { waiting.acquire("k", TTL).await });
    bounded(async {
        while locker.waiters(&key()).await.unwrap().len() != ahead + 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    waiter
}

/// Turns a hang into a failure. Costs no real time while time is paused.
async fn bounded<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_secs(10_000), future).await.unwrap_or_else(|_| panic!("it never ended"))
}

async fn holder(locker: &(impl Inspect + ?Sized)) -> Holder {
    let [holder] = <[_; 1]>::try_from(locker.holders(&key()).await.unwrap()).unwrap();
    holder
}

#[tokio::test(start_paused = true)]
async fn holder_and_waiters_are_seen_by_every_locker_of_the_store_in_queue_order() {
    let locker = MemoryLocker::new();
    let other = locker.peer();
    assert!(other.holders(&key()).await.unwrap().is_empty() && other.waiters(&key()).await.unwrap().is_empty());

    let guard = take(&locker).await;
    tokio::time::advance(Duration::from_secs(2)).await;
    let first = queued(&locker, 0).await;
    tokio::time::advance(Duration::from_secs(3)).await;
    let second = queued(&locker, 1).await;
    tokio::time::advance(Duration::from_secs(1)).await;

    let seen = holder(&other).await;
    assert_eq!(seen.held_for, Some(Duration::from_secs(6)));
    assert_eq!(seen.fencing_token, guard.fencing_token());
    assert_eq!(seen.process, Some(std::process::id()));
    let waited: Vec<_> = other.waiters(&key()).await.unwrap().iter().map(|waiter| waiter.waiting_for).collect();
    assert_eq!(waited, [Some(Duration::from_secs(4)), Some(Duration::from_secs(1))]);
    let another = LockKey::new("another").unwrap();
    assert!(other.holders(&another).await.unwrap().is_empty() && other.waiters(&another).await.unwrap().is_empty());

    let ids: Vec<_> = other.waiters(&key()).await.unwrap().into_iter().map(|waiter| waiter.session).collect();
    guard.release().await.unwrap().exclusive().unwrap();
    let next = bounded(first).await.unwrap().unwrap();
    assert_eq!(holder(&other).await.fencing_token, next.fencing_token());
    let left: Vec<_> = other.waiters(&key()).await.unwrap().into_iter().map(|waiter| waiter.session).collect();
    assert_eq!(left, ids[1..], "the first was first");
    drop(next);
    drop(bounded(second).await.unwrap().unwrap());
    assert!(other.holders(&key()).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn holder_and_waiter_are_called_by_the_names_of_their_lockers() {
    let store = MemoryLocker::new();
    let (billing, reports) = (store.peer().with_application_name("billing"), store.peer());
    let guard = take(&billing).await;
    let waiter = {
        let reports = reports.peer().with_application_name("reports");
        tokio::spawn(async move { reports.acquire("k", TTL).await })
    };
    bounded(async {
        while store.waiters(&key()).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(holder(&store).await.application_name.as_deref(), Some("billing"));
    assert_eq!(store.waiters(&key()).await.unwrap()[0].application_name.as_deref(), Some("reports"));
    drop(guard);
    let guard = bounded(waiter).await.unwrap().unwrap();
    assert_eq!(holder(&store).await.application_name.as_deref(), Some("reports"));
    drop(guard);
    let _guard = take(&reports).await;
    assert_eq!(holder(&store).await.application_name, None, "a peer has no name of its own accord");
}

#[tokio::test(start_paused = true)]
async fn hold_past_its_ttl_is_no_holder() {
    let locker = MemoryLocker::new();
    let _lapsed = take(&locker).await;
    let seen = holder(&locker).await;
    tokio::time::advance(TTL).await;
    assert!(locker.holders(&key()).await.unwrap().is_empty());
    assert!(!locker.end_holder(&key(), &seen).await.unwrap());
    assert!(!locker.request_step_down(&key()).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn end_holder_ends_exactly_that_one_and_the_next_gets_the_key() {
    let locker = MemoryLocker::new();
    let guard = take(&locker).await;
    let seen = holder(&locker).await;
    let waiter = queued(&locker, 0).await;
    assert!(locker.peer().end_holder(&key(), &seen).await.unwrap());
    assert_eq!(bounded(guard.lost()).await.cause(), LossCause::SessionEnded);
    let next = bounded(waiter).await.unwrap().unwrap();
    assert!(!locker.end_holder(&key(), &seen).await.unwrap(), "it is gone");
    next.ensure_valid().unwrap();
    assert!(guard.release().await.unwrap().exclusive().is_err());

    // The same locker, the same key, another hold.
    next.release().await.unwrap().exclusive().unwrap();
    let successor = take(&locker).await;
    assert!(!locker.end_holder(&key(), &seen).await.unwrap());
    successor.ensure_valid().unwrap();
    // The right holder under the wrong key.
    let another = LockKey::new("another").unwrap();
    assert!(!locker.end_holder(&another, &holder(&locker).await).await.unwrap());
    successor.ensure_valid().unwrap();
}

#[tokio::test(start_paused = true)]
async fn request_step_down_reaches_the_holder_and_says_whether_there_is_one() {
    let locker = MemoryLocker::new();
    assert!(locker.capabilities().step_down);
    assert!(!locker.request_step_down(&key()).await.unwrap());
    let guard = take(&locker).await;
    let hold = guard.hold();
    let asked = tokio::spawn(async move { hold.step_down_requested().await });
    tokio::task::yield_now().await;
    assert!(!asked.is_finished());
    assert!(locker.peer().request_step_down(&key()).await.unwrap());
    bounded(asked).await.unwrap();
    guard.ensure_valid().unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    // A later hold was not asked.
    let later = take(&locker).await;
    let asked = timeout(Duration::from_secs(1), async { later.hold().step_down_requested().await }).await;
    assert!(asked.is_err());
}

#[tokio::test(start_paused = true)]
async fn acquire_that_asks_for_a_step_down_is_heard_too() {
    let locker = MemoryLocker::new();
    let guard = take(&locker).await;
    let options = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_wait(Wait::Forever).with_step_down_request();
    let other = locker.peer();
    let waiter = tokio::spawn(async move { other.acquire_opts(&key(), &options).await });
    bounded(async { guard.hold().step_down_requested().await }).await;
    drop(guard);
    assert!(!bounded(waiter).await.unwrap().unwrap().is_contended());
}

#[tokio::test(start_paused = true)]
async fn bad_holders_closed_lockers_and_failures_are_typed() {
    let locker = MemoryLocker::new();
    let guard = take(&locker).await;
    for foreign in ["", "waiter 1", "-1", "4711/12"] {
        let error = locker.end_holder(&key(), &Holder::new(SessionId::new(foreign))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{foreign}");
    }
    guard.ensure_valid().unwrap();
    let seen = holder(&locker).await;
    for kind in [ErrorKind::Unavailable, ErrorKind::Denied] {
        locker.fail_next(kind);
        assert_eq!(locker.holders(&key()).await.unwrap_err().kind(), kind);
        locker.fail_next(kind);
        assert_eq!(locker.waiters(&key()).await.unwrap_err().kind(), kind);
        locker.fail_next(kind);
        assert_eq!(locker.end_holder(&key(), &seen).await.unwrap_err().kind(), kind);
        locker.fail_next(kind);
        assert_eq!(locker.request_step_down(&key()).await.unwrap_err().kind(), kind);
    }
    guard.ensure_valid().unwrap();
    let other = locker.peer();
    other.close().await.unwrap();
    assert_eq!(other.holders(&key()).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(other.waiters(&key()).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(other.end_holder(&key(), &seen).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(other.request_step_down(&key()).await.unwrap_err().kind(), ErrorKind::Closed);
    guard.ensure_valid().unwrap();
}

#[tokio::test(start_paused = true)]
async fn pointers_and_scoped_lockers_forward() {
    let locker = MemoryLocker::new();
    let guard = take(&locker).await;
    let stacks: [Arc<dyn Inspect>; 3] = [
        Arc::new(locker.peer()),
        Arc::new(Box::new(locker.peer()) as Box<dyn Inspect>),
        Arc::new(Scoped::new(locker.peer())),
    ];
    for stack in stacks {
        assert_eq!(holder(&stack).await.fencing_token, guard.fencing_token());
        assert!(stack.waiters(&key()).await.unwrap().is_empty());
        assert!(stack.request_step_down(&key()).await.unwrap());
        assert!(!stack.end_holder(&key(), &Holder::new(SessionId::new("4711"))).await.unwrap());
    }
    guard.ensure_valid().unwrap();
}

#[test]
fn holders_print_in_one_line_with_names_escaped() {
    let mut holder = Holder::new(SessionId::new("7"));
    assert_eq!(holder.to_string(), "a program without a name holds it, session 7");
    holder.application_name = Some("a\n\"b\"".into());
    holder.host = Some("10.0.0.7".into());
    holder.process = Some(12);
    holder.held_for = Some(Duration::from_millis(1_500));
    holder.fencing_token = Some(FencingToken::new(9));
    assert_eq!(holder.to_string(), r#""a\n\"b\"" on 10.0.0.7 in process 12 holds it for 1.5s, session 7"#);
}
