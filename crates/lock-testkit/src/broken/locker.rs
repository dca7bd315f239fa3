use std::{
    collections::HashMap,
    fmt,
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Contention, Error, ErrorKind, Fencing, Guarantees, Hold,
    InvalidInput, LockGuard, LockKey, Locker, MemoryLocker, Result, Ttl, Wait, backend::HoldRecord,
};
use tokio::{
    sync::{self, oneshot},
    task::yield_now,
    time::{Instant, sleep, timeout},
};

use super::{
    Defect,
    handle::{Tampered, Unowned},
    record::Reheld,
};

/// What the lockers of one store have in common.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) first: MemoryLocker,
    members: Mutex<Vec<Arc<MemoryLocker>>>,
    /// Who took which key last, as seen by those who do not ask the store.
    taken: Mutex<HashMap<LockKey, Hold>>,
    waiters: AtomicU64,
    grants: AtomicU64,
}

impl Family {
    pub(super) fn new() -> Self {
        let (first, members, taken) = (MemoryLocker::new(), Mutex::default(), Mutex::default());
        Self { first, members, taken, waiters: AtomicU64::new(0), grants: AtomicU64::new(0) }
    }
}

/// A locker with one defect, around an in-memory one.
#[derive(Debug)]
pub(super) struct BrokenLocker {
    inner: Arc<MemoryLocker>,
    family: Arc<Family>,
    defect: Defect,
    closed: AtomicBool,
    last_key: Mutex<Option<LockKey>>,
    one_at_a_time: sync::Mutex<()>,
    siblings: Arc<Mutex<Vec<HoldRecord>>>,
    tokens: AtomicU64,
}

impl BrokenLocker {
    pub(super) fn new(family: &Arc<Family>, defect: Defect) -> Self {
        let inner = Arc::new(match defect {
            Defect::SharesNothing => MemoryLocker::new(),
            _ => family.first.peer(),
        });
        lock(&family.members).push(Arc::clone(&inner));
        Self {
            inner,
            family: Arc::clone(family),
            defect,
            closed: AtomicBool::new(false),
            last_key: Mutex::default(),
            one_at_a_time: sync::Mutex::default(),
            siblings: Arc::default(),
            tokens: AtomicU64::new(0),
        }
    }

    fn key(&self, key: &LockKey) -> Result<LockKey> {
        let name = key.as_str();
        Ok(match self.defect {
            Defect::HasOneLockForAllKeys => LockKey::new("the one")?,
            Defect::FoldsNames => LockKey::new(name.trim().to_lowercase())?,
            Defect::CutsLongNames => LockKey::new(name.get(..500).unwrap_or(name).to_owned())?,
            Defect::KeepsBodiesApart => LockKey::new(format!("body:{name}"))?,
            _ => key.clone(),
        })
    }

    fn options(&self, asked: &AcquireOptions) -> Result<AcquireOptions> {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        let mut options = asked.clone();
        let ttl = asked.ttl.duration();
        match (self.defect, ttl) {
            (Defect::RefusesItsOwnMinimum, Some(ttl)) if ttl < Duration::from_secs(1) => {
                return Err(InvalidInput::new("ttl", format_args!("{ttl:?}"), "must be at least 1 s").into());
            }
            (Defect::EndsWhatItRefusesToRenew, Some(ttl)) if ttl < Duration::from_secs(1) => {
                return Err(InvalidInput::new("ttl", format_args!("{ttl:?}"), "must be at least 1 s").into());
            }
            (Defect::CannotCountThatFar, Some(ttl)) if ttl > 24 * DAY => {
                return Err(Error::new(ErrorKind::Other, "the TTL does not fit into 31 bits"));
            }
            (Defect::RoundsShortTtlsUp, Some(ttl)) => options.ttl = Ttl::new(ttl.max(Duration::from_secs(1)))?,
            (Defect::FreesBeforeTelling, Some(ttl)) => options.ttl = Ttl::new(ttl / 2)?,
            (Defect::KeepsLapsedKeys, _) => options.ttl = Ttl::UNTIL_RELEASED,
            (Defect::EndsHoldsWithoutTtl, None) => options.ttl = Ttl::new(Duration::from_secs(30))?,
            _ => {}
        }
        match self.defect {
            Defect::ClaimsToMint => options.fencing = Fencing::Off,
            Defect::MintsAlways => options.fencing = Fencing::On,
            Defect::DropsStepDownRequests => options.ask_step_down = false,
            _ => {}
        }
        options.wait = self.wait(asked.wait);
        Ok(options)
    }

