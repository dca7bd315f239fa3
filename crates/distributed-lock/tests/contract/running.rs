//! `LockGuard::run`: renewals, the grace, and the drop at the deadline.

use std::{error::Error as StdError, sync::Arc, time::Duration};

use distributed_lock::{
    Clock, ErrorKind, LockGuard, LockerExt, LossCause, MemoryLocker, Ran, Release, TokioClock, Ttl,
};

use crate::support::{DropTime, Flag, JumpingClock, TTL, bounded, deaf, is_free, secs, since, take};

/// A hold of eight seconds, renewed every second.
async fn eight(locker: &MemoryLocker) -> LockGuard {
    locker.try_acquire("k", secs(8)).await.unwrap().acquired().unwrap()
}

#[tokio::test(start_paused = true)]
async fn work_under_a_guard_borrows_outlives_the_ttl_and_leaves_the_guard() {
    let locker = MemoryLocker::new();
    let mut guard = locker.acquire("k", secs(3)).await.unwrap();
    let local = String::from("borrowed");
    let work = async {
        tokio::time::sleep(secs(60)).await;
        local.len()
    };
    assert!(matches!(guard.run(secs(1), work).await.unwrap(), Ran::Done(8)));
    assert!(matches!(guard.release().await.unwrap(), Release::Released));
}

#[tokio::test(start_paused = true)]
async fn a_grace_that_does_not_fit_is_refused_with_both_numbers_and_the_work_not_polled() {
    let locker = MemoryLocker::new();
    let mut guard = take(&locker, "k").await;
    let polled = Flag::default();
    let refused = guard.run(Duration::from_millis(22_501), async { polled.raise() }).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert_eq!(
        refused.source().unwrap().to_string(),
        "invalid grace (22.501s): must be at most 22.5s for a TTL of 30s; use a longer TTL"
    );
    assert!(!polled.is_up());
    assert!(guard.ensure_valid().is_ok(), "the guard is as it was");
    let fits = guard.run(Duration::from_millis(22_500), async { polled.raise() }).await.unwrap();
    assert!(matches!(fits, Ran::Done(())) && polled.is_up());
    guard.renew(Ttl::UNTIL_RELEASED).await.unwrap();
    assert!(matches!(guard.run(TTL * 1000, async {}).await.unwrap(), Ran::Done(())), "any grace fits without a TTL");
}

