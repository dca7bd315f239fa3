//! Bodies under a lock, as users write them.

use std::{error::Error as StdError, future::Future, pin::Pin, sync::Arc};

use distributed_lock::{
    Attempt, Clock, Contention, Error, ErrorKind, Hold, LockerExt, LossCause, MemoryLocker, Scoped, ScopedError,
    ScopedLocker, ScopedLockerExt, TokioClock, Ttl,
};

use crate::support::{Counted, Flag, TTL, bounded, is_free, refusal, scoped, secs, since, take};

/// A service as users write it: injected, no generics, one error type.
#[derive(Clone)]
struct Orders {
    locks: Arc<dyn ScopedLocker>,
}

#[derive(Debug)]
enum AppError {
    Lock(Error),
    Stock(&'static str),
}

/// The one impl that makes `?` work on every scoped call.
impl<T> From<ScopedError<T>> for AppError {
    fn from(failed: ScopedError<T>) -> Self {
        Self::Lock(failed.into())
    }
}

impl From<Error> for AppError {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl Orders {
    async fn place(&self, stock: &mut u32) -> Result<u32, AppError> {
        self.locks
            .with_lock("orders", async |hold| {
                tokio::task::yield_now().await;
                hold.ensure_valid()?;
                *stock = stock.checked_sub(1).ok_or(AppError::Stock("sold out"))?;
                Ok(*stock)
            })
            .await?
    }
}

#[tokio::test(start_paused = true)]
async fn an_injected_service_borrows_returns_values_and_uses_question_marks() {
    let orders = Orders { locks: Arc::new(scoped(MemoryLocker::new())) };
    let spawned = orders.clone();
    let placed = tokio::spawn(async move {
        let mut stock = 1;
        (spawned.place(&mut stock).await, spawned.place(&mut stock).await)
    });
    let (first, second) = placed.await.unwrap();
    assert_eq!(first.unwrap(), 0);
    assert!(matches!(second.unwrap_err(), AppError::Stock("sold out")));
    let nobody = orders.locks.with_lock("", async |_| ()).await.map_err(AppError::from).unwrap_err();
    assert!(matches!(nobody, AppError::Lock(error) if error.kind() == ErrorKind::InvalidInput));
    // Boxed errors need no conversion at all.
    let boxed: Result<u32, Box<dyn StdError + Send + Sync>> =
        async { Ok(orders.locks.with_lock("k", async |_| 7).await?) }.await;
    assert_eq!(boxed.unwrap(), 7);
}

/// Both closure forms, generic code, explicit `Send` boxes.
fn boxed<'a, L: ScopedLocker>(locks: &'a L, word: &'a str) -> Pin<Box<dyn Future<Output = usize> + Send + 'a>> {
    Box::pin(async move {
        let a = locks.with_lock("k", async |_| word.len()).await.unwrap();
        let b = locks.with_lock("k", |hold| async move { hold.key().as_str().len() }).await.unwrap();
        a + b
    })
}

#[tokio::test(start_paused = true)]
async fn generic_code_gets_send_futures() {
    let locks = Box::new(scoped(MemoryLocker::new())) as Box<dyn ScopedLocker>;
    assert_eq!(tokio::spawn(async move { boxed(&locks, "four").await }).await.unwrap(), 5);
}

#[tokio::test(start_paused = true)]
async fn did_i_get_it_and_how_did_it_go_are_separate_answers() {
    let store = MemoryLocker::new();
    let locks = scoped(store.peer());
    // A body that returns something like contention is not contention.
    let ran = locks.try_with_lock("k", async |_| Err::<(), _>(Contention::Held)).await.unwrap();
    assert!(matches!(ran, Attempt::Acquired(Err(Contention::Held))));
    assert!(is_free(&store, "k").await, "a failed body releases");
    let _held = take(&store, "k").await;
    let ran = Flag::default();
    let body = async |_| ran.raise();
    assert!(matches!(locks.try_with_lock("k", body).await.unwrap(), Attempt::Contended(Contention::Held)));
    let within = locks.with_lock_within("k", secs(1), body).await.unwrap();
    assert!(matches!(within, Attempt::Contended(Contention::WaitElapsed)));
    let refused = locks.with_lock("", body).await.unwrap_err();
    assert_eq!((refused.error.kind(), refused.value), (ErrorKind::InvalidInput, None));
    assert!(!ran.is_up(), "none of them ran the body");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_run_starts_when_the_key_is_free() {
    let store = MemoryLocker::new();
    let locks = scoped(store.peer());
    let _held = store.acquire("k", secs(4)).await.unwrap();
    let start = TokioClock.now();
    assert_eq!(bounded(locks.with_lock("k", async |_| since(start))).await.unwrap(), secs(4));
}

#[tokio::test(start_paused = true)]
async fn the_key_is_held_while_the_body_runs_and_free_after_it() {
    let store = MemoryLocker::new();
    let locks = scoped(store.peer());
    let seen = locks.with_lock("k", async |_| refusal(&store, "k").await).await.unwrap();
    assert_eq!(seen, Contention::Held);
    assert!(is_free(&store, "k").await);
}

#[tokio::test(start_paused = true)]
async fn a_body_outlives_the_ttl_because_it_is_renewed() {
    let store = MemoryLocker::new();
    let locks = scoped(store.peer());
    locks
        .with_lock("k", async |hold| {
            for _ in 0..100 {
                tokio::time::sleep(TTL / 10).await;
                assert!(hold.remaining().unwrap() >= TTL * 3 / 4, "renewed every eighth of the TTL");
            }
        })
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_body_gets_the_ttl_it_was_configured_with_and_thirty_seconds_otherwise() {
    let locks = Scoped::new(MemoryLocker::new());
    assert_eq!(locks.with_lock("k", async |hold| hold.remaining()).await.unwrap(), Some(TTL));
    for ttl in [Ttl::new(secs(7)).unwrap(), Ttl::UNTIL_RELEASED] {
        let locks = Scoped::new(MemoryLocker::new()).with_ttl(ttl);
        assert_eq!(locks.with_lock("k", async |hold| hold.remaining()).await.unwrap(), ttl.duration());
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_runs_on_when_the_lock_is_lost_and_its_value_comes_back() {
    let store = MemoryLocker::new();
    let locks = scoped(store.peer());
    let start = TokioClock.now();
    let lost = locks
        .with_lock("k", async |hold| {
            store.lose("k", LossCause::NotOurs).unwrap();
            let cause = bounded(hold.lost()).await.cause();
            tokio::time::sleep(TTL * 3).await;
            cause
        })
        .await
        .unwrap_err();
    assert_eq!((lost.error.kind(), lost.value), (ErrorKind::Lost, Some(LossCause::NotOurs)));
    assert_eq!(since(start), TTL * 3);
    assert!(is_free(&store, "k").await);
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_renewals_fail_is_told_at_the_deadline() {
    let store = Arc::new(MemoryLocker::new());
    let locks = scoped(Arc::clone(&store));
    let start = TokioClock.now();
    let ended = locks
        .with_lock("k", async |hold| {
            store.delay(TTL * 10); // every renewal hangs
            let cause = bounded(hold.lost()).await.cause();
            store.delay(secs(0));
            (cause, since(start))
        })
        .await;
    // Nobody was in between, so the run counts as good.
    assert_eq!(ended.unwrap(), (LossCause::DeadlinePassed, TTL));
}

#[tokio::test(start_paused = true)]
async fn a_panic_passes_through_after_the_release() {
    let store = MemoryLocker::new();
    let counted = Counted::new(store.peer());
    let counts = Arc::clone(&counted.counts);
    let locks = Arc::new(scoped(counted));
    // One panics while it runs, the other in making its future.
    let running = async |_: Hold| -> () { panic!("boom") };
    let making = |_: Hold| -> std::future::Ready<()> { panic!("boom") };
    let (first, second) = (Arc::clone(&locks), locks);
    for run in [
        tokio::spawn(async move { first.with_lock("k", running).await }),
        tokio::spawn(async move { second.with_lock("k", making).await }),
    ] {
        assert_eq!(*run.await.unwrap_err().into_panic().downcast::<&str>().unwrap(), "boom");
        assert!(is_free(&store, "k").await);
    }
    assert_eq!(counts.get(), (2, 0), "released, not merely dropped");
}

#[tokio::test(start_paused = true)]
async fn a_value_survives_a_release_that_fails() {
    let locker = Arc::new(MemoryLocker::new());
    let locks = scoped(Arc::clone(&locker));
    let failed = locks
        .with_lock("k", async |_| {
            locker.fail_next(ErrorKind::Indeterminate);
            7
        })
        .await
        .unwrap_err();
    assert_eq!(failed.to_string(), failed.error.to_string());
    assert_eq!((failed.error.kind(), failed.value), (ErrorKind::Indeterminate, Some(7)));
    assert!(is_free(&locker, "k").await);
}
