//! Keys, TTLs, answers and errors.

use std::{collections::HashSet, error::Error as StdError, sync::Arc, time::Duration};

use distributed_lock::{
    Attempt, Backend, BackendId, Contention, Error, ErrorKind, FencingToken, Hold, InvalidInput, LockGuard, LockKey,
    Locker, LockerExt, Loss, LossCause, MemoryLocker, ScopedLocker, Ttl,
};
use lock_testkit::ERROR_KINDS;

use crate::support::{Counted, TTL, scoped, take};

#[tokio::test(start_paused = true)]
async fn keys_and_ttls_are_parsed_at_the_call() {
    let locker = MemoryLocker::new();
    let (parsed, owned) = (LockKey::new("orders").unwrap(), String::from("orders"));
    let guards = [
        locker.try_acquire("orders", TTL).await.unwrap(),
        locker.try_acquire(&parsed, Ttl::UNTIL_RELEASED).await.unwrap(),
        locker.try_acquire(&owned, Ttl::new(TTL).unwrap()).await.unwrap(),
        locker.try_acquire(owned, TTL).await.unwrap(),
    ];
    let contended = guards.iter().map(Attempt::is_contended).collect::<Vec<_>>();
    assert_eq!(contended, [false, true, true, true], "all four forms name one lock");
    for (key, ttl, rule) in [
        ("", TTL, "invalid lock key (0 bytes): must be 1 to 512 bytes long"),
        ("k", Duration::ZERO, "invalid ttl (0ns): must be between 1 ms and 366 days"),
        ("k", Duration::from_micros(900), "invalid ttl (900µs): must be between 1 ms and 366 days"),
        ("k", Duration::MAX, "invalid ttl (18446744073709551615.999999999s): must be between 1 ms and 366 days"),
    ] {
        let refused = locker.try_acquire(key, ttl).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert_eq!(refused.source().unwrap().to_string(), rule);
        assert!(refused.source().unwrap().is::<InvalidInput>());
    }
    for ttl in [Duration::from_millis(1), Duration::from_secs(366 * 24 * 60 * 60)] {
        assert_eq!(Ttl::new(ttl).unwrap().duration(), Some(ttl), "both limits are allowed");
    }
}

#[test]
fn what_users_keep_can_move_and_be_shared_and_an_error_is_one_word_wide() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<LockGuard>();
    shared::<Hold>();
    shared::<Error>();
    shared::<Arc<dyn Locker>>();
    shared::<Arc<dyn ScopedLocker>>();
    assert_eq!(size_of::<Error>(), size_of::<usize>());
    assert_eq!(size_of::<Result<(), Error>>(), size_of::<usize>());
}

#[test]
fn an_id_is_of_one_locker_only_and_goes_through_wrappers() {
    let locker = Arc::new(MemoryLocker::new());
    let id = locker.id();
    let ids: HashSet<BackendId> = [id, locker.peer().id(), MemoryLocker::new().id(), BackendId::fresh()].into();
    assert_eq!(ids.len(), 4, "two lockers shared an id");

    let shared: Arc<dyn Locker> = locker.clone();
    let boxed: Box<dyn Locker> = Box::new(Arc::clone(&locker));
    let adapted: Arc<dyn ScopedLocker> = Arc::new(scoped(Arc::clone(&locker)));
    let stack: Box<dyn ScopedLocker> = Box::new(scoped(Counted::new(Arc::clone(&shared))));
    assert_eq!([shared.id(), boxed.id(), adapted.id(), stack.id()], [id; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_dyn_stack_prints_itself_and_passes_on_what_the_locker_says() {
    let locker = Arc::new(MemoryLocker::new());
    let stack: Arc<dyn ScopedLocker> = Arc::new(scoped(Counted::new(Arc::clone(&locker) as Arc<dyn Locker>)));
    assert_eq!(stack.to_string(), "Scoped(Counted(Memory))");
    assert_eq!(stack.capabilities(), locker.capabilities());
    assert_eq!(stack.guarantees(), locker.guarantees());
    stack.ping().await.unwrap();
    locker.fail_next(ErrorKind::Unavailable);
    assert_eq!(stack.ping().await.unwrap_err().kind(), ErrorKind::Unavailable);
    stack.close().await.unwrap();
    assert_eq!(locker.ping().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn guarantees_print_one_line_with_every_bound() {
    let line = MemoryLocker::new().guarantees().to_string();
    assert!(!line.contains('\n'), "{line}");
    for part in ["detection <= 0ns", "cut holder unbounded", "released <= 0ns", "partitioned unbounded", "hangs keeps"]
    {
        assert!(line.contains(part), "{part:?} is missing in {line:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn contention_becomes_an_error_where_the_caller_wants_one() {
    let locker = MemoryLocker::new();
    let _held = take(&locker, "k").await;
    let asked: Result<LockGuard, Error> = async { Ok(locker.try_acquire("k", TTL).await?.into_result()?) }.await;
    let refused = asked.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Contended);
    assert_eq!(refused.source().unwrap().downcast_ref::<Contention>(), Some(&Contention::HeldHere));
}

#[test]
fn an_attempt_changes_its_value_only() {
    let acquired: Attempt<u32> = Attempt::Acquired(3);
    assert!(!acquired.is_contended());
    assert_eq!(acquired.map(|n| n + 1).acquired(), Some(4));
    let contended: Attempt<u32> = Attempt::Contended(Contention::NoConnection);
    assert!(contended.is_contended());
    assert_eq!(contended.map(|n| n + 1).into_result(), Err(Contention::NoConnection));
}

#[test]
fn an_error_keeps_its_parts_and_prints_the_key_escaped() {
    let key = LockKey::new("a\n\u{1b}[31m").unwrap();
    let loss = Loss::new(LossCause::SessionEnded).with_source(std::io::Error::other("cable"));
    let error = Error::new(ErrorKind::Unavailable, "the store did not answer")
        .with_key(&key)
        .with_code("57P01")
        .with_retry_after(Duration::from_secs(2))
        .with_source(loss);
    assert_eq!(error.to_string(), r#"the store did not answer (lock "a\n\u{1b}[31m")"#);
    assert_eq!((error.key(), error.code()), (Some(&key), Some("57P01")));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(2)));
    let loss = error.source().unwrap();
    assert_eq!(loss.to_string(), "the session that owned it ended");
    assert_eq!(loss.source().unwrap().to_string(), "cable");
}

#[test]
fn only_kinds_that_leave_nothing_held_are_retryable() {
    let retryable = [ErrorKind::CircuitOpen, ErrorKind::LimitReached, ErrorKind::Unavailable];
    for kind in ERROR_KINDS {
        assert_eq!(Error::new(kind, "x").is_retryable(), retryable.contains(&kind), "{kind:?}");
    }
}

#[test]
fn a_token_is_sixteen_bytes_that_sort_as_it_does() {
    let tokens = [0, 1, 255, 256, u128::from(u64::MAX), 1 << 64, u128::MAX].map(FencingToken::new);
    for pair in tokens.windows(2) {
        assert!(pair[0] < pair[1] && pair[0].to_bytes() < pair[1].to_bytes());
        assert!(pair[0].to_string() < pair[1].to_string());
    }
    for token in tokens {
        let bytes: [u8; 16] = token.to_bytes();
        assert_eq!((FencingToken::from_bytes(bytes), FencingToken::new(token.get())), (token, token));
    }
}
