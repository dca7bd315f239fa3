//! Golden metrics of a locker and of scoped runs, in paused time.

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    AcquireOptions, Attempt, ErrorKind, Instrumented, LockKey, Locker, LockerExt, LossCause, MemoryLocker, Release,
    Scoped, ScopedLocker, ScopedLockerExt, ScopedOptions, Ttl, Wait, telemetry::Telemetry,
};
use metrics_util::debugging::DebuggingRecorder;
use tokio::time::sleep;

use crate::{meter::Exported, recorder::record};

const TTL: Duration = Duration::from_secs(30);

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_waited_for_held_and_released_and_nothing_stays_counted() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let store = MemoryLocker::new();
    let locker = Instrumented::new(store.peer());
    let somebody = store.hold("orders").unwrap();
    let ask = tokio::spawn(async move { locker.acquire("orders", TTL).await });
    sleep(secs(2)).await;
    assert_eq!(recorded.of("lock_waiting"), ["lock_waiting{lock_backend=Memory} 1"]);
    drop(somebody);
    let mut guard = ask.await.unwrap().unwrap();
    assert_eq!(recorded.of("lock_held"), ["lock_held{lock_backend=Memory} 1"]);
    sleep(secs(3)).await;
    guard.renew(TTL).await.unwrap();
    sleep(secs(1)).await;
    assert!(matches!(guard.release().await.unwrap(), Release::Released));
    assert_eq!(
        recorded.lines(),
        [
            "lock_contentions_total{lock_backend=Memory,lock_contention_reason=held} 1",
            "lock_held{lock_backend=Memory} 0",
            "lock_hold_duration_seconds{lock_backend=Memory,lock_outcome=released} [4.0]",
            "lock_release_duration_seconds{lock_backend=Memory,lock_outcome=released} [0.0]",
            "lock_renew_duration_seconds{lock_backend=Memory,lock_outcome=renewed} [0.0]",
            "lock_wait_duration_seconds{lock_backend=Memory,lock_outcome=acquired} [2.0]",
            "lock_waiting{lock_backend=Memory} 0",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn contended_scoped_call_has_its_wait_its_body_and_its_release_apart() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let exported = Exported::new();
    let store = MemoryLocker::new();
    let inner = Arc::new(store.peer());
    let telemetry = Telemetry::new().with_meter(&exported.meter());
    let locks = Instrumented::new(Scoped::new(Arc::clone(&inner))).with_telemetry(telemetry);
    let somebody = store.hold("orders").unwrap();
    let body = async |_hold| {
        sleep(secs(5)).await;
        inner.delay(secs(1)); // the release takes as long
    };
    let leave = async {
        sleep(secs(2)).await;
        drop(somebody);
    };
    let options = ScopedOptions::new(Wait::Forever).with_class("order");
    let (ran, ()) = tokio::join!(locks.with_lock_opts("orders", options, body), leave);
    ran.unwrap().into_result().unwrap();
    assert_eq!(
        recorded.lines(),
        [
            "lock_contentions_total{lock_backend=Scoped(Memory),lock_class=order,lock_contention_reason=held} 1",
            "lock_held{lock_backend=Scoped(Memory),lock_class=order} 0",
            "lock_hold_duration_seconds{lock_backend=Scoped(Memory),lock_class=order,lock_outcome=released} [5.0]",
            "lock_release_duration_seconds{lock_backend=Scoped(Memory),lock_class=order,lock_outcome=released} [1.0]",
            "lock_wait_duration_seconds{lock_backend=Scoped(Memory),lock_class=order,lock_outcome=acquired} [2.0]",
            "lock_waiting{lock_backend=Scoped(Memory),lock_class=order} 0",
        ]
    );
    assert_eq!(
        exported.lines(),
        [
            "lock.contentions[{call}]{lock.backend=Scoped(Memory),lock.class=order,lock.contention.reason=held} 1",
            "lock.held[{hold}]{lock.backend=Scoped(Memory),lock.class=order} 0",
            "lock.hold.duration[s]{lock.backend=Scoped(Memory),lock.class=order,lock.outcome=released} 1x, 5",
            "lock.release.duration[s]{lock.backend=Scoped(Memory),lock.class=order,lock.outcome=released} 1x, 1",
            "lock.wait.duration[s]{lock.backend=Scoped(Memory),lock.class=order,lock.outcome=acquired} 1x, 2",
            "lock.waiting[{call}]{lock.backend=Scoped(Memory),lock.class=order} 0",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn body_that_asks_for_other_locks_is_no_contention_of_its_own_call() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let store = MemoryLocker::new();
    let locks = Instrumented::new(Scoped::new(store.peer()));
    let _somebody = store.hold("other").unwrap();
    let body = async |_hold| store.peer().acquire_within("other", TTL, secs(1)).await.unwrap().is_contended();
    assert!(locks.with_lock("orders", body).await.unwrap());
    assert_eq!(recorded.of("lock_contentions"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn loss_is_counted_once_by_its_cause_with_how_long_the_holder_went_on() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let store = MemoryLocker::new();
    let locker = Instrumented::new(store.peer());
    let mut guard = locker.acquire("orders", TTL).await.unwrap();
    store.lose("orders", LossCause::SessionEnded).unwrap();
    sleep(secs(3)).await;
    assert_eq!(guard.renew(TTL).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(guard.release().await.is_ok());
    // By the clock alone, and by a drop.
    let guard = locker.acquire("orders", secs(1)).await.unwrap();
    sleep(secs(2)).await;
    drop(guard);
    // In a scoped run, whose body runs on.
    let locks = Instrumented::new(Scoped::new(store.peer()));
    let body = async |_hold| {
        store.lose("orders", LossCause::NotOurs).unwrap();
        sleep(secs(4)).await;
    };
    assert_eq!(locks.with_lock("orders", body).await.unwrap_err().error.kind(), ErrorKind::Lost);
    assert_eq!(
        recorded.of("lock_losses"),
        [
            "lock_losses_total{lock_backend=Memory,lock_loss_cause=deadline_passed} 1",
            "lock_losses_total{lock_backend=Memory,lock_loss_cause=session_ended} 1",
            "lock_losses_total{lock_backend=Scoped(Memory),lock_loss_cause=not_ours} 1",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn renewals_have_their_outcomes_and_those_that_fail_are_no_losses() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let store = MemoryLocker::new();
    let inner = Arc::new(store.peer());
    let locker = Instrumented::new(Arc::clone(&inner));
    let mut guard = locker.acquire("orders", TTL).await.unwrap();
    guard.renew(TTL).await.unwrap();
    inner.fail_next(ErrorKind::Unavailable);
    assert_eq!(guard.renew(TTL).await.unwrap_err().kind(), ErrorKind::Unavailable);
    inner.delay(secs(5));
    assert!(tokio::time::timeout(secs(1), guard.renew(TTL)).await.is_err());
    inner.delay(Duration::ZERO);
    guard.release().await.unwrap().exclusive().unwrap();
    assert_eq!(recorded.of("lock_losses"), [""; 0]);
    assert_eq!(
        recorded.of("lock_renew"),
        [
            "lock_renew_duration_seconds{error_type=unavailable,lock_backend=Memory,lock_outcome=error} [0.0]",
            "lock_renew_duration_seconds{lock_backend=Memory,lock_outcome=cancelled} [1.0]",
            "lock_renew_duration_seconds{lock_backend=Memory,lock_outcome=renewed} [0.0]",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn lost_hold_has_an_overrun_and_a_release_that_was_lost() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let store = MemoryLocker::new();
    let guard = Instrumented::new(store.peer()).acquire("orders", TTL).await.unwrap();
    sleep(secs(1)).await;
    store.lose("orders", LossCause::SessionEnded).unwrap();
    sleep(secs(3)).await;
    assert!(matches!(guard.release().await.unwrap(), Release::Lost(_)));
    assert_eq!(
        recorded.lines(),
        [
            "lock_held{lock_backend=Memory} 0",
            "lock_hold_duration_seconds{lock_backend=Memory,lock_outcome=released} [4.0]",
            "lock_losses_total{lock_backend=Memory,lock_loss_cause=session_ended} 1",
            "lock_overrun_duration_seconds{lock_backend=Memory} [3.0]",
            "lock_release_duration_seconds{lock_backend=Memory,lock_outcome=lost} [0.0]",
            "lock_wait_duration_seconds{lock_backend=Memory,lock_outcome=acquired} [0.0]",
            "lock_waiting{lock_backend=Memory} 0",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn cancelled_wait_is_one_contended_call_that_nobody_waits_in_any_more() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let store = MemoryLocker::new();
    let locker = Instrumented::new(store.peer());
    let _somebody = store.hold("orders").unwrap();
    assert!(tokio::time::timeout(secs(2), locker.acquire("orders", TTL)).await.is_err());
    assert_eq!(
        recorded.lines(),
        [
            "lock_contentions_total{lock_backend=Memory,lock_contention_reason=held} 1",
            "lock_wait_duration_seconds{lock_backend=Memory,lock_outcome=cancelled} [2.0]",
            "lock_waiting{lock_backend=Memory} 0",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn every_answer_of_a_call_has_its_outcome() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let store = MemoryLocker::new();
    let inner = Arc::new(store.peer());
    let locker: Arc<dyn Locker> = Arc::new(Instrumented::new(Arc::clone(&inner) as Arc<dyn Locker>));
    let guard = locker.acquire("orders", TTL).await.unwrap();
    assert!(locker.try_acquire("orders", TTL).await.unwrap().is_contended());
    assert!(locker.acquire_within("orders", TTL, secs(1)).await.unwrap().is_contended());
    inner.fail_next(ErrorKind::Unavailable);
    assert!(locker.try_acquire("orders", TTL).await.is_err());
    inner.fail_next(ErrorKind::Unavailable);
    assert!(guard.release().await.is_err());
    drop(locker.acquire("orders", TTL).await.unwrap());
    let outcomes = |name: &str| -> Vec<String> {
        let lines = recorded.lines();
        let of =
            lines.iter().filter_map(|line| line.strip_prefix(&format!("{name}{{lock_backend=Memory,lock_outcome=")));
        let failed = lines.iter().filter_map(|line| line.strip_prefix(&format!("{name}{{error_type=")));
        failed.chain(of).map(|rest| rest.split('}').next().unwrap_or_default().to_owned()).collect()
    };
    let unavailable = "unavailable,lock_backend=Memory,lock_outcome=error";
    assert_eq!(outcomes("lock_wait_duration_seconds"), [unavailable, "acquired", "contended", "wait_elapsed"]);
    assert_eq!(outcomes("lock_release_duration_seconds"), [unavailable]);
    assert_eq!(outcomes("lock_hold_duration_seconds"), ["dropped", "released"]);
    assert_eq!(
        recorded.of("lock_contentions"),
        ["lock_contentions_total{lock_backend=Memory,lock_contention_reason=held_here} 2"]
    );
}

#[tokio::test(start_paused = true)]
async fn body_that_panics_or_is_dropped_leaves_nothing_counted() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let locks: Arc<dyn ScopedLocker> = Arc::new(Instrumented::new(Scoped::new(MemoryLocker::new())));
    let panics = {
        let locks = Arc::clone(&locks);
        tokio::spawn(async move {
            locks.with_lock("orders", async |_| std::panic::resume_unwind(Box::new("on purpose"))).await
        })
    };
    let panicked: Result<Result<(), _>, _> = panics.await;
    assert!(panicked.unwrap_err().is_panic());
    let hangs = locks.with_lock("orders", async |_hold| std::future::pending::<()>().await);
    assert!(tokio::time::timeout(secs(1), hangs).await.is_err());
    assert_eq!(
        recorded.lines(),
        [
            "lock_held{lock_backend=Scoped(Memory)} 0",
            "lock_hold_duration_seconds{lock_backend=Scoped(Memory),lock_outcome=dropped} [1.0]",
            "lock_hold_duration_seconds{lock_backend=Scoped(Memory),lock_outcome=released} [0.0]",
            "lock_release_duration_seconds{lock_backend=Scoped(Memory),lock_outcome=cancelled} [0.0]",
            "lock_wait_duration_seconds{lock_backend=Scoped(Memory),lock_outcome=acquired} [0.0, 0.0]",
            "lock_waiting{lock_backend=Scoped(Memory)} 0",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn class_goes_from_the_options_through_the_adapter_and_is_absent_unless_given() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let locks = Scoped::new(Instrumented::new(MemoryLocker::new()));
    let options = ScopedOptions::new(Wait::Never).with_class("order");
    assert!(locks.with_lock_opts("a", options, async |_| ()).await.unwrap().acquired().is_some());
    let options = AcquireOptions::new(Ttl::UNTIL_RELEASED);
    let key = LockKey::new("a").unwrap();
    let Attempt::Acquired(guard) = Instrumented::new(MemoryLocker::new()).acquire_opts(&key, &options).await.unwrap()
    else {
        panic!("it is free")
    };
    drop(guard);
    assert_eq!(
        recorded.of("lock_held"),
        ["lock_held{lock_backend=Memory,lock_class=order} 0", "lock_held{lock_backend=Memory} 0"]
    );
}
