use std::{mem, sync::Arc};

use async_trait::async_trait;
use distributed_lock::{Hold, Loss, LossCause, MemoryLocker, Release, Result, Ttl, backend::LockHandle};
use tokio::{runtime::Handle, task::yield_now};

use super::Defect;

/// The handle of a broken locker around a sound one.
#[derive(Debug)]
pub(super) struct Tampered {
    defect: Defect,
    inner: Option<Box<dyn LockHandle>>,
    hold: Hold,
    store: Arc<MemoryLocker>,
}

impl Tampered {
    pub(super) fn new(defect: Defect, inner: Box<dyn LockHandle>, hold: Hold, store: Arc<MemoryLocker>) -> Self {
        Self { defect, inner: Some(inner), hold, store }
    }

    /// The key stays taken for ever.
    fn forget(&mut self) {
        mem::forget(self.inner.take());
    }

    fn free_whoever_holds(&self) {
        let _whether_anybody_did = self.store.lose(self.hold.key(), LossCause::NotOurs);
    }
}

/// Nobody's, like a lock on a server whose client is gone: its end frees nothing.
#[derive(Debug)]
pub(super) struct Unowned<T>(Option<T>);

impl<T> Unowned<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Some(value))
    }

    #[expect(clippy::expect_used, reason = "it is there from the start")]
    pub(super) fn into_inner(mut self) -> T {
        self.0.take().expect("BUG: taken twice")
    }
}

impl<T> Drop for Unowned<T> {
    fn drop(&mut self) {
        mem::forget(self.0.take());
    }
}

#[async_trait]
impl LockHandle for Tampered {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        if self.defect == Defect::LosesItsHandleInARenewal {
            let unowned = Unowned::new(self.inner.take());
            yield_now().await;
            self.inner = unowned.into_inner();
        }
        match &mut self.inner {
            Some(inner) => inner.renew(ttl).await,
            None => Ok(()),
        }
    }

    async fn release(&mut self) -> Result<Release> {
        if self.defect == Defect::ForgetsToFree {
            self.forget();
        }
        if self.defect == Defect::LosesItsHandleInARelease {
            let unowned = Unowned::new(self.inner.take());
            yield_now().await;
            self.inner = unowned.into_inner();
        }
        let Some(inner) = &mut self.inner else { return Ok(Release::Released) };
        let released = inner.release().await?;
        match (self.defect, released) {
            (Defect::SaysLapsed, _) => Ok(Release::Lapsed(Loss::new(LossCause::NotOurs))),
            (Defect::SaysReleasedWhateverHappened, _) => Ok(Release::Released),
            (Defect::RaisesLosses, Release::Lapsed(loss) | Release::Lost(loss)) => Err(loss.into()),
            (Defect::FreesByName, released) => {
                self.free_whoever_holds();
                Ok(released)
            }
            (_, released) => Ok(released),
        }
    }

    fn abandon(&mut self) {
        match (self.defect, Handle::try_current()) {
            (Defect::FreesOnReleaseOnly, _) | (Defect::FreesInASpawnedTask, Err(_)) => self.forget(),
            (Defect::FreesInASpawnedTask, Ok(runtime)) => {
                if let Some(mut inner) = self.inner.take() {
                    runtime.spawn(async move {
                        yield_now().await;
                        inner.abandon();
                    });
                }
            }
            (Defect::FreesByName, _) => self.free_whoever_holds(),
            _ => {
                if let Some(inner) = &mut self.inner {
                    inner.abandon();
                }
            }
        }
    }
}
