//! Fencing tokens of grants.

use distributed_lock::{
    AcquireOptions, Attempt, Fencing, FencingToken, LockGuard, LockKey, Locker, MemoryLocker, ScopedLockerExt,
    ScopedOptions, Ttl, Wait,
};

use crate::support::{TTL, scoped, take};

async fn take_with(locker: &impl Locker, fencing: Fencing) -> LockGuard {
    let options = AcquireOptions::new(Ttl::new(TTL).unwrap()).with_fencing(fencing);
    locker.acquire_opts(&LockKey::new("k").unwrap(), &options).await.unwrap().acquired().unwrap()
}

#[tokio::test(start_paused = true)]
async fn tokens_rise_with_every_grant_of_a_key_whoever_gets_it() {
    let ours = MemoryLocker::new();
    let theirs = ours.peer();
    let mut last = FencingToken::new(0);
    for round in 0..10 {
        let guard = take(if round % 2 == 0 { &ours } else { &theirs }, "k").await;
        let token = guard.fencing_token().unwrap();
        assert!(token > last, "{token} after {last}");
        assert_eq!(guard.hold().fencing_token(), Some(token));
        last = token;
        match round % 3 {
            0 => guard.release().await.unwrap().exclusive().unwrap(),
            1 => drop(guard),
            _ => tokio::time::advance(TTL).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn off_gives_no_token_and_costs_the_order_nothing() {
    let locker = MemoryLocker::new();
    let before = take_with(&locker, Fencing::Default).await.fencing_token().unwrap();
    let off = take_with(&locker, Fencing::Off).await;
    assert_eq!((off.fencing_token(), off.hold().fencing_token()), (None, None));
    drop(off);
    assert!(take_with(&locker, Fencing::On).await.fencing_token().unwrap() > before);
}

#[tokio::test(start_paused = true)]
async fn a_scoped_run_asks_for_the_token_it_was_told_to() {
    let locks = scoped(MemoryLocker::new());
    for (fencing, expected) in [(Fencing::Default, true), (Fencing::Off, false), (Fencing::On, true)] {
        let options = ScopedOptions::new(Wait::Never).with_fencing(fencing);
        let ran = locks.with_lock_opts("k", options, async |hold| hold.fencing_token().is_some()).await.unwrap();
        assert!(matches!(ran, Attempt::Acquired(seen) if seen == expected), "{fencing:?}");
    }
}
