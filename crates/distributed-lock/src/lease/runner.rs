use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::{
    LeaseConfig, LeaseExit, LeaseGuarantees, LeaseState, LeaseWatch, Term, TermEnd,
    machine::Stop,
    orders::{OrderReader, Orders},
    run::Run,
    timing::{DELTA, Timing},
};
use crate::{Error, ErrorKind, LockKey, Locker, Result};

/// Runs named jobs, each on one replica at a time. Cheap to clone; the clones share names and [`close`](Self::close).
///
/// ```
/// use std::sync::Arc;
/// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseExit, LeaseRunner}};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
/// let (mail, clean) = tokio::try_join!(
///     runner.run("mail", async |_term| Ok::<_, ()>("sent")),
///     runner.run("clean up", async |_term| Ok::<_, ()>("swept")),
/// )?;
/// assert!(matches!((mail, clean), (LeaseExit::Finished("sent"), LeaseExit::Finished("swept"))));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LeaseRunner(Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) locker: Arc<dyn Locker>,
    pub(super) config: LeaseConfig,
    pub(super) timing: Timing,
    // A std mutex: never held across an await.
    registry: Mutex<Registry>,
}

#[derive(Debug, Default)]
struct Registry {
    closed: bool,
    leases: HashMap<LockKey, Lease>,
}

#[derive(Debug, Default)]
struct Lease {
    running: bool,
    orders: watch::Sender<Orders>,
    state: watch::Sender<LeaseState>,
}

