//! The scripted backend through the user's calls.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use distributed_lock::{
    Attempt, Backend, Clock, Contention, ErrorKind, Locker, LockerExt, Loss, LossCause, Ran, Release, Scoped,
    ScopedLocker, ScopedLockerExt, TokioClock, Ttl,
};

use crate::scripted::{ScriptedLocker, Session, TTL};

async fn leaks(locker: &ScriptedLocker, polls: usize) -> bool {
    let mut futures: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = vec![
        Box::pin(async { drop(locker.try_acquire("k", TTL).await) }),
        Box::pin(async {
            drop(locker.acquire_within("k", TTL, TTL).await.unwrap().acquired().unwrap().release().await)
        }),
    ];
    for future in &mut futures {
        for _ in 0..polls {
            if tokio::time::timeout(Duration::ZERO, &mut *future).await.is_ok() {
                break;
            }
        }
    }
    drop(futures);
    !locker.held.lock().unwrap().is_empty()
}

#[tokio::test(start_paused = true)]
async fn the_sweep_passes_and_catches_a_planted_leak() {
    for leaky in [false, true] {
        let mut leaked = false;
        for polls in 0..12 {
            leaked |= leaks(&ScriptedLocker::new().leaky(leaky), polls).await;
        }
        assert_eq!(leaked, leaky);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_queue_still_waits() {
    let locker = ScriptedLocker::new();
    let guard = locker.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap().acquired().unwrap();
    let start = TokioClock.now();
    let waited = locker.acquire_within("k", TTL, Duration::from_secs(2)).await.unwrap();
    assert!(matches!(waited, Attempt::Contended(Contention::WaitElapsed)));
    assert_eq!(TokioClock.now() - start, Duration::from_secs(2));
    let (next, ()) = tokio::join!(locker.acquire_within("k", TTL, TTL), async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        drop(guard);
    });
    assert!(next.unwrap().acquired().unwrap().ensure_valid().is_ok());
    assert!(TokioClock.now() - start <= Duration::from_secs(6), "polled at least every second");
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_tried_again_and_a_failed_release_abandons() {
    let locker = ScriptedLocker::new();
    let mut guard = locker.acquire("k", TTL).await.unwrap();
    locker.fail_next([ErrorKind::Unavailable, ErrorKind::Unavailable]);
    let nap = tokio::time::sleep(TTL * 3);
    assert!(matches!(guard.run(Duration::ZERO, nap).await.unwrap(), Ran::Done(())));
    locker.fail_next([ErrorKind::Unavailable]);
    assert_eq!(guard.release().await.unwrap_err().code(), Some("08006"));
    assert_eq!(locker.abandoned(), 1);
    locker.try_acquire("k", TTL).await.unwrap().acquired().unwrap().release().await.unwrap().exclusive().unwrap();
    assert_eq!(locker.abandoned(), 1, "a release that succeeded is the end of it");
}

#[tokio::test(start_paused = true)]
async fn a_value_of_the_backend_goes_through_every_wrapper() {
    let stack: Arc<dyn Locker> = Arc::new(Box::new(ScriptedLocker::new()));
    let guard = stack.acquire("k", TTL).await.unwrap();
    assert_eq!(guard.hold().backend_value::<Session>().as_deref(), Some(&Session(7)));
    assert!(guard.hold().backend_value::<u32>().is_none(), "not of another type");
    drop(guard);
    let locks: Box<dyn ScopedLocker> = Box::new(Scoped::new(stack));
    let seen = locks.try_with_lock("k", async |hold| hold.backend_value::<Session>()).await.unwrap();
    assert_eq!(seen.acquired().unwrap().as_deref(), Some(&Session(7)));
    let none = distributed_lock::MemoryLocker::new().acquire("k", TTL).await.unwrap();
    assert!(none.hold().backend_value::<Session>().is_none());
}

#[tokio::test(start_paused = true)]
async fn the_record_knows_better_than_the_answer_why_a_hold_ended() {
    let locker = ScriptedLocker::new();
    let guard = locker.acquire("k", TTL).await.unwrap();
    let record = locker.held.lock().unwrap().values().next().unwrap().clone();
    record.lose(Loss::new(LossCause::HeartbeatTimeout));
    // The store says "released": so nobody else can have had it.
    let released = guard.release().await.unwrap();
    assert!(matches!(released, Release::Lapsed(loss) if loss.cause() == LossCause::HeartbeatTimeout));
}

#[tokio::test(start_paused = true)]
async fn a_close_of_the_backend_reaches_its_guards() {
    let locker = ScriptedLocker::new();
    let guard = locker.acquire("k", TTL).await.unwrap();
    locker.ping().await.unwrap();
    locker.close().await.unwrap();
    assert_eq!(guard.lost().await.cause(), LossCause::Closed);
}
