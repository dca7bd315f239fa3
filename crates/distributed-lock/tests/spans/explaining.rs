//! "Why am I waiting": one line, from the side, that never holds a call up.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Error, ErrorKind, Guarantees, Holder, Inspect,
    Instrumented, LockGuard, LockKey, Locker, LockerExt, MemoryLocker, Result, Scoped, ScopedLockerExt, SessionId,
    Waiter,
};
use metrics_util::debugging::DebuggingRecorder;
use tokio::time::{Instant, sleep};

use crate::{recorder::record, tracer::Traced};

const TTL: Duration = Duration::from_secs(30);

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// How looking goes.
#[derive(Clone, Copy, Debug)]
enum Look {
    Answers,
    Fails,
    Hangs,
}

/// An in-memory locker whose holders have a name and a host.
#[derive(Debug)]
struct Shop {
    inner: MemoryLocker,
    look: Look,
    looks: Arc<AtomicU32>,
}

impl fmt::Display for Shop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shop")
    }
}

#[async_trait]
impl Backend for Shop {
    fn id(&self) -> BackendId {
        self.inner.id()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }
    async fn ping(&self) -> Result<()> {
        self.inner.ping().await
    }
    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

#[async_trait]
impl Locker for Shop {
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        self.inner.acquire_opts(key, options).await
    }
}

#[async_trait]
impl Inspect for Shop {
    async fn holders(&self, _key: &LockKey) -> Result<Vec<Holder>> {
        self.looks.fetch_add(1, Relaxed);
        match self.look {
            Look::Answers => {}
            Look::Fails => return Err(Error::new(ErrorKind::Denied, "not for you")),
            Look::Hangs => std::future::pending().await,
        }
        let mut holder = Holder::new(SessionId::new("4711"));
        holder.application_name = Some("bill\ning".into());
        holder.host = Some("10.0.0.7".into());
        holder.process = Some(42);
        holder.held_for = Some(secs(12));
        Ok(vec![holder])
    }
    async fn waiters(&self, key: &LockKey) -> Result<Vec<Waiter>> {
        self.inner.waiters(key).await
    }
    async fn end_holder(&self, _key: &LockKey, _holder: &Holder) -> Result<bool> {
        Ok(false)
    }
    async fn request_step_down(&self, _key: &LockKey) -> Result<bool> {
        Ok(false)
    }
}

/// A locker that explains waits of more than five seconds, somebody who holds `orders`, and how often was looked.
fn shop(look: Look) -> (Instrumented<Shop>, LockGuard, Arc<AtomicU32>) {
    let inner = MemoryLocker::new();
    let somebody = inner.hold("orders").unwrap();
    let looks = Arc::<AtomicU32>::default();
    let shop = Shop { inner: inner.peer(), look, looks: Arc::clone(&looks) };
    (Instrumented::new(shop).explaining_waits(secs(5)), somebody, looks)
}

const LINE: &str = r#"INFO in lock.acquire: waiting for 5.0s for "orders": "bill\ning" on 10.0.0.7 in process 42 holds it for 12s, session 4711; 1 in the queue"#;

#[tokio::test(start_paused = true)]
async fn long_wait_is_explained_once_in_one_line_that_is_an_event_of_its_span() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let (traced, _subscriber) = Traced::start();
    let (locker, _somebody, looks) = shop(Look::Answers);
    assert!(locker.acquire_within("orders", TTL, secs(60)).await.unwrap().is_contended());
    let lines = traced.lines();
    assert_eq!(lines.len(), 2, "the event and the span: {lines:?}");
    assert!(lines[0].starts_with(LINE), "{lines:?}");
    for field in [
        r#"lock.key="orders""#,
        r#"holder.application_name="bill\ning""#,
        r#"holder.host="10.0.0.7""#,
        "holder.process=42",
        "holder.held_for=12s",
        "queue=1",
    ] {
        assert!(lines[0].contains(field), "{field} is not in {lines:?}");
    }
    assert_eq!(looks.load(Relaxed), 1);
    assert_eq!(
        recorded.of("lock_wait_explanations"),
        ["lock_wait_explanations_total{lock_backend=Shop,lock_outcome=told} 1"]
    );
}

#[tokio::test(start_paused = true)]
async fn wait_that_ends_before_is_not_explained() {
    let (traced, _subscriber) = Traced::start();
    let (locker, _somebody, looks) = shop(Look::Answers);
    assert!(locker.acquire_within("orders", TTL, secs(4)).await.unwrap().is_contended());
    assert_eq!((traced.lines().len(), looks.load(Relaxed)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn look_that_hangs_holds_neither_the_grant_nor_the_end_of_the_budget_up() {
    let (_traced, _subscriber) = Traced::start();
    let (locker, somebody, looks) = shop(Look::Hangs);
    let started = Instant::now();
    assert!(locker.acquire_within("orders", TTL, secs(6)).await.unwrap().is_contended());
    assert_eq!(started.elapsed(), secs(6));
    let leave = async {
        sleep(secs(7)).await;
        drop(somebody);
    };
    let (guard, ()) = tokio::join!(locker.acquire("orders", TTL), leave);
    assert!(guard.is_ok());
    assert_eq!((started.elapsed(), looks.load(Relaxed)), (secs(13), 2));
}

#[tokio::test(start_paused = true)]
async fn look_that_fails_is_silent_and_counted() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let (traced, _subscriber) = Traced::start();
    let (locker, _somebody, _looks) = shop(Look::Fails);
    assert!(locker.acquire_within("orders", TTL, secs(60)).await.unwrap().is_contended());
    assert_eq!(traced.lines().len(), 1, "{:?}", traced.lines());
    assert_eq!(
        recorded.of("lock_wait_explanations"),
        ["lock_wait_explanations_total{lock_backend=Shop,lock_outcome=failed} 1"]
    );
}

#[tokio::test(start_paused = true)]
async fn body_that_runs_for_long_is_no_wait() {
    let (traced, _subscriber) = Traced::start();
    let locks = Instrumented::new(Scoped::new(MemoryLocker::new())).explaining_waits(secs(5));
    locks.with_lock("orders", async |_hold| sleep(secs(60)).await).await.unwrap();
    assert!(traced.lines().iter().all(|line| !line.contains("waiting")), "{:?}", traced.lines());
}
