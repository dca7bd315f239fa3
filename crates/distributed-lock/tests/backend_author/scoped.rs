//! Native scoped lockers: no guard, no handle, the hold lives as long as the body.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use distributed_lock::{
    Attempt, Backend, BackendId, Capabilities, Error, ErrorKind, Expiry, Guarantees, LockKey, Loss, LossCause, Reach,
    Release, Result, ScopedLocker, ScopedLockerExt, ScopedOptions, TokioClock, Wait,
    backend::{HoldRecord, ScopedBody},
};

/// Locks nothing, and ends every run as it was told to.
#[derive(Debug)]
struct NoopLocker {
    id: BackendId,
    ending: Ending,
    waits: Mutex<Vec<Wait>>,
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Released,
    Lapsed,
    Lost,
    Failed,
    BodyNotRun,
}

impl NoopLocker {
    fn new(ending: Ending) -> Self {
        Self { id: BackendId::fresh(), ending, waits: Mutex::default() }
    }
}

impl fmt::Display for NoopLocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Noop")
    }
}

#[async_trait]
impl Backend for NoopLocker {
    fn id(&self) -> BackendId {
        self.id
    }
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(Expiry::Client, Reach::Process);
        capabilities.until_released = true;
        capabilities
    }
    fn guarantees(&self) -> Guarantees {
        Guarantees::NONE
    }
    async fn ping(&self) -> Result<()> {
        Ok(())
    }
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl ScopedLocker for NoopLocker {
    async fn run_scoped(
        &self,
        key: &LockKey,
        options: &ScopedOptions,
        body: ScopedBody<'_>,
    ) -> Result<Attempt<Release>> {
        self.waits.lock().unwrap().push(options.wait);
        if let Ending::BodyNotRun = self.ending {
            return Ok(Attempt::Acquired(Release::Released));
        }
        body(HoldRecord::draft(self.id, key.clone(), Arc::new(TokioClock)).open().hold()).await;
        let loss = Loss::new(LossCause::SessionEnded);
        match self.ending {
            Ending::Lapsed => Ok(Attempt::Acquired(Release::Lapsed(loss))),
            Ending::Lost => Ok(Attempt::Acquired(Release::Lost(loss))),
            Ending::Failed => Err(Error::new(ErrorKind::Indeterminate, "no answer")),
            Ending::Released | Ending::BodyNotRun => Ok(Attempt::Acquired(Release::Released)),
        }
    }
}

#[tokio::test]
async fn a_native_scoped_locker_serves_the_same_calls() {
    let noop = Arc::new(NoopLocker::new(Ending::Released));
    let locks: Arc<dyn ScopedLocker> = noop.clone();
    assert_eq!(locks.to_string(), "Noop");
    assert_eq!(locks.with_lock("k", async |hold| hold.key().as_str().len()).await.unwrap(), 1);
    let limit = std::time::Duration::from_secs(3);
    assert_eq!(locks.try_with_lock("k", async |_| 2).await.unwrap().acquired(), Some(2));
    assert_eq!(locks.with_lock_within("k", limit, async |_| 3).await.unwrap().acquired(), Some(3));
    assert_eq!(*noop.waits.lock().unwrap(), [Wait::Forever, Wait::Never, Wait::UpTo(limit)]);
    locks.ping().await.unwrap();
    locks.close().await.unwrap();
}

#[tokio::test]
async fn how_a_run_ended_decides_how_the_value_comes_back() {
    for (ending, kind, value) in [
        (Ending::Lost, ErrorKind::Lost, Some(7)),
        (Ending::Failed, ErrorKind::Indeterminate, Some(7)),
        (Ending::BodyNotRun, ErrorKind::Other, None),
    ] {
        let failed = NoopLocker::new(ending).with_lock("k", async |_| 7).await.unwrap_err();
        assert_eq!((failed.error.kind(), failed.value), (kind, value), "{ending:?}");
    }
    for ending in [Ending::Released, Ending::Lapsed] {
        assert_eq!(NoopLocker::new(ending).with_lock("k", async |_| 7).await.unwrap(), 7, "{ending:?}");
    }
}

#[tokio::test]
async fn a_body_under_a_native_scoped_locker_is_told_of_its_deadlock_as_well() {
    let locks = NoopLocker::new(Ending::Released);
    let inner = locks.with_lock("k", async |_| locks.with_lock("k", async |_| ()).await.unwrap_err().error.kind());
    assert_eq!(inner.await.unwrap(), ErrorKind::Deadlock);
    assert_eq!(locks.waits.lock().unwrap().len(), 1, "the inner call did not reach the backend");
}
