use distributed_lock::{LockerExt, LossCause, MemoryLocker, Scoped, ScopedLockerExt};

use super::*;

const TTL: Duration = Duration::from_secs(30);

fn faulty() -> (Faulty<MemoryLocker>, MemoryLocker) {
    let memory = MemoryLocker::new();
    let peer = memory.peer();
    (Faulty::new(memory), peer)
}

async fn is_free(locker: &MemoryLocker) -> bool {
    !locker.try_acquire("orders", TTL).await.unwrap().is_contended()
}

#[tokio::test(start_paused = true)]
async fn an_error_strikes_once_before_anything_happens_and_by_kind_of_call() {
    let (locker, peer) = faulty();
    locker.faults().next(Call::Acquire, Fault::Error(ErrorKind::Unavailable));
    locker.ping().await.unwrap();
    assert_eq!(locker.try_acquire("orders", TTL).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(is_free(&peer).await);
    assert!(!locker.try_acquire("orders", TTL).await.unwrap().is_contended());
    assert_eq!(locker.faults().unmet(), 0);
}

#[tokio::test(start_paused = true)]
async fn faults_of_one_call_add_up_in_order() {
    let (locker, _) = faulty();
    for kind in [ErrorKind::Unavailable, ErrorKind::Denied] {
        locker.faults().next(Call::Ping, Fault::Error(kind));
    }
    assert_eq!(locker.faults().unmet(), 2);
    assert_eq!(locker.ping().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(locker.ping().await.unwrap_err().kind(), ErrorKind::Denied);
    locker.ping().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_delay_takes_its_time_and_then_the_call_happens() {
    let (locker, peer) = faulty();
    locker.faults().next(Call::Acquire, Fault::Delay(Duration::from_secs(2)));
    let started = tokio::time::Instant::now();
    let guard = locker.acquire("orders", TTL).await.unwrap();
    assert_eq!(started.elapsed(), Duration::from_secs(2));
    assert!(!is_free(&peer).await);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_whose_reply_was_lost_leaves_nothing_held() {
    let (locker, peer) = faulty();
    locker.faults().next(Call::Acquire, Fault::LostReply(ErrorKind::Indeterminate));
    assert_eq!(locker.acquire("orders", TTL).await.unwrap_err().kind(), ErrorKind::Indeterminate);
    assert!(is_free(&peer).await);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_reply_was_lost_has_happened() {
    let (locker, peer) = faulty();
    let mut guard = locker.acquire("orders", TTL).await.unwrap();
    locker.faults().next(Call::Renew, Fault::LostReply(ErrorKind::Unavailable));
    assert_eq!(guard.renew(TTL * 4).await.unwrap_err().kind(), ErrorKind::Unavailable);
    sleep(TTL * 2).await;
    assert!(!is_free(&peer).await);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_reply_was_lost_has_happened_and_frees_nobody_else() {
    let (locker, peer) = faulty();
    let guard = locker.acquire("orders", TTL).await.unwrap();
    locker.faults().next(Call::Release, Fault::LostReply(ErrorKind::Indeterminate));
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Indeterminate);
    assert!(is_free(&peer).await);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_failed_is_followed_by_a_drop_that_frees() {
    let (locker, peer) = faulty();
    let guard = locker.acquire("orders", TTL).await.unwrap();
    locker.faults().next(Call::Release, Fault::Error(ErrorKind::Unavailable));
    guard.release().await.unwrap_err();
    assert!(is_free(&peer).await);
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_reply_was_lost_gives_the_value_back() {
    let locker = Faulty::new(Scoped::new(MemoryLocker::new()));
    locker.faults().next(Call::Run, Fault::LostReply(ErrorKind::Indeterminate));
    let failed = locker.with_lock("orders", async |_| 7).await.unwrap_err();
    assert_eq!((failed.error.kind(), failed.value), (ErrorKind::Indeterminate, Some(7)));
    locker.faults().next(Call::Run, Fault::Error(ErrorKind::Unavailable));
    let failed = locker.with_lock("orders", async |_| 7).await.unwrap_err();
    assert_eq!((failed.error.kind(), failed.value), (ErrorKind::Unavailable, None));
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_lost_on_cue_and_its_key_is_free_for_others() {
    let (locker, peer) = faulty();
    let cue = locker.faults().lose_next();
    assert!(!cue.fire(LossCause::SessionEnded), "nobody holds yet");
    let mut guard = locker.acquire("orders", TTL).await.unwrap();
    guard.ensure_valid().unwrap();
    assert!(!is_free(&peer).await);

    assert!(cue.fire(LossCause::SessionEnded));
    assert_eq!(guard.lost().await.cause(), LossCause::SessionEnded);
    let _next = peer.try_acquire("orders", TTL).await.unwrap().acquired().expect("the key is free after the loss");
    assert_eq!(guard.renew(TTL).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(matches!(guard.release().await.unwrap(), Release::Lost(_)));
    assert!(!is_free(&peer).await, "the release of a lost hold took the key from the next");
    assert!(!cue.fire(LossCause::SessionEnded), "a hold is lost once");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_can_be_lost_is_otherwise_as_any() {
    let (locker, peer) = faulty();
    let cue = locker.faults().lose_next();
    let mut guard = locker.acquire("orders", TTL).await.unwrap();
    guard.renew(TTL * 4).await.unwrap();
    sleep(TTL * 2).await;
    guard.ensure_valid().unwrap();
    assert!(!is_free(&peer).await);
    assert!(matches!(guard.release().await.unwrap(), Release::Released));
    assert!(is_free(&peer).await);
    assert!(!cue.fire(LossCause::NotOurs), "it was released");

    let _cue = locker.faults().lose_next();
    let guard = locker.acquire("orders", TTL).await.unwrap();
    peer.lose("orders", LossCause::SessionEnded).unwrap();
    assert_eq!(guard.lost().await.cause(), LossCause::SessionEnded, "a loss of the wrapped locker is passed on");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_body_is_told_of_a_loss_on_cue_and_its_value_comes_back_with_it() {
    let locker = Faulty::new(Scoped::new(MemoryLocker::new()));
    let cue = locker.faults().lose_next();
    let failed = locker.with_lock("orders", async |hold| {
        assert!(cue.fire(LossCause::SessionEnded));
        hold.lost().await.cause()
    });
    let failed = failed.await.unwrap_err();
    assert_eq!((failed.error.kind(), failed.value), (ErrorKind::Lost, Some(LossCause::SessionEnded)));

    let _cue = locker.faults().lose_next();
    let long = locker.with_lock("orders", async |hold| {
        sleep(TTL * 4).await;
        hold.ensure_valid()
    });
    long.await.unwrap().unwrap();
    assert_eq!(locker.faults().unmet(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_cue_waits_for_a_run_that_comes_to_its_body() {
    let memory = MemoryLocker::new();
    let somebody = memory.hold("orders").unwrap();
    let locker = Faulty::new(Scoped::new(memory));
    let cue = locker.faults().lose_next();
    assert!(locker.try_with_lock("orders", async |_| ()).await.unwrap().is_contended());
    assert_eq!(locker.faults().unmet(), 1);
    drop(somebody);
    let failed = locker.with_lock("orders", async |_| cue.fire(LossCause::NotOurs)).await.unwrap_err();
    assert_eq!((failed.error.kind(), failed.value), (ErrorKind::Lost, Some(true)));
}