    fn wait(&self, asked: Wait) -> Wait {
        let Wait::UpTo(limit) = asked else { return asked };
        match self.defect {
            Defect::TakesShortWaitsForNone if limit < Duration::from_millis(1) => Wait::Forever,
            Defect::OverflowsHugeWaits if limit.as_millis() > u128::from(u32::MAX) => Wait::UpTo(Duration::ZERO),
            Defect::WaitsTwice => Wait::UpTo(limit.saturating_mul(2)),
            _ => asked,
        }
    }

    async fn attempt(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        let waits = options.wait.budget() != Some(Duration::ZERO);
        match self.defect {
            Defect::LooksBeforeItLeaps => self.look_and_leap(key, options).await,
            Defect::NeverWakes if waits => match self.inner.acquire_opts(key, &try_of(options)).await? {
                Attempt::Contended(_) => pending().await,
                acquired => Ok(acquired),
            },
            Defect::LeavesAGhostInTheQueue | Defect::WaitsInADetachedTask if waits => {
                self.wait_detached(key, options).await
            }
            Defect::PollsInsteadOfQueueing if waits => self.poll(key, options).await,
            Defect::WaitsOneAtATime => {
                let _turn = self.one_at_a_time.lock().await;
                self.inner.acquire_opts(key, options).await
            }
            Defect::LeaksAConnectionPerGrant if self.family.grants.fetch_add(1, Ordering::SeqCst) >= 8 => {
                Ok(Attempt::Contended(Contention::NoConnection))
            }
            Defect::LeaksBetweenGrantAndGuard => {
                let unowned = Unowned::new(self.inner.acquire_opts(key, options).await?);
                yield_now().await;
                Ok(unowned.into_inner())
            }
            _ => self.inner.acquire_opts(key, options).await,
        }
    }

    /// What some calls do besides.
    async fn start_a_task_and_end_it(&self) {
        if self.defect == Defect::LeavesATaskBehind {
            let task = tokio::spawn(pending::<()>());
            yield_now().await;
            task.abort();
        }
    }

    async fn look_and_leap(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        loop {
            let free = lock(&self.family.taken).get(key).is_none_or(|hold| hold.ensure_valid().is_err());
            yield_now().await;
            if free {
                // A store of its own always grants.
                let attempt = MemoryLocker::new().acquire_opts(key, options).await?;
                if let Attempt::Acquired(guard) = &attempt {
                    lock(&self.family.taken).insert(key.clone(), guard.hold());
                }
                return Ok(attempt);
            }
            if options.wait.budget() == Some(Duration::ZERO) {
                return Ok(Attempt::Contended(Contention::Held));
            }
        }
    }

    async fn wait_detached(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        let (answer, answered) = oneshot::channel();
        let (inner, key, forever) = (Arc::clone(&self.inner), key.clone(), options.clone().with_wait(Wait::Forever));
        tokio::spawn(async move {
            if let Err(unwanted) = answer.send(inner.acquire_opts(&key, &forever).await) {
                std::mem::forget(unwanted);
            }
        });
        match timeout(options.wait.budget().unwrap_or(Duration::MAX), answered).await {
            Ok(Ok(attempt)) => attempt,
            Ok(Err(_)) => Err(Error::new(ErrorKind::Other, "the waiting task is gone")),
            Err(_elapsed) => Ok(Attempt::Contended(Contention::WaitElapsed)),
        }
    }

    async fn poll(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        let place = u32::try_from(self.family.waiters.fetch_add(1, Ordering::SeqCst) + 1).unwrap_or(u32::MAX);
        let started = Instant::now();
        loop {
            let attempt = self.inner.acquire_opts(key, &try_of(options)).await?;
            if !attempt.is_contended() {
                return Ok(attempt);
            }
            if options.wait.budget().is_some_and(|budget| started.elapsed() >= budget) {
                return Ok(Attempt::Contended(Contention::WaitElapsed));
            }
            sleep(Duration::from_millis(100) / place).await;
        }
    }