#[tokio::test(start_paused = true)]
async fn when_renewals_hang_the_work_is_told_a_grace_before_the_deadline_and_dropped_at_it() {
    let locker = MemoryLocker::new();
    let mut guard = eight(&locker).await;
    let (start, dropped, told) = (TokioClock.now(), DropTime::default(), DropTime::default());
    locker.delay(secs(1_000));
    let hold = guard.hold();
    let work = async {
        let probe = told.probe();
        hold.cancelled().await;
        drop(probe);
        assert!(hold.ensure_valid().is_ok(), "still ours");
        deaf(dropped.probe()).await;
    };
    let ran = bounded(guard.run(secs(3), work)).await.unwrap();
    assert_eq!(told.get().map(|at| at - start), Some(secs(5)));
    assert_eq!(dropped.get().map(|at| at - start), Some(secs(8)), "not earlier and not later");
    let Ran::Lost { value: None, loss, overrun } = ran else { panic!("{ran:?}") };
    assert_eq!((loss.cause(), overrun), (LossCause::DeadlinePassed, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn when_renewals_fail_the_work_may_end_within_the_grace() {
    let locker = MemoryLocker::new();
    let mut guard = eight(&locker).await;
    (0..1_000).for_each(|_| locker.fail_next(ErrorKind::Unavailable));
    let (hold, start) = (guard.hold(), TokioClock.now());
    let polite = async {
        hold.cancelled().await;
        tokio::time::sleep(secs(2)).await;
        since(start)
    };
    let ran = bounded(guard.run(secs(3), polite)).await.unwrap();
    assert!(matches!(ran, Ran::Done(ended) if ended == secs(7)), "{ran:?}");
    assert!(guard.ensure_valid().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_for_a_while_is_made_up_for() {
    let locker = MemoryLocker::new();
    let mut guard = eight(&locker).await;
    // The first is due after one second; each next half a second later, so the ninth is in time.
    (0..8).for_each(|_| locker.fail_next(ErrorKind::Unavailable));
    let hold = guard.hold();
    let work = async {
        tokio::time::sleep(secs(100)).await;
        hold.remaining().unwrap()
    };
    let ran = bounded(guard.run(secs(1), work)).await.unwrap();
    assert!(matches!(ran, Ran::Done(left) if left >= secs(7)), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn work_is_kept_alive_with_the_ttl_of_the_last_renewal() {
    let locker = MemoryLocker::new();
    let mut guard = eight(&locker).await;
    guard.renew(secs(80)).await.unwrap();
    let hold = guard.hold();
    let work = async {
        tokio::time::sleep(secs(200)).await;
        hold.remaining().unwrap()
    };
    let ran = bounded(guard.run(secs(1), work)).await.unwrap();
    assert!(matches!(ran, Ran::Done(left) if left >= secs(70)), "{ran:?}");
    guard.renew(Ttl::UNTIL_RELEASED).await.unwrap();
    locker.fail_next(ErrorKind::Lost);
    let ran = bounded(guard.run(secs(1), tokio::time::sleep(secs(200)))).await.unwrap();
    assert!(matches!(ran, Ran::Done(())), "without a TTL there is nothing to renew: {ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_near_its_deadline_is_renewed_before_the_work_starts() {
    let locker = MemoryLocker::new();
    let mut guard = eight(&locker).await;
    tokio::time::sleep(secs(6)).await;
    let hold = guard.hold();
    let ran = guard.run(secs(4), async { hold.remaining() }).await.unwrap();
    assert!(matches!(ran, Ran::Done(Some(left)) if left == secs(8)), "{ran:?}");

    // With enough left, nothing is asked of the store first.
    locker.fail_next(ErrorKind::Unavailable);
    assert!(guard.run(secs(4), async {}).await.is_ok());
    // And where that renewal fails, the work does not start.
    tokio::time::sleep(secs(6)).await;
    let polled = Flag::default();
    let failed = guard.run(secs(4), async { polled.raise() }).await.unwrap_err();
    assert_eq!((failed.kind(), polled.is_up()), (ErrorKind::Unavailable, false));
    assert!(guard.ensure_valid().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_found_lost_runs_nothing() {
    for found_by_the_store in [false, true] {
        let locker = MemoryLocker::new();
        let mut guard = eight(&locker).await;
        match found_by_the_store {
            // The renewal before the work is what finds it.
            true => {
                tokio::time::sleep(secs(6)).await;
                locker.fail_next(ErrorKind::Lost);
            }
            false => tokio::time::sleep(secs(8)).await,
        }
        let polled = Flag::default();
        let ran = guard.run(secs(4), async { polled.raise() }).await.unwrap();
        assert!(matches!(ran, Ran::Lost { value: None, overrun: Duration::ZERO, .. }), "{ran:?}");
        assert!(!polled.is_up());
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_run_is_not_told_to_end_for_what_the_first_was() {
    let locker = MemoryLocker::new();
    let mut guard = eight(&locker).await;
    locker.delay(secs(1_000));
    let hold = guard.hold();
    assert!(matches!(bounded(guard.run(secs(3), hold.cancelled())).await.unwrap(), Ran::Done(())));
    locker.delay(Duration::ZERO);
    let work = async {
        tokio::select! {
            biased;
            () = hold.cancelled() => false,
            () = tokio::time::sleep(secs(60)) => true,
        }
    };
    let ran = bounded(guard.run(secs(3), work)).await.unwrap();
    assert!(matches!(ran, Ran::Done(true)), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_loss_the_work_has_its_grace_and_the_overrun_is_reported() {
    let locker = Arc::new(MemoryLocker::new());
    let lose_later = |after| {
        let locker = Arc::clone(&locker);
        async move {
            tokio::time::sleep(after).await;
            assert!(locker.lose("k", LossCause::SessionEnded).unwrap());
        }
    };
    let mut guard = eight(&locker).await;
    let (start, dropped) = (TokioClock.now(), DropTime::default());
    let work = guard.run(secs(6), deaf(dropped.probe()));
    let (ran, ()) = bounded(async { tokio::join!(work, lose_later(Duration::from_millis(1_500))) }).await;
    assert_eq!(dropped.get().map(|at| at - start), Some(Duration::from_millis(7_500)));
    let Ran::Lost { value: None, loss, overrun } = ran.unwrap() else { panic!("lost") };
    assert_eq!((loss.cause(), overrun), (LossCause::SessionEnded, secs(6)));
    assert!(matches!(guard.release().await.unwrap(), Release::Lost(_)));

    // Work that heeds the call gets its value out, with what it overran.
    let mut guard = eight(&locker).await;
    let hold = guard.hold();
    let polite = async {
        hold.cancelled().await;
        tokio::time::sleep(secs(1)).await;
        7
    };
    let (ran, ()) = bounded(async { tokio::join!(guard.run(secs(2), polite), lose_later(secs(5))) }).await;
    assert!(matches!(ran.unwrap(), Ran::Lost { value: Some(7), overrun, .. } if overrun == secs(1)));
}

/// After a suspend of six of the eight seconds, two are left until the store lets somebody else in.
#[tokio::test(start_paused = true)]
async fn the_grace_is_cut_at_the_deadline_only_where_the_store_may_still_count_us_as_the_holder() {
    for (cause, given) in [
        (LossCause::HeartbeatTimeout, secs(2)),
        (LossCause::SessionEnded, secs(2)),
        (LossCause::NotOurs, secs(4)),
        (LossCause::Closed, secs(4)),
    ] {
        let clock = JumpingClock::default();
        let locker = MemoryLocker::with_clock(clock.clone());
        let mut guard = eight(&locker).await;
        let (start, dropped) = (TokioClock.now(), DropTime::default());
        let suspend = async {
            clock.jump(secs(6));
            assert!(locker.lose("k", cause).unwrap());
        };
        let work = guard.run(secs(4), deaf(dropped.probe()));
        let (ran, ()) = bounded(async { tokio::join!(work, suspend) }).await;
        assert!(matches!(ran.unwrap(), Ran::Lost { value: None, loss, .. } if loss.cause() == cause));
        assert_eq!(dropped.get().map(|at| at - start), Some(given), "{cause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspend_past_the_deadline_leaves_no_grace() {
    let clock = JumpingClock::default();
    let locker = MemoryLocker::with_clock(clock.clone());
    let mut guard = eight(&locker).await;
    let dropped = DropTime::default();
    let suspend = async { clock.jump(secs(20)) };
    let start = TokioClock.now();
    let work = guard.run(secs(4), deaf(dropped.probe()));
    let (ran, ()) = bounded(async { tokio::join!(work, suspend) }).await;
    let Ran::Lost { value: None, loss, overrun } = ran.unwrap() else { panic!("lost") };
    assert_eq!(loss.cause(), LossCause::DeadlinePassed);
    // The first timer to fire, the renewal's, finds it: a second of running, after twelve of suspend past the deadline.
    assert_eq!((dropped.get().map(|at| at - start), overrun), (Some(secs(1)), secs(13)));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_drops_the_work_and_leaves_the_guard() {
    let locker = MemoryLocker::new();
    let mut guard = eight(&locker).await;
    let dropped = DropTime::default();
    let run = guard.run(secs(3), deaf(dropped.probe()));
    assert!(tokio::time::timeout(secs(20), run).await.is_err());
    assert!(dropped.get().is_some());
    assert!(guard.ensure_valid().is_ok() && !is_free(&locker, "k").await);
    drop(guard);
    assert!(is_free(&locker, "k").await);
}
