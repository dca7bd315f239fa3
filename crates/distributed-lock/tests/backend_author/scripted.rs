//! A backend in about a hundred lines: a store that cannot queue and answers over a "wire" with faults on cue.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Clock, Contention, Error, ErrorKind, Expiry, Guarantees,
    LockGuard, LockKey, Locker, Loss, LossCause, Reach, Release, Result, TokioClock, Ttl,
    backend::{HoldRecord, LockHandle, poll_until},
};

pub(crate) const TTL: Duration = Duration::from_secs(30);

/// What this backend attaches to a grant, for features of its own.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Session(pub(crate) u32);

#[derive(Clone, Debug)]
pub(crate) struct ScriptedLocker {
    id: BackendId,
    pub(crate) held: Arc<Mutex<HashMap<LockKey, HoldRecord>>>,
    faults: Arc<Mutex<VecDeque<ErrorKind>>>,
    abandoned: Arc<Mutex<u32>>,
    leaky: bool,
}

impl ScriptedLocker {
    pub(crate) fn new() -> Self {
        let id = BackendId::fresh();
        Self { id, held: Arc::default(), faults: Arc::default(), abandoned: Arc::default(), leaky: false }
    }

    pub(crate) fn leaky(self, leaky: bool) -> Self {
        Self { leaky, ..self }
    }

    pub(crate) fn fail_next(&self, kinds: impl IntoIterator<Item = ErrorKind>) {
        self.faults.lock().unwrap().extend(kinds);
    }

    pub(crate) fn abandoned(&self) -> u32 {
        *self.abandoned.lock().unwrap()
    }

    async fn wire(&self) -> Result<()> {
        tokio::task::yield_now().await;
        let fault = self.faults.lock().unwrap().pop_front();
        fault.map_or(Ok(()), |kind| Err(Error::new(kind, "scripted fault").with_code("08006")))
    }

    async fn once(&self, key: &LockKey, ttl: Ttl) -> Result<Attempt> {
        let asked_at = TokioClock.now(); // before the request leaves
        self.wire().await?;
        let record = HoldRecord::draft(self.id, key.clone(), Arc::new(TokioClock))
            .with_deadline(ttl.duration().map(|ttl| asked_at + ttl))
            .with_value(Arc::new(Session(7)))
            .open();
        if self.held.lock().unwrap().contains_key(key) {
            return Ok(Attempt::Contended(Contention::Held));
        }
        self.held.lock().unwrap().insert(key.clone(), record.clone());
        if self.leaky {
            tokio::task::yield_now().await; // the bug the sweep must find: an await between the grant and the guard
        }
        let handle = ScriptedHandle { locker: self.clone(), key: key.clone(), record: record.clone() };
        let guard = LockGuard::new(record.hold(), ttl, handle);
        self.wire().await?; // the answer: the guard already owns what it may bring
        Ok(Attempt::Acquired(guard))
    }
}

impl fmt::Display for ScriptedLocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

#[async_trait]
impl Backend for ScriptedLocker {
    fn id(&self) -> BackendId {
        self.id
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(Expiry::Client, Reach::Process)
    }
    fn guarantees(&self) -> Guarantees {
        Guarantees::NONE
    }
    async fn ping(&self) -> Result<()> {
        self.wire().await
    }
    async fn close(&self) -> Result<()> {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        held.into_values().for_each(|record| record.lose(Loss::new(LossCause::Closed)));
        Ok(())
    }
}

#[async_trait]
impl Locker for ScriptedLocker {
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        poll_until(options.wait, || self.once(key, options.ttl)).await
    }
}

#[derive(Debug)]
struct ScriptedHandle {
    locker: ScriptedLocker,
    key: LockKey,
    record: HoldRecord,
}

#[async_trait]
impl LockHandle for ScriptedHandle {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        let asked_at = TokioClock.now();
        self.locker.wire().await?;
        match self.record.extend(ttl.duration().map(|ttl| asked_at + ttl), None) {
            true => Ok(()),
            false => Err(Loss::new(LossCause::DeadlinePassed).into()),
        }
    }
    async fn release(&mut self) -> Result<Release> {
        self.locker.wire().await?;
        self.locker.held.lock().unwrap().remove(&self.key);
        self.locker.wire().await?;
        Ok(Release::Released)
    }
    fn abandon(&mut self) {
        *self.locker.abandoned.lock().unwrap() += 1;
        self.locker.held.lock().unwrap().remove(&self.key);
    }
}