impl LeaseRunner {
    /// A runner over any locker. On PostgreSQL take `PostgresSharedSession` of the crate `lock-postgres`, unless standbys have to be served
    /// in order: the jobs of a process then share a session, rather than have a connection each.
    ///
    /// # Errors
    /// `InvalidInput` for a setting that breaks its rule, with the numbers: above all a grace that does not fit into the TTL
    /// beside a renewal that fails, then with the smallest TTL that would do.
    ///
    /// ```
    /// use std::{error::Error, sync::Arc, time::Duration};
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseRunner}};
    ///
    /// let config = LeaseConfig::new().with_grace(Duration::from_secs(60));
    /// let refused = LeaseRunner::new(Arc::new(MemoryLocker::new()), config).unwrap_err();
    /// assert!(refused.source().unwrap().to_string().ends_with("the smallest whole second that would do for this grace is 79s"));
    /// ```
    pub fn new(locker: Arc<dyn Locker>, config: LeaseConfig) -> Result<Self> {
        let timing = config.timing(&locker.capabilities())?;
        Ok(Self(Arc::new(Shared { locker, config, timing, registry: Mutex::default() })))
    }

    /// Contends, runs the job while it leads, contends again after a loss or a step-down, and returns when the job ended by
    /// itself or for good.
    ///
    /// A failure to ask for the lease is no end, the first connection included: it is retried after the retry interval, or later
    /// if the error says so. What a job returns after a loss or a step-down is dropped, since another term follows; see
    /// [`run_with`](Self::run_with).
    ///
    /// Cancel safe: dropping the run drops the job, then frees the lease, then the name.
    ///
    /// # Errors
    /// `AlreadyRunning` if this runner runs that name; `Closed` after [`close`](Self::close) or when the locker was closed;
    /// `Deadlock` in a body under the same key of the same locker; `InvalidInput` and `Unsupported` where asking again changes
    /// nothing. `Denied` and `Misconfigured` only as the first answer: later they are what a failover or a changed password
    /// looks like, and are retried.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseExit, LeaseRunner, Term}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
    /// let ticks = runner.run("ticker", async |term: Term| {
    ///     let mut ticks = 0;
    ///     while ticks < 3 {
    ///         tokio::select! {
    ///             _why = term.cancelled() => break,
    ///             () = tokio::time::sleep(Duration::from_millis(1)) => ticks += 1,
    ///         }
    ///     }
    ///     Ok::<_, std::io::Error>(ticks)
    /// });
    /// assert!(matches!(ticks.await?, LeaseExit::Finished(3)));
    /// # Ok(()) }
    /// ```
    pub async fn run<T, E, Job, Fut>(
        &self,
        name: impl TryInto<LockKey, Error: Into<Error>>,
        job: Job,
    ) -> Result<LeaseExit<T, E>>
    where
        Job: FnMut(Term) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.run_with(name, job, drop).await
    }

    /// The same, with a hook for the terms that another one may follow: those that a loss or a step-down ended.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{LossCause, MemoryLocker, lease::{LeaseConfig, LeaseRunner, Term}};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryLocker::new();
    /// let runner = LeaseRunner::new(Arc::new(store.peer()), LeaseConfig::new())?;
    /// let job = async |term: Term| {
    ///     if term.fencing_token().map(|token| token.get()) == Some(1) {
    ///         store.lose("report", LossCause::SessionEnded).unwrap();
    ///         term.cancelled().await;
    ///     }
    ///     Ok::<_, ()>("so far")
    /// };
    /// let mut interrupted = Vec::new();
    /// let _exit = runner.run_with("report", job, |end| interrupted.push(end)).await?;
    /// assert_eq!(interrupted[0].result, Some(Ok("so far")));
    /// assert_eq!(interrupted[0].loss.as_ref().unwrap().cause(), LossCause::SessionEnded);
    /// # Ok(()) }
    /// ```
    pub async fn run_with<T, E, Job, Fut>(
        &self,
        name: impl TryInto<LockKey, Error: Into<Error>>,
        job: Job,
        on_term_end: impl FnMut(TermEnd<T, E>),
    ) -> Result<LeaseExit<T, E>>
    where
        Job: FnMut(Term) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let key = name.try_into().map_err(Into::into)?;
        // Outlives everything of the run, so that the name is free only when the job and the lease are gone.
        let registered = Registered::new(&self.0, key)?;
        let run = Run::new(&self.0, registered.key.clone(), registered.orders(), registered.state.clone())?;
        run.drive(job, on_term_end).await
    }

    /// Ends the run of this name: its job is told ([`CancelReason::Stopped`](super::CancelReason::Stopped)) and has its grace.
    /// `false` if the name does not run here.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseExit, LeaseRunner}};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
    /// let exit = runner.run("report", async |_term| {
    ///     assert!(runner.stop("report"));
    ///     std::future::pending::<Result<(), ()>>().await // deaf: dropped after the grace
    /// });
    /// let LeaseExit::Stopped(Some(end)) = exit.await? else { panic!("stopped") };
    /// assert!(end.result.is_none());
    /// # Ok(()) }
    /// ```
    pub fn stop(&self, name: &str) -> bool {
        self.order(name, |orders| orders.stop = orders.stop.or(Some(Stop::Stop)))
    }

    /// Makes this runner's holder of the name drain, release and stand by again, behind those who wait. `false` if the name does
    /// not run here; nothing happens if it stands by.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{MemoryLocker, lease::{CancelReason, LeaseConfig, LeaseExit, LeaseRunner, Term}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
    /// let mut term_number = 0;
    /// let exit = runner.run("report", |term: Term| {
    ///     term_number += 1;
    ///     let (runner, first) = (runner.clone(), term_number == 1);
    ///     async move {
    ///         if first {
    ///             runner.step_down("report");
    ///             assert!(matches!(term.cancelled().await, CancelReason::StepDown));
    ///         }
    ///         Ok::<_, ()>(first)
    ///     }
    /// });
    /// assert!(matches!(exit.await?, LeaseExit::Finished(false)), "nobody else waited, so it led again");
    /// # Ok(()) }
    /// ```
    pub fn step_down(&self, name: &str) -> bool {
        self.order(name, |orders| orders.step_down += 1)
    }

    /// Asks the holder of the name, wherever it is, to step down, and queues anew. A courtesy: the holder drains within its
    /// grace, and whoever is first in the queue gets the lease. `false` if the name does not run here.
    ///
    /// # Errors
    /// `Unsupported` if the locker cannot pass such a request on.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{MemoryLocker, lease::{CancelReason, LeaseConfig, LeaseExit, LeaseRunner, LeaseState, Term}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryLocker::new();
    /// let old = LeaseRunner::new(Arc::new(store.peer()), LeaseConfig::new())?;
    /// let new = LeaseRunner::new(Arc::new(store.peer()), LeaseConfig::new())?;
    /// let _old_leads = tokio::spawn({
    ///     let old = old.clone();
    ///     async move { old.run("report", |term: Term| async move { Err::<(), _>(term.cancelled().await) }).await }
    /// });
    /// old.watch("report")?.wait_for(|state| matches!(state, LeaseState::Leading(_))).await;
    /// let take_over = async {
    ///     new.watch("report")?.wait_for(|state| matches!(state, LeaseState::Standby)).await;
    ///     new.take_over("report")
    /// };
    /// let (exit, asked) = tokio::join!(new.run("report", async |_term| Ok::<_, ()>("new")), take_over);
    /// assert!(asked? && matches!(exit?, LeaseExit::Finished("new")));
    /// # Ok(()) }
    /// ```
    pub fn take_over(&self, name: &str) -> Result<bool> {
        if !self.0.locker.capabilities().step_down {
            let message = "this locker cannot ask a holder to step down; stop its run where it is";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(self.order(name, |orders| orders.take_over += 1))
    }

    /// Follows the state of a name, running or not.
    ///
    /// # Errors
    /// `InvalidInput` for a bad name.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseRunner, LeaseState}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
    /// let watch = runner.watch("report")?;
    /// let leads = || matches!(watch.state(), LeaseState::Leading(_));
    /// let exit = runner.run("report", async |_term| Ok::<_, ()>(assert!(leads())));
    /// let _finished = exit.await?;
    /// assert!(!leads());
    /// # Ok(()) }
    /// ```
    pub fn watch(&self, name: impl TryInto<LockKey, Error: Into<Error>>) -> Result<LeaseWatch> {
        let key = name.try_into().map_err(Into::into)?;
        Ok(LeaseWatch::new(self.0.lock().leases.entry(key).or_default().state.subscribe()))
    }

    /// For health checks: bad while a job of this runner runs whose lease cannot be proven. A standby is healthy.
    ///
    /// # Errors
    /// Kind `Lost`, of one such name.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{LossCause, MemoryLocker, lease::{LeaseConfig, LeaseRunner, Term}};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryLocker::new();
    /// let runner = LeaseRunner::new(Arc::new(store.peer()), LeaseConfig::new())?;
    /// let exit = runner.run("report", async |term: Term| {
    ///     assert!(runner.health().is_ok());
    ///     if store.lose("report", LossCause::SessionEnded).unwrap() {
    ///         assert!(runner.health().is_err());
    ///     }
    ///     runner.stop("report");
    ///     Ok::<_, ()>(())
    /// });
    /// let _exit = exit.await?;
    /// assert!(runner.health().is_ok(), "the job has ended");
    /// # Ok(()) }
    /// ```
    pub fn health(&self) -> Result<()> {
        self.0.lock().leases.values().try_for_each(|lease| lease.state.borrow().health())
    }

    /// What this runner promises, from its live settings and those of its locker. The world is in it after the first contact with
    /// the store, for which a `ping` of the locker is enough.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseRunner}};
    /// # fn main() -> distributed_lock::Result<()> {
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
    /// assert!(runner.guarantees().to_string().starts_with("detection <= 13.1s, grace 5s, overlap: ended or killed <= 0ns"));
    /// # Ok(()) }
    /// ```
    pub fn guarantees(&self) -> LeaseGuarantees {
        self.0.guarantees()
    }

    /// Ends all runs, refuses later ones, and waits until every job has ended and every lease has been given up: at most the grace
    /// and the time that a release may take. The locker stays open.
    ///
    /// Cancel safe: call it again to wait on.
    ///
    /// # Errors
    /// `Indeterminate` if a run did not end in that time, as one that is not polled or whose job blocks its thread. Its job may
    /// still run.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{ErrorKind, MemoryLocker, lease::{LeaseConfig, LeaseExit, LeaseRunner, Term}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
    /// let job = async |term: Term| Err::<(), _>(term.cancelled().await);
    /// let (exit, closed) = tokio::join!(runner.run("report", job), runner.close());
    /// assert!(closed.is_ok() && matches!(exit?, LeaseExit::Closed(_)));
    /// assert_eq!(runner.run("report", job).await.unwrap_err().kind(), ErrorKind::Closed);
    /// # Ok(()) }
    /// ```
    pub async fn close(&self) -> Result<()> {
        let states: Vec<_> = {
            let mut registry = self.0.lock();
            registry.closed = true;
            let close = |lease: &Lease| {
                lease.orders.send_modify(|orders| orders.stop = orders.stop.or(Some(Stop::Close)));
                lease.state.subscribe()
            };
            registry.leases.values().filter(|lease| lease.running).map(close).collect()
        };
        let ended = async {
            for mut state in states {
                let _idle_or_gone = state.wait_for(|state| matches!(state, LeaseState::Idle)).await;
            }
        };
        let timing = &self.0.timing;
        let budget = timing.grace() + timing.answer() + DELTA;
        tokio::time::timeout(budget, ended).await.map_err(|_elapsed| {
            let message = format!("not every run ended within the drain budget of {budget:?}");
            Error::new(ErrorKind::Indeterminate, message)
        })
    }

    fn order(&self, name: &str, give: impl FnOnce(&mut Orders)) -> bool {
        let Ok(key) = LockKey::new(name) else { return false };
        let registry = self.0.lock();
        match registry.leases.get(&key).filter(|lease| lease.running) {
            Some(lease) => {
                lease.orders.send_modify(give);
                true
            }
            None => false,
        }
    }
}

