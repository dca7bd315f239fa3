use std::{
    fmt,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Contention, Error, ErrorKind, Guarantees, Hold,
    LockGuard, LockKey, Locker, Release, Result, Scoped, ScopedLocker, ScopedOptions, TokioClock, Ttl,
    backend::{BoxFuture, HoldRecord, ScopedBody},
};

use super::{Defect, locker::BrokenLocker};

/// A scoped locker with one defect, of its own or of the locker it is made of.
#[derive(Debug)]
pub(super) struct BrokenScoped {
    inner: Scoped<Arc<BrokenLocker>>,
    locker: Arc<BrokenLocker>,
    defect: Defect,
}

impl BrokenScoped {
    pub(super) fn new(locker: BrokenLocker, defect: Defect) -> Self {
        let locker = Arc::new(locker);
        Self { inner: Scoped::new(Arc::clone(&locker)), locker, defect }
    }

    async fn acquire(&self, key: &LockKey, options: &ScopedOptions) -> Result<Attempt> {
        let acquire = AcquireOptions::new(Ttl::new(Duration::from_secs(30))?);
        self.locker.acquire_opts(key, &acquire.with_wait(options.wait).with_fencing(options.fencing)).await
    }
}

impl fmt::Display for BrokenScoped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.defect {
            Defect::PrintsNothing => Ok(()),
            _ => self.inner.fmt(f),
        }
    }
}

#[async_trait]
impl Backend for BrokenScoped {
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
impl ScopedLocker for BrokenScoped {
    async fn run_scoped(
        &self,
        key: &LockKey,
        options: &ScopedOptions,
        body: ScopedBody<'_>,
    ) -> Result<Attempt<Release>> {
        match self.defect {
            Defect::FailsAfterTheBody => match self.inner.run_scoped(key, options, body).await? {
                Attempt::Acquired(_) => Err(Error::new(ErrorKind::Unavailable, "no answer")),
                contended => Ok(contended),
            },
            Defect::SaysContendedAfterTheBody => {
                let _how_it_went = self.inner.run_scoped(key, options, body).await?;
                Ok(Attempt::Contended(Contention::Held))
            }
            Defect::ShowsAnotherHold => {
                let other = another_hold(self.id())?;
                self.inner.run_scoped(key, options, Box::new(move |_| body(other))).await
            }
            Defect::NeverRenews => match self.acquire(key, options).await? {
                Attempt::Acquired(guard) => {
                    body(guard.hold()).await;
                    guard.release().await.map(Attempt::Acquired)
                }
                Attempt::Contended(why) => Ok(Attempt::Contended(why)),
            },
            Defect::SwallowsPanics => {
                let panicked = AtomicBool::new(false);
                let swallowing: ScopedBody<'_> = Box::new(|hold| swallow(body(hold), &panicked));
                let ended = self.inner.run_scoped(key, options, swallowing).await;
                match panicked.load(Ordering::SeqCst) {
                    true => Err(Error::new(ErrorKind::Other, "the body panicked")),
                    false => ended,
                }
            }
            Defect::FreesBeforeItDropsTheBody => match self.acquire(key, options).await? {
                Attempt::Acquired(guard) => {
                    let hold = guard.hold();
                    let mut running = Backwards { guard: Mutex::new(Some(guard)), body: body(hold) };
                    running.body.as_mut().await;
                    let guard = running.guard.get_mut().ok().and_then(Option::take);
                    match guard {
                        Some(guard) => guard.release().await.map(Attempt::Acquired),
                        None => Ok(Attempt::Acquired(Release::Released)),
                    }
                }
                Attempt::Contended(why) => Ok(Attempt::Contended(why)),
            },
            Defect::RunsWithoutTheLock => {
                body(another_hold(self.id())?).await;
                Ok(Attempt::Acquired(Release::Released))
            }
            _ => self.inner.run_scoped(key, options, body).await,
        }
    }
}

/// Its fields are dropped in this order.
struct Backwards<'a> {
    // A mutex, since a body must be movable between threads and shared access to a guard is not promised.
    guard: Mutex<Option<LockGuard>>,
    body: BoxFuture<'a, ()>,
}

fn another_hold(locker: BackendId) -> Result<Hold> {
    Ok(HoldRecord::draft(locker, LockKey::new("another")?, Arc::new(TokioClock)).open().hold())
}

fn swallow<'a>(mut body: BoxFuture<'a, ()>, panicked: &'a AtomicBool) -> BoxFuture<'a, ()> {
    Box::pin(poll_fn(move |cx| match catch_unwind(AssertUnwindSafe(|| body.as_mut().poll(cx))) {
        Ok(polled) => polled,
        Err(_panic) => {
            panicked.store(true, Ordering::SeqCst);
            Poll::Ready(())
        }
    }))
}
