//! `poll_until`, for stores that cannot queue.

use std::{
    fmt,
    future::pending,
    sync::Mutex,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Clock, Contention, Error, ErrorKind, Expiry, Guarantees,
    LockGuard, LockKey, Locker, LockerExt, MemoryLocker, Reach, TokioClock, Wait,
    backend::poll_until,
    breaker::{BreakerConfig, BreakerState, CircuitBreaker},
};
use tokio::time::timeout;

const MS: Duration = Duration::from_millis(1);

async fn busy(tries: &Mutex<Vec<Instant>>) -> distributed_lock::Result<Attempt> {
    tries.lock().unwrap().push(TokioClock.now());
    Ok(Attempt::Contended(Contention::NoConnection))
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_from_a_tenth_to_a_whole_second_and_keep_at_least_half_of_it() {
    let (tries, start) = (Mutex::default(), TokioClock.now());
    let waited = poll_until(Wait::UpTo(Duration::from_secs(20)), || busy(&tries)).await.unwrap();
    assert!(matches!(waited, Attempt::Contended(Contention::WaitElapsed)));
    assert_eq!(TokioClock.now() - start, Duration::from_secs(20), "the budget, not less and not more");
    let tries = tries.into_inner().unwrap();
    let pauses: Vec<Duration> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let full = || [100, 200, 400, 800].into_iter().chain(std::iter::repeat(1_000)).map(Duration::from_millis);
    let (last, pauses) = pauses.split_last().unwrap();
    for (n, (pause, full)) in pauses.iter().zip(full()).enumerate() {
        // Timers are in whole milliseconds.
        assert!(*pause >= full / 2 && *pause <= full + MS, "pause {n} is {pause:?} of {full:?}");
    }
    assert!(*last <= Duration::from_secs(1) + MS);
    let jittered = pauses.iter().zip(full()).any(|(pause, full)| *pause + MS * 2 < full);
    assert!(jittered, "no jitter: {pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_try_asks_once_and_keeps_the_reason() {
    for wait in [Wait::Never, Wait::UpTo(Duration::ZERO)] {
        let tries = Mutex::default();
        let tried = poll_until(wait, || busy(&tries)).await.unwrap();
        assert!(matches!(tried, Attempt::Contended(Contention::NoConnection)));
        assert_eq!(tries.into_inner().unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_wait_asks_again_at_its_end() {
    let (tries, start) = (Mutex::default(), TokioClock.now());
    let waited = poll_until(Wait::UpTo(Duration::from_nanos(1)), || busy(&tries)).await.unwrap();
    assert!(matches!(waited, Attempt::Contended(Contention::WaitElapsed)));
    assert_eq!(tries.into_inner().unwrap(), [start, start + MS]);
}

/// One who gives up such a wait has had no answer of the store.
#[tokio::test(start_paused = true)]
async fn tries_without_a_connection_are_no_sign_of_life_and_others_are() {
    for (why, opens) in [(Contention::NoConnection, true), (Contention::Held, false)] {
        let locker = CircuitBreaker::new(Polling(why), BreakerConfig::new().with_min_samples(3)).unwrap();
        for _ in 0..3 {
            let given_up = timeout(Duration::from_secs(1), locker.acquire("k", Duration::from_secs(5))).await;
            assert!(given_up.is_err());
        }
        assert_eq!(locker.state() == BreakerState::Open, opens, "{:?}", locker.get_ref().0);
    }
}

/// A store whose every try is contended so.
#[derive(Debug)]
struct Polling(Contention);

impl fmt::Display for Polling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Polling")
    }
}

#[async_trait]
impl Backend for Polling {
    fn id(&self) -> BackendId {
        BackendId::fresh()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(Expiry::Client, Reach::Process)
    }
    fn guarantees(&self) -> Guarantees {
        Guarantees::NONE
    }
    async fn ping(&self) -> distributed_lock::Result<()> {
        pending().await
    }
    async fn close(&self) -> distributed_lock::Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Locker for Polling {
    async fn acquire_opts(&self, _key: &LockKey, options: &AcquireOptions) -> distributed_lock::Result<Attempt> {
        poll_until(options.wait, async || Ok(Attempt::Contended(self.0.clone()))).await
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_ends_it() {
    let mut tries = 0;
    let failed = poll_until(Wait::Forever, || {
        tries += 1;
        let broken = tries == 3;
        async move {
            match broken {
                true => Err(Error::new(ErrorKind::Unavailable, "gone")),
                false => Ok(Attempt::Contended(Contention::Held)),
            }
        }
    });
    assert_eq!(failed.await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(tries, 3);
}

#[tokio::test(start_paused = true)]
async fn a_grant_ends_it() {
    let locker = MemoryLocker::new();
    let _held = locker.acquire("k", Duration::from_secs(5)).await.unwrap();
    let start = TokioClock.now();
    let attempt = poll_until(Wait::Forever, || locker.try_acquire("k", Duration::from_secs(5)));
    let attempt = timeout(Duration::from_secs(60), attempt).await.unwrap();
    let guard: LockGuard = attempt.unwrap().acquired().unwrap();
    let waited = TokioClock.now() - start;
    assert!(waited >= Duration::from_secs(5) && waited <= Duration::from_secs(6) + MS, "{waited:?}");
    assert!(guard.ensure_valid().is_ok());
}