impl Shared {
    pub(super) fn guarantees(&self) -> LeaseGuarantees {
        LeaseGuarantees::new(&*self.locker, &self.config, &self.timing)
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name in use; free again when dropped.
struct Registered<'a> {
    shared: &'a Shared,
    key: LockKey,
    orders: watch::Sender<Orders>,
    state: watch::Sender<LeaseState>,
}

impl<'a> Registered<'a> {
    fn new(shared: &'a Shared, key: LockKey) -> Result<Self> {
        let mut registry = shared.lock();
        if registry.closed {
            return Err(Error::new(ErrorKind::Closed, "this lease runner was closed").with_key(&key));
        }
        let lease = registry.leases.entry(key.clone()).or_default();
        if lease.running {
            let message = "a job of this name already runs in this runner";
            return Err(Error::new(ErrorKind::AlreadyRunning, message).with_key(&key));
        }
        lease.running = true;
        lease.orders.send_replace(Orders::default());
        let (orders, state) = (lease.orders.clone(), lease.state.clone());
        Ok(Self { shared, key, orders, state })
    }

    fn orders(&self) -> OrderReader {
        OrderReader::new(self.orders.subscribe())
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // Under the registry's lock, so that the next run of this name cannot be shown as idle.
        let mut registry = self.shared.lock();
        self.state.send_replace(LeaseState::Idle);
        if let Some(lease) = registry.leases.get_mut(&self.key) {
            lease.running = false;
            if lease.state.receiver_count() == 0 {
                registry.leases.remove(&self.key);
            }
        }
    }
}
