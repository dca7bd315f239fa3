use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distributed_lock::{
    AcquireOptions, Attempt, Bound, Contention, Error, ErrorKind, LockGuard, LockKey, Locker, LockerExt, Result,
    ScopedLocker, Ttl, Wait,
};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    Store, Time,
    case::{Outcome, Stop, broken, check},
};
use crate::wait::wait_until;

/// What a case works with: one store, one key that no other case uses, and the questions that come up again and again.
#[derive(Debug)]
pub(crate) struct Bench {
    store: Arc<dyn Store>,
    time: Time,
    key: LockKey,
}

/// A TTL that no case outlives.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// After this long in vain, something is not going to happen. Generous, since the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

impl Bench {
    #[expect(clippy::expect_used, reason = "names of subjects and cases are short")]
    pub(crate) fn new(store: Arc<dyn Store>, time: Time, subject: &str, case: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{subject}::{case} {}.{number}", std::process::id());
        Self { store, time, key: LockKey::new(name).expect("a short name is a key") }
    }

    /// The case's own key.
    pub(crate) fn key(&self) -> &LockKey {
        &self.key
    }

    /// Another key that is only this case's.
    #[expect(clippy::expect_used, reason = "the suffixes of the cases are short")]
    pub(crate) fn key_named(&self, suffix: &str) -> LockKey {
        LockKey::new(format!("{}{suffix}", self.key.as_str())).expect("a short name is a key")
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// A new locker on the store.
    pub(crate) async fn locker(&self) -> Outcome<Arc<dyn Locker>> {
        self.store.locker().await?.ok_or_else(|| Stop::Excluded("it has no session lockers".into()))
    }

    /// A new scoped locker on the store.
    pub(crate) async fn scoped(&self) -> Outcome<Arc<dyn ScopedLocker>> {
        self.store.scoped().await?.ok_or_else(|| Stop::Excluded("it has no scoped lockers".into()))
    }

    /// A TTL short enough to wait for its end.
    pub(crate) fn short(&self, locker: &dyn Locker) -> Duration {
        locker.capabilities().min_ttl.max(Duration::from_secs(1))
    }

    /// A TTL that can end within a case, and leaves a busy machine time to renew it.
    pub(crate) fn medium(&self, locker: &dyn Locker) -> Duration {
        self.short(locker) * 3
    }

    pub(crate) fn is_real(&self) -> bool {
        self.time == Time::Real
    }

    /// How late something may be that is due: not at all in paused time, but for the rounding of timers.
    pub(crate) fn slack(&self) -> Duration {
        match self.time {
            Time::Paused => Duration::from_millis(2),
            Time::Real => Duration::from_secs(5),
        }
    }

    pub(crate) fn within(&self, bound: Bound) -> Duration {
        match bound {
            Bound::Within(limit) => limit.saturating_add(self.slack()),
            Bound::Unbounded => PATIENCE,
        }
    }

    /// Takes the key, which must be free.
    pub(crate) async fn take(&self, locker: &Arc<dyn Locker>, ttl: Duration) -> Outcome<LockGuard> {
        match locker.try_acquire(&self.key, ttl).await? {
            Attempt::Acquired(guard) => Ok(guard),
            Attempt::Contended(why) => Err(broken!("a free key was not given: {why}")),
        }
    }

    /// A try must be contended.
    pub(crate) async fn expect_contended(&self, locker: &Arc<dyn Locker>, when: &str) -> Outcome<Contention> {
        match locker.try_acquire(&self.key, LONG).await? {
            Attempt::Acquired(_) => Err(broken!("the key was given to a second holder {when}")),
            Attempt::Contended(why) => Ok(why),
        }
    }

    /// The key must be free within the locker's promise for a live process; it is free again afterwards.
    pub(crate) async fn expect_free(&self, locker: &Arc<dyn Locker>, when: &str) -> Outcome {
        let _how_it_ended = self.take_soon(locker, when).await?.release().await?;
        Ok(())
    }

    /// The key must be free within this limit; it is free again afterwards.
    pub(crate) async fn expect_free_within(&self, locker: &Arc<dyn Locker>, limit: Duration, when: &str) -> Outcome {
        let _how_it_ended = self.take_within(locker, limit, when).await?.release().await?;
        Ok(())
    }

    /// Takes the key, which must be free within the locker's promise for a live process.
    pub(crate) async fn take_soon(&self, locker: &Arc<dyn Locker>, when: &str) -> Outcome<LockGuard> {
        let limit = match (self.time, locker.guarantees().cleanup.live) {
            (Time::Paused, Bound::Within(limit)) => limit,
            (_, bound) => self.within(bound),
        };
        self.take_within(locker, limit, when).await
    }

    pub(crate) async fn take_within(
        &self,
        locker: &Arc<dyn Locker>,
        limit: Duration,
        when: &str,
    ) -> Outcome<LockGuard> {
        match self.soon("an acquire with a limit", locker.acquire_within(&self.key, LONG, limit)).await?? {
            Attempt::Acquired(guard) => Ok(guard),
            Attempt::Contended(why) => Err(broken!("the key was not free within {limit:?} {when}: {why}")),
        }
    }

    /// Drops a guard and waits until its key is free.
    pub(crate) async fn freed<G>(&self, locker: &Arc<dyn Locker>, key: &LockKey, guard: G) -> Outcome {
        drop(guard);
        let limit = self.within(locker.guarantees().cleanup.live);
        match locker.acquire_within(key, LONG, limit).await? {
            Attempt::Acquired(guard) => guard.release().await.map(drop)?,
            Attempt::Contended(why) => {
                return Err(broken!("a key was not free within {limit:?} after its guard was dropped: {why}"));
            }
        }
        Ok(())
    }

    /// Longer than any TTL in paused time; in real time as long as one likes to wait.
    pub(crate) async fn pass_long(&self) {
        sleep(match self.time {
            Time::Paused => LONG * 2,
            Time::Real => Duration::from_secs(3),
        })
        .await;
    }

    /// Lets other tasks come as far as they can: paused time passes only when they have. In real time, as far as they come
    /// soon.
    pub(crate) async fn moment(&self) {
        sleep(Duration::from_millis(if self.is_real() { 50 } else { 1 })).await;
    }

    /// An acquire that runs by itself.
    pub(crate) fn waiter(&self, locker: &Arc<dyn Locker>, wait: Wait) -> Outcome<Waiter> {
        let options = AcquireOptions::new(Ttl::new(LONG).map_err(Error::from)?).with_wait(wait);
        Ok(self.waiter_with(locker, options))
    }

    pub(crate) fn waiter_with(&self, locker: &Arc<dyn Locker>, options: AcquireOptions) -> Waiter {
        let (locker, key) = (Arc::clone(locker), self.key.clone());
        Waiter(tokio::spawn(async move { locker.acquire_opts(&key, &options).await }))
    }

    /// Until this many wait in the store's queue.
    pub(crate) async fn queued(&self, count: usize) -> Outcome {
        if self.time == Time::Paused {
            self.moment().await;
            return Ok(());
        }
        if self.store.waiters(&self.key).await?.is_none() {
            return Err(Stop::Excluded("its waiters cannot be seen from outside".into()));
        }
        let seen = wait_until(
            PATIENCE,
            "waiters in the store's queue",
            async || matches!(self.store.waiters(&self.key).await, Ok(Some(waiting)) if waiting >= count),
        );
        seen.await.map_err(|timed_out| broken!("{count} in the queue: {timed_out}"))
    }

    /// Takes the key from its holder behind its back.
    pub(crate) async fn lose(&self) -> Outcome {
        match self.store.lose(&self.key).await? {
            true => Ok(()),
            false => Err(Stop::Excluded("a loss cannot be brought about".into())),
        }
    }

    /// What must happen.
    pub(crate) async fn soon<F: Future>(&self, what: &str, future: F) -> Outcome<F::Output> {
        let limit = PATIENCE.max(self.slack());
        timeout(limit, future).await.map_err(|_elapsed| broken!("still not after {limit:?}: {what}"))
    }

    /// What must not happen, for as long as one can reasonably look.
    pub(crate) async fn not_yet<F: Future>(&self, what: &str, future: F) -> Outcome {
        let looked = timeout(Duration::from_millis(300), future).await;
        check!(looked.is_err(), "it happened: {what}");
        Ok(())
    }
}

/// The subject must claim it.
pub(crate) fn needs(claimed: bool, otherwise: &str) -> Outcome {
    claimed.then_some(()).ok_or_else(|| Stop::Excluded(otherwise.into()))
}

/// Stops when dropped, as the future of a caller would.
#[derive(Debug)]
pub(crate) struct Waiter(JoinHandle<Result<Attempt>>);

impl Waiter {
    /// Its answer, which must come.
    pub(crate) async fn answer(mut self, bench: &Bench) -> Outcome<Result<Attempt>> {
        let joined = bench.soon("the answer of a waiter", &mut self.0).await?;
        joined.map_err(|failed| Error::new(ErrorKind::Other, failed.to_string()).into())
    }

    /// Its guard, which it must get.
    pub(crate) async fn guard(self, bench: &Bench) -> Outcome<LockGuard> {
        match self.answer(bench).await?? {
            Attempt::Acquired(guard) => Ok(guard),
            Attempt::Contended(why) => Err(broken!("a waiter did not get the key: {why}")),
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.0.is_finished()
    }

    /// Drops its future and waits until that is done.
    pub(crate) async fn cancel(mut self) {
        self.0.abort();
        let _cancelled = (&mut self.0).await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.abort();
    }
}
