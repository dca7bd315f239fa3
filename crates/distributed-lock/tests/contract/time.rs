//! The clocks.

use std::time::Duration;

use distributed_lock::{Clock, LockerExt, MemoryLocker, SystemClock, TokioClock};

#[test]
fn the_system_clock_never_goes_back_on_one_thread_or_between_threads() {
    let shared = std::sync::Mutex::new(SystemClock.now());
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..10_000 {
                    let mut last = shared.lock().unwrap();
                    let now = SystemClock.now();
                    assert!(now >= *last);
                    *last = now;
                }
            });
        }
    });
}

/// Whether it also runs through a suspend is a matter of which clock it reads: see the unit test beside it.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_system_clock_runs_as_fast_as_the_boot_clock() {
    use rustix::time::{ClockId, clock_gettime};

    const TOLERANCE: Duration = Duration::from_millis(5);
    let boot = || Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap();
    // A reading of ours lies between two of the other clock, so a stall between them widens the bounds and fails nothing.
    let (before, start, after) = (boot(), SystemClock.now(), boot());
    tokio::time::sleep(Duration::from_millis(60)).await;
    let (before_end, end, after_end) = (boot(), SystemClock.now(), boot());
    let (shortest, longest) = (before_end - after, after_end - before);
    let ours = end - start;
    assert!(ours + TOLERANCE >= shortest && ours <= longest + TOLERANCE, "{ours:?} not in {shortest:?}..{longest:?}");
    assert!(ours >= Duration::from_millis(55), "it stands still: {ours:?}");
}

#[tokio::test(start_paused = true)]
async fn the_tokio_clock_follows_paused_time_and_the_system_clock_does_not() {
    let (tokio, system) = (TokioClock.now(), SystemClock.now());
    tokio::time::advance(Duration::from_secs(1_000)).await;
    assert_eq!(TokioClock.now() - tokio, Duration::from_secs(1_000));
    assert!(SystemClock.now() - system < Duration::from_secs(900));
}

#[tokio::test(start_paused = true)]
async fn a_locker_measures_on_the_clock_it_was_given() {
    let locker = MemoryLocker::with_clock(SystemClock);
    let guard = locker.acquire("k", Duration::from_secs(1_000)).await.unwrap();
    tokio::time::advance(Duration::from_secs(2_000)).await;
    assert!(guard.ensure_valid().is_ok(), "paused time is not this locker's time");
}
