//! What a guard and its views say, and how a hold ends.

use std::time::Duration;

use distributed_lock::{
    AcquireOptions, Contention, ErrorKind, LockKey, Locker, LockerExt, LossCause, MemoryLocker, Release, Ttl,
};

use crate::support::{JumpingClock, TTL, bounded, is_free, poll_once, ready, refusal, secs, take};

#[tokio::test(start_paused = true)]
async fn a_refused_try_says_whether_the_holder_is_this_locker() {
    let locker = MemoryLocker::new();
    let other = locker.peer();
    let guard = take(&locker, "k").await;
    assert_eq!(refusal(&locker, "k").await, Contention::HeldHere);
    assert_eq!(refusal(&other, "k").await, Contention::Held);
    let within = locker.acquire_within("k", TTL, secs(1)).await.unwrap();
    assert_eq!(within.into_result().unwrap_err(), Contention::WaitElapsed);
    assert!(is_free(&locker, "another").await);
    guard.release().await.unwrap().exclusive().unwrap();
    assert!(is_free(&other, "k").await);
    assert!(is_free(&MemoryLocker::new(), "k").await, "a store of its own");
}

#[tokio::test(start_paused = true)]
async fn at_the_deadline_the_holder_is_told_and_the_key_is_free() {
    let locker = MemoryLocker::new();
    let other = locker.peer();
    let guard = locker.acquire("k", secs(2)).await.unwrap();
    let lost = tokio::spawn(guard.lost());
    tokio::time::advance(Duration::from_millis(1999)).await;
    assert!(guard.ensure_valid().is_ok() && !is_free(&other, "k").await);
    assert_eq!(guard.remaining(), Some(Duration::from_millis(1)));
    assert!(!lost.is_finished());
    tokio::time::advance(Duration::from_millis(1)).await;
    let refused = guard.ensure_valid().unwrap_err();
    assert_eq!((refused.kind(), refused.key()), (ErrorKind::Lost, Some(guard.key())));
    assert_eq!(guard.remaining(), Some(Duration::ZERO));
    assert_eq!(bounded(lost).await.unwrap().cause(), LossCause::DeadlinePassed);
    let successor = take(&other, "k").await;
    assert!(matches!(guard.release().await.unwrap(), Release::Lost(_)));
    assert!(successor.ensure_valid().is_ok() && !is_free(&locker, "k").await, "a stale guard frees nothing");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_stale_guard_frees_nothing() {
    let locker = MemoryLocker::new();
    let stale = take(&locker, "k").await;
    tokio::time::advance(TTL).await;
    let successor = take(&locker, "k").await;
    drop(stale);
    assert!(successor.ensure_valid().is_ok() && !is_free(&locker, "k").await);
}

#[tokio::test(start_paused = true)]
async fn release_tells_lapsed_from_lost_and_a_late_renewal_brings_nothing_back() {
    let locker = MemoryLocker::new();
    let mut guard = locker.acquire("k", secs(1)).await.unwrap();
    guard.renew(secs(5)).await.unwrap();
    tokio::time::advance(secs(4)).await;
    assert!(guard.ensure_valid().is_ok(), "the renewal counts");
    tokio::time::advance(secs(1)).await;
    assert_eq!(guard.renew(Ttl::UNTIL_RELEASED).await.unwrap_err().kind(), ErrorKind::Lost);
    let released = guard.release().await.unwrap();
    assert!(matches!(&released, Release::Lapsed(loss) if loss.cause() == LossCause::DeadlinePassed));
    assert!(released.exclusive().is_ok(), "nobody was in between");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_may_shorten_may_lengthen_and_may_take_the_deadline_away() {
    let locker = MemoryLocker::new();
    let mut guard = locker.acquire("k", secs(10)).await.unwrap();
    for (ttl, left) in [(Ttl::new(secs(3)).unwrap(), Some(secs(3))), (Ttl::UNTIL_RELEASED, None)] {
        guard.renew(ttl).await.unwrap();
        assert_eq!(guard.remaining(), left);
    }
    assert_eq!(guard.renew(Duration::ZERO).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    tokio::time::advance(TTL * 1000).await;
    assert!(guard.ensure_valid().is_ok());
    assert_eq!(guard.hold().age(), TTL * 1000);
    guard.renew(secs(2)).await.unwrap();
    tokio::time::advance(secs(2)).await;
    assert!(guard.ensure_valid().is_err() && is_free(&locker, "k").await);
}

#[tokio::test(start_paused = true)]
async fn lost_and_cancelled_never_fire_on_a_release_and_views_do_not_keep_the_lock() {
    let locker = MemoryLocker::new();
    for release in [true, false] {
        let guard = take(&locker, "k").await;
        let (hold, lost, cancelled) =
            (guard.hold(), tokio::spawn(guard.lost()), tokio::spawn(guard.hold().cancelled()));
        tokio::task::yield_now().await;
        match release {
            true => assert!(guard.release().await.unwrap().exclusive().is_ok()),
            false => drop(guard),
        }
        assert_eq!(hold.ensure_valid().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(hold.remaining(), Some(Duration::ZERO));
        assert!(is_free(&locker, "k").await);
        tokio::time::sleep(TTL * 2).await;
        assert!(!lost.is_finished() && !cancelled.is_finished());
        assert!(!ready(hold.lost()) && !ready(hold.cancelled()), "nor for those who ask later");
        lost.abort();
        cancelled.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn from_the_start_of_a_release_on_no_view_vouches_for_the_lock() {
    let locker = MemoryLocker::new();
    let guard = take(&locker, "k").await;
    let hold = guard.hold();
    locker.delay(secs(1));
    let mut release = Box::pin(guard.release());
    assert!(poll_once(release.as_mut()).is_none());
    assert!(hold.ensure_valid().is_err() && !ready(hold.lost()));
    assert!(matches!(bounded(release).await.unwrap(), Release::Released));
}

#[tokio::test(start_paused = true)]
async fn cancelled_fires_on_a_loss_and_at_the_deadline() {
    let locker = MemoryLocker::new();
    let guard = take(&locker, "k").await;
    let cancelled = tokio::spawn(guard.hold().cancelled());
    tokio::task::yield_now().await;
    assert!(!cancelled.is_finished());
    locker.lose("k", LossCause::SessionEnded).unwrap();
    bounded(cancelled).await.unwrap();

    let guard = locker.acquire("k", secs(2)).await.unwrap();
    let start = tokio::time::Instant::now();
    bounded(guard.hold().cancelled()).await;
    assert_eq!(start.elapsed(), secs(2));
}

#[tokio::test(start_paused = true)]
async fn the_notice_before_the_deadline_follows_renewals() {
    let locker = MemoryLocker::new();
    let mut guard = locker.acquire("k", secs(10)).await.unwrap();
    let start = tokio::time::Instant::now();
    let near = tokio::spawn(guard.hold().near_deadline(secs(4)));
    tokio::time::sleep(secs(5)).await;
    assert!(!near.is_finished());
    guard.renew(secs(10)).await.unwrap();
    bounded(near).await.unwrap();
    assert_eq!(start.elapsed(), secs(11), "four seconds before the new deadline");
    assert!(ready(guard.hold().near_deadline(secs(4))) && !ready(guard.hold().near_deadline(secs(3))));
}

#[tokio::test(start_paused = true)]
async fn a_step_down_request_reaches_the_holder_and_takes_nothing_away() {
    let locker = MemoryLocker::new();
    let other = locker.peer();
    let guard = take(&locker, "k").await;
    let asked = tokio::spawn(guard.hold().step_down_requested());
    assert_eq!(refusal(&other, "k").await, Contention::Held);
    tokio::task::yield_now().await;
    assert!(!asked.is_finished(), "contention alone asks for nothing");
    let options = AcquireOptions::new(Ttl::new(TTL).unwrap()).with_step_down_request();
    let tried = other.acquire_opts(&LockKey::new("k").unwrap(), &options).await.unwrap();
    assert!(tried.is_contended());
    bounded(asked).await.unwrap();
    assert!(guard.ensure_valid().is_ok() && !ready(guard.lost()));
}

#[tokio::test(start_paused = true)]
async fn after_a_suspend_the_check_fails_at_once_although_no_timer_fired() {
    let clock = JumpingClock::default();
    let locker = MemoryLocker::with_clock(clock.clone());
    let other = locker.peer();
    let mut guard = take(&locker, "k").await;
    let lost = tokio::spawn(guard.lost());
    tokio::task::yield_now().await;
    clock.jump(TTL - Duration::from_nanos(1));
    assert!(guard.ensure_valid().is_ok() && !is_free(&other, "k").await);
    clock.jump(Duration::from_nanos(1));
    assert_eq!(guard.ensure_valid().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.remaining(), Some(Duration::ZERO));
    tokio::task::yield_now().await;
    assert!(!lost.is_finished(), "the timer slept through it");
    assert_eq!(guard.renew(TTL).await.unwrap_err().kind(), ErrorKind::Lost);
    let successor = take(&other, "k").await;
    assert!(guard.release().await.unwrap().exclusive().is_err());
    assert!(successor.ensure_valid().is_ok());
    assert_eq!(bounded(lost).await.unwrap().cause(), LossCause::DeadlinePassed);
}

#[tokio::test(start_paused = true)]
async fn after_a_suspend_a_new_holder_is_news_to_the_old_one_before_its_timer_fires() {
    let clock = JumpingClock::default();
    let locker = MemoryLocker::with_clock(clock.clone());
    let old = take(&locker, "k").await;
    let lost = tokio::spawn(old.lost());
    tokio::task::yield_now().await;
    clock.jump(TTL);
    let _new = take(&locker.peer(), "k").await;
    tokio::task::yield_now().await;
    assert!(lost.is_finished());
    assert_eq!(lost.await.unwrap().cause(), LossCause::DeadlinePassed);
}

#[test]
fn dropping_a_guard_needs_no_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (locker, first) = (MemoryLocker::new(), runtime());
    let guard = first.block_on(take(&locker, "k"));
    drop(first);
    drop(guard);
    runtime().block_on(async { assert!(is_free(&locker, "k").await) });
}

#[tokio::test(start_paused = true)]
async fn a_guard_prints_its_own_key_escaped_and_nobody_elses() {
    let locker = MemoryLocker::new();
    let _another = take(&locker, "another").await;
    let guard = take(&locker, "a\nb").await;
    let shown = format!("{guard:?} {locker:?}");
    assert!(shown.contains(r#""a\nb""#) && !shown.contains('\n'), "{shown}");
    assert!(!shown.contains("another"), "{shown}");
}
