//! Holds that can be lost on cue: their records are the wrapper's own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use distributed_lock::{
    Attempt, BackendId, Clock, Hold, LockGuard, LockKey, Loss, LossCause, Release, Result, ScopedLocker, ScopedOptions,
    TokioClock, Ttl,
    backend::{Draft, HoldRecord, LockHandle, ScopedBody},
};
use tokio::{sync, task::JoinHandle};

use super::Faults;

/// Brings about the loss of one hold.
#[derive(Clone, Debug, Default)]
pub struct Cue(Arc<Prey>);

#[derive(Debug, Default)]
struct Prey {
    /// What the holder sees; none before the grant and after the end.
    record: Mutex<Option<HoldRecord>>,
    /// What has the key; none for a body. Locked across a renewal.
    guard: sync::Mutex<Option<LockGuard>>,
}

impl Cue {
    /// Tells the holder of the loss, then gives its key up; whether anybody held.
    ///
    /// The key of a body stays taken until the body has ended, since the wrapped locker still runs it; the key of a guard that
    /// is being renewed, until that has ended.
    pub fn fire(&self, cause: LossCause) -> bool {
        let Some(record) = self.record().take() else { return false };
        record.lose(Loss::new(cause));
        if let Ok(mut guard) = self.0.guard.try_lock() {
            drop(guard.take());
        }
        true
    }

    fn record(&self) -> MutexGuard<'_, Option<HoldRecord>> {
        self.0.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A guard whose holder can be told of a loss that the wrapped locker knows nothing of.
pub(super) fn guard(locker: BackendId, inner: LockGuard, ttl: Ttl, cue: Cue) -> LockGuard {
    let hold = inner.hold();
    let record = draft(locker, &hold)
        .with_deadline(inner.remaining().and_then(|left| TokioClock.now().checked_add(left)))
        .with_max_grace(ttl.duration().map(|ttl| ttl * 3 / 4))
        .open();
    let forward = tokio::spawn(forward(hold, record.clone()));
    *cue.record() = Some(record.clone());
    if let Ok(mut guard) = cue.0.guard.try_lock() {
        *guard = Some(inner);
    }
    LockGuard::new(record.hold(), ttl, Losable { cue, record, forward })
}

/// A run whose body can be told of such a loss.
pub(super) async fn run<L: ScopedLocker>(
    locker: &L,
    key: &LockKey,
    options: &ScopedOptions,
    body: ScopedBody<'_>,
    faults: &Faults,
) -> Result<Attempt<Release>> {
    let (id, faults) = (locker.id(), faults.clone());
    let end = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&end);
    let told: ScopedBody<'_> = Box::new(move |inner| {
        Box::pin(async move {
            // A run that does not come to its body leaves the cue to the next.
            let Some(cue) = faults.take_cue() else { return body(inner).await };
            // Without a deadline: the wrapped locker renews, and says so to its own record only.
            let record = draft(id, &inner).open();
            *cue.record() = Some(record.clone());
            // Declared before the body, so that a cancelled run drops the body first.
            let run = Run { cue, record, end: seen };
            let mut body = body(run.record.hold());
            let told = tokio::select! {
                biased;
                () = &mut body => false,
                () = forward(inner, run.record.clone()) => true,
            };
            if told {
                body.await;
            }
        })
    });
    let attempt = locker.run_scoped(key, options, told).await?;
    let lost = end.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(match lost {
        Some(loss) => attempt.map(|_released| Release::Lost(loss)),
        None => attempt,
    })
}

fn draft(locker: BackendId, inner: &Hold) -> Draft {
    let draft = HoldRecord::draft(locker, inner.key().clone(), Arc::new(TokioClock));
    draft.with_fencing_token(inner.fencing_token())
}

/// What the wrapped locker says to the holder.
async fn forward(inner: Hold, record: HoldRecord) {
    record.lose(inner.lost().await);
}

/// Ends the record of a run, however the run ends.
struct Run {
    cue: Cue,
    record: HoldRecord,
    end: Arc<Mutex<Option<Loss>>>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.cue.record().take();
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = self.record.end();
        self.record.lose(Loss::new(LossCause::Released));
    }
}

#[derive(Debug)]
struct Losable {
    cue: Cue,
    record: HoldRecord,
    forward: JoinHandle<()>,
}

impl Losable {
    fn loss(&self) -> Loss {
        self.record.end().unwrap_or_else(|| Loss::new(LossCause::NotOurs))
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockHandle for Losable {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        let mut guard = self.cue.0.guard.lock().await;
        let Some(inner) = guard.as_mut() else { return Err(self.loss().into()) };
        inner.renew(ttl).await?;
        let deadline = inner.remaining().and_then(|left| TokioClock.now().checked_add(left));
        if self.record.extend(deadline, ttl.duration().map(|ttl| ttl * 3 / 4)) {
            return Ok(());
        }
        // Lost while it was renewed.
        drop(guard.take());
        Err(self.loss().into())
    }

    async fn release(&mut self) -> Result<Release> {
        self.cue.record().take();
        let inner = self.cue.0.guard.lock().await.take();
        match inner {
            Some(inner) => inner.release().await,
            None => Ok(Release::Lost(self.loss())),
        }
    }

    fn abandon(&mut self) {
        self.cue.record().take();
        if let Ok(mut guard) = self.cue.0.guard.try_lock() {
            drop(guard.take());
        }
    }
}

impl Drop for Losable {
    fn drop(&mut self) {
        self.forward.abort();
    }
}