    fn tamper(&self, guard: LockGuard, asked: &AcquireOptions) -> LockGuard {
        let token = u128::from(self.tokens.fetch_add(1, Ordering::SeqCst) + 1);
        match Reheld::around(self.defect, guard, asked.ttl, token, &self.inner, &self.siblings) {
            Ok(guard) => guard,
            Err(guard) => {
                let (hold, store) = (guard.hold(), Arc::clone(&self.inner));
                guard.map_handle(|inner| Tampered::new(self.defect, inner, hold, store))
            }
        }
    }

    fn refuse(&self, why: Contention) -> Result<Attempt> {
        match (self.defect, why) {
            (Defect::RaisesContention, why) => Err(why.into()),
            (Defect::SaysHeldForItsOwn, Contention::HeldHere) => Ok(Attempt::Contended(Contention::Held)),
            (_, why) => Ok(Attempt::Contended(why)),
        }
    }

    fn ensure_open(&self) -> Result<()> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Closed, "this locker was closed")),
            false => Ok(()),
        }
    }
}

fn try_of(options: &AcquireOptions) -> AcquireOptions {
    options.clone().with_wait(Wait::Never)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Display for BrokenLocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.defect {
            Defect::PrintsNothing => Ok(()),
            defect => write!(f, "Broken({}, {})", defect.name(), self.inner),
        }
    }
}

#[async_trait]
impl Backend for BrokenLocker {
    fn id(&self) -> BackendId {
        match self.defect {
            Defect::HasANewIdAtEveryCall => BackendId::fresh(),
            _ => self.inner.id(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        match self.defect {
            Defect::RoundsShortTtlsUp | Defect::EndsWhatItRefusesToRenew => {
                capabilities.min_ttl = Duration::from_secs(1);
            }
            Defect::HasNoMinimum => capabilities.min_ttl = Duration::ZERO,
            _ => {}
        }
        capabilities
    }

    fn guarantees(&self) -> Guarantees {
        let mut guarantees = self.inner.guarantees();
        if self.defect == Defect::PrintsTwoLines {
            guarantees.notes.push("one line\nand another".into());
        }
        guarantees
    }

    async fn ping(&self) -> Result<()> {
        self.ensure_open()?;
        self.start_a_task_and_end_it().await;
        match self.defect {
            Defect::NeverAnswersAPing => Err(Error::new(ErrorKind::Unavailable, "no answer")),
            Defect::PingsBehindHolders => {
                let key = lock(&self.last_key).clone();
                if let Some(key) = key {
                    let options = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_wait(Wait::Forever);
                    drop(self.inner.acquire_opts(&key, &options).await?);
                }
                self.inner.ping().await
            }
            _ => self.inner.ping().await,
        }
    }

    async fn close(&self) -> Result<()> {
        match self.defect {
            Defect::IgnoresClose => return Ok(()),
            Defect::ClosesEverybody => {
                let everybody = lock(&self.family.members).clone();
                for member in everybody {
                    member.close().await?;
                }
            }
            Defect::RefusesASecondClose => self.ensure_open()?,
            Defect::ClosesOnce if self.closed.swap(true, Ordering::SeqCst) => return Ok(()),
            Defect::ClosesOnce => yield_now().await,
            _ => {}
        }
        self.closed.store(true, Ordering::SeqCst);
        match self.defect {
            Defect::ClosesTheDoorOnly => Ok(()),
            _ => self.inner.close().await,
        }
    }
}

#[async_trait]
impl Locker for BrokenLocker {
    async fn acquire_opts(&self, key: &LockKey, asked: &AcquireOptions) -> Result<Attempt> {
        self.ensure_open()?;
        self.start_a_task_and_end_it().await;
        let (key, options) = (self.key(key)?, self.options(asked)?);
        *lock(&self.last_key) = Some(key.clone());
        match self.attempt(&key, &options).await? {
            Attempt::Acquired(guard) => Ok(Attempt::Acquired(self.tamper(guard, asked))),
            Attempt::Contended(why) => self.refuse(why),
        }
    }
}
