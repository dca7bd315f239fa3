use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Clock, Error, ErrorKind, Expiry, Fencing, Guarantees,
    Holder, Inspect, LockGuard, LockKey, Locker, Loss, LossCause, Reach, Release, Result, SystemClock, Ttl, Waiter,
    backend::{HoldRecord, LockHandle},
};

/// Locks nothing: every acquire is granted at once, to any number of callers. A hold still ends at its TTL, by the local clock
/// alone, and by `close`.
///
/// Not public: it can only be had by the name of its provider.
#[derive(Debug)]
pub(crate) struct Noop {
    id: BackendId,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    granted: u64,
    holds: BTreeMap<u64, HoldRecord>,
}

impl Noop {
    pub(crate) fn new() -> Self {
        tracing::warn!("the provider noop locks nothing: any number of callers hold a key at once");
        Self { id: BackendId::fresh(), state: Arc::default() }
    }

    fn open(&self) -> Result<MutexGuard<'_, State>> {
        let state = lock(&self.state);
        match state.closed {
            true => Err(Error::new(ErrorKind::Closed, "this locker was closed")),
            false => Ok(state),
        }
    }
}

impl fmt::Display for Noop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Noop[locks nothing]")
    }
}

#[async_trait]
impl Backend for Noop {
    fn id(&self) -> BackendId {
        self.id
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(Expiry::Client, Reach::Nobody);
        capabilities.until_released = true;
        capabilities
    }

    fn guarantees(&self) -> Guarantees {
        let mut guarantees = Guarantees::NONE;
        guarantees.notes.push("locks nothing: any number of callers hold a key at once".into());
        guarantees
    }

    async fn ping(&self) -> Result<()> {
        self.open().map(drop)
    }

    async fn close(&self) -> Result<()> {
        let mut state = lock(&self.state);
        state.closed = true;
        for record in std::mem::take(&mut state.holds).into_values() {
            record.lose(Loss::new(LossCause::Closed));
        }
        Ok(())
    }
}

#[async_trait]
impl Locker for Noop {
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        let mut state = self.open()?;
        if options.fencing == Fencing::On {
            return Err(Error::new(ErrorKind::Unsupported, "a locker that locks nothing has no fencing tokens"));
        }
        let record =
            HoldRecord::draft(self.id, key.clone(), Arc::new(SystemClock)).with_deadline(end(options.ttl)).open();
        state.granted += 1;
        let number = state.granted;
        state.holds.insert(number, record.clone());
        let handle = NoopHandle { number, state: Arc::clone(&self.state), record: record.clone() };
        Ok(Attempt::Acquired(LockGuard::new(record.hold(), options.ttl, handle)))
    }
}

/// What anybody could ask of it: nobody is in anybody's way.
#[async_trait]
impl Inspect for Noop {
    async fn holders(&self, _key: &LockKey) -> Result<Vec<Holder>> {
        Ok(Vec::new())
    }
    async fn waiters(&self, _key: &LockKey) -> Result<Vec<Waiter>> {
        Ok(Vec::new())
    }
    async fn end_holder(&self, _key: &LockKey, _holder: &Holder) -> Result<bool> {
        Ok(false)
    }
    async fn request_step_down(&self, _key: &LockKey) -> Result<bool> {
        Ok(false)
    }
}

#[derive(Debug)]
struct NoopHandle {
    number: u64,
    state: Arc<Mutex<State>>,
    record: HoldRecord,
}

#[async_trait]
impl LockHandle for NoopHandle {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        match self.record.extend(end(ttl), None) {
            true => Ok(()),
            false => Err(self.record.end().unwrap_or_else(|| Loss::new(LossCause::NotOurs)).into()),
        }
    }

    async fn release(&mut self) -> Result<Release> {
        self.abandon();
        Ok(match self.record.end() {
            Some(loss) if loss.cause() != LossCause::Released => Release::Lost(loss),
            _ => Release::Released,
        })
    }

    fn abandon(&mut self) {
        lock(&self.state).holds.remove(&self.number);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end(ttl: Ttl) -> Option<std::time::Instant> {
    ttl.duration().and_then(|ttl| SystemClock.now().checked_add(ttl))
}
