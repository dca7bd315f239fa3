use std::{
    any::Any,
    fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use distributed_lock::{
    AcquireOptions, Attempt, Error, LockGuard, Locker, Ran, Release, ScopedLocker, ScopedLockerExt, ScopedOptions, Ttl,
    Wait, backend::BoxFuture,
};
use tokio::{sync::Mutex, time::sleep};

use crate::conformance::{
    Suite,
    bench::{Bench, LONG},
    case::{Outcome, broken, check},
    scoped::Occupied,
};

/// One public future of the contract, in one situation.
pub struct Operation {
    name: &'static str,
    suite: Suite,
    start: for<'a> fn(&'a Bench) -> Starting<'a>,
}

type Starting<'a> = Pin<Box<dyn Future<Output = Outcome<Started>> + 'a>>;

impl Operation {
    /// The second half of `locker::operation`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The suite it belongs to.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    pub(super) fn start<'a>(&self, bench: &'a Bench) -> Starting<'a> {
        (self.start)(bench)
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("name", &self.name).field("suite", &self.suite).finish_non_exhaustive()
    }
}

/// An operation that is ready to be polled.
pub(super) struct Started {
    pub(super) future: BoxFuture<'static, Outcome>,
    /// Who has the key meanwhile.
    pub(super) holder: Holder,
    /// Whether the holder leaves only when the operation is over, instead of making way for it.
    pub(super) holder_stays: bool,
    /// What the caller does after the future was dropped or has ended.
    pub(super) after: BoxFuture<'static, Outcome>,
    /// Dropped after everything else, since the end of a locker could hide what it left.
    pub(super) kept: Box<dyn Any>,
}

impl Started {
    fn new(kept: impl Any, future: impl Future<Output = Outcome> + Send + 'static) -> Self {
        let after = Box::pin(async { Ok(()) });
        Self { future: Box::pin(future), holder: Holder::Nobody, holder_stays: false, after, kept: Box::new(kept) }
    }

    fn beside(mut self, holder: Holder) -> Self {
        self.holder = holder;
        self
    }

    fn beside_one_who_stays(mut self, stays: bool) -> Self {
        self.holder_stays = stays;
        self
    }

    fn then(mut self, after: impl Future<Output = Outcome> + Send + 'static) -> Self {
        self.after = Box::pin(after);
        self
    }
}

pub(super) enum Holder {
    Nobody,
    Session(LockGuard, Arc<dyn Locker>),
    Body(Occupied, Arc<dyn ScopedLocker>),
}

impl Holder {
    async fn session(bench: &Bench) -> Outcome<Self> {
        let locker = bench.locker().await?;
        Ok(Self::Session(bench.take(&locker, LONG).await?, locker))
    }

    async fn body(bench: &Bench) -> Outcome<Self> {
        let locker = bench.scoped().await?;
        Ok(Self::Body(Occupied::of(bench, &locker).await?.0, locker))
    }

    pub(super) async fn leave(self, bench: &Bench) -> Outcome {
        match self {
            Self::Nobody => {}
            Self::Session(guard, _locker) => drop(guard.release().await?),
            Self::Body(run, _locker) => drop(run.leave(bench).await?),
        }
        Ok(())
    }
}

/// A guard that its holder keeps when an operation on it is dropped.
#[derive(Clone)]
struct Kept(Arc<Mutex<Option<LockGuard>>>);

impl Kept {
    fn new(guard: LockGuard) -> Self {
        Self(Arc::new(Mutex::new(Some(guard))))
    }

    /// A dropped operation must leave the hold valid and its guard working.
    async fn give_up(self) -> Outcome {
        let Some(guard) = self.0.lock().await.take() else { return Err(broken!("the guard is gone")) };
        check!(guard.ensure_valid().is_ok(), "the hold ended with a dropped operation on it");
        match guard.release().await {
            Ok(Release::Released) => Ok(()),
            other => Err(broken!("the release after a dropped operation says {other:?}")),
        }
    }
}

macro_rules! operations { ($($suite:ident: $($name:ident),+;)+) => {
    /// Every operation, for both suites.
    #[must_use]
    pub fn operations() -> &'static [Operation] {
        &[$($(Operation { name: stringify!($name), suite: Suite::$suite, start: |bench| Box::pin($name(bench)) }),+),+]
    }
} }

operations! {
    Locker:
        try_acquire_of_a_free_key,
        try_acquire_of_a_held_key,
        acquire_of_a_free_key,
        acquire_of_a_held_key,
        acquire_of_a_key_of_its_own,
        acquire_within_of_a_free_key,
        acquire_within_that_elapses,
        acquire_within_of_a_key_of_its_own_that_elapses,
        renew,
        release,
        run_under_a_guard,
        ping,
        close_with_a_holder_and_a_waiter;
    Scoped:
        with_lock_of_a_free_key,
        with_lock_of_a_held_key,
        with_lock_of_a_body_that_panics,
        with_lock_within_that_elapses,
        try_with_lock_of_a_free_key,
        try_with_lock_of_a_held_key,
        scoped_ping,
        scoped_close_with_a_body_and_a_waiting_run;
}

/// Every wait of these sweeps that is to elapse is shorter than the holder stays.
const BRIEF: Duration = Duration::from_millis(10);

async fn acquire(bench: &Bench, wait: Wait, holder: Holder, expected: fn(&Attempt) -> bool) -> Outcome<Started> {
    acquire_by(bench.locker().await?, bench, wait, holder, expected)
}

fn acquire_by(
    locker: Arc<dyn Locker>,
    bench: &Bench,
    wait: Wait,
    holder: Holder,
    expected: fn(&Attempt) -> bool,
) -> Outcome<Started> {
    let key = bench.key().clone();
    let options = AcquireOptions::new(Ttl::new(LONG).map_err(Error::from)?).with_wait(wait);
    let calling = Arc::clone(&locker);
    let future = async move {
        let attempt = calling.acquire_opts(&key, &options).await?;
        check!(expected(&attempt), "the answer is {attempt:?}");
        Ok(())
    };
    Ok(Started::new(locker, future).beside(holder).beside_one_who_stays(wait == Wait::Never))
}

async fn try_acquire_of_a_free_key(bench: &Bench) -> Outcome<Started> {
    acquire(bench, Wait::Never, Holder::Nobody, |answer| !answer.is_contended()).await
}

async fn try_acquire_of_a_held_key(bench: &Bench) -> Outcome<Started> {
    acquire(bench, Wait::Never, Holder::session(bench).await?, Attempt::is_contended).await
}

async fn acquire_of_a_free_key(bench: &Bench) -> Outcome<Started> {
    acquire(bench, Wait::Forever, Holder::Nobody, |answer| !answer.is_contended()).await
}

async fn acquire_of_a_held_key(bench: &Bench) -> Outcome<Started> {
    acquire(bench, Wait::Forever, Holder::session(bench).await?, |answer| !answer.is_contended()).await
}

/// Held by the locker that is asked: it may queue such waits in its own process.
async fn acquire_of_a_key_of_its_own(bench: &Bench) -> Outcome<Started> {
    let locker = bench.locker().await?;
    let holder = Holder::Session(bench.take(&locker, LONG).await?, Arc::clone(&locker));
    acquire_by(locker, bench, Wait::Forever, holder, |answer| !answer.is_contended())
}

async fn acquire_within_of_a_free_key(bench: &Bench) -> Outcome<Started> {
    acquire(bench, Wait::UpTo(LONG), Holder::Nobody, |answer| !answer.is_contended()).await
}

async fn acquire_within_that_elapses(bench: &Bench) -> Outcome<Started> {
    // On a busy machine the holder can leave before the wait has elapsed.
    acquire(bench, Wait::UpTo(BRIEF), Holder::session(bench).await?, |_| true).await
}

async fn acquire_within_of_a_key_of_its_own_that_elapses(bench: &Bench) -> Outcome<Started> {
    let locker = bench.locker().await?;
    let holder = Holder::Session(bench.take(&locker, LONG).await?, Arc::clone(&locker));
    // As above.
    acquire_by(locker, bench, Wait::UpTo(BRIEF), holder, |_| true)
}

async fn renew(bench: &Bench) -> Outcome<Started> {
    let locker = bench.locker().await?;
    let kept = Kept::new(bench.take(&locker, LONG).await?);
    let used = kept.clone();
    let future = async move {
        match used.0.lock().await.as_mut() {
            Some(guard) => guard.renew(LONG / 2).await?,
            None => return Err(broken!("the guard is gone")),
        }
        Ok(())
    };
    Ok(Started::new(locker, future).then(kept.give_up()))
}

async fn release(bench: &Bench) -> Outcome<Started> {
    let locker = bench.locker().await?;
    let guard = bench.take(&locker, LONG).await?;
    let future = async move {
        match guard.release().await? {
            Release::Released => Ok(()),
            other => Err(broken!("a release says {other:?}")),
        }
    };
    Ok(Started::new(locker, future))
}

async fn run_under_a_guard(bench: &Bench) -> Outcome<Started> {
    let locker = bench.locker().await?;
    let ttl = bench.medium(&*locker);
    let kept = Kept::new(bench.take(&locker, ttl).await?);
    let used = kept.clone();
    let future = async move {
        let mut guard = used.0.lock().await;
        let Some(guard) = guard.as_mut() else { return Err(broken!("the guard is gone")) };
        // Long enough for two renewals.
        match guard.run(Duration::ZERO, sleep(ttl * 3 / 8)).await? {
            Ran::Done(()) => Ok(()),
            lost => Err(broken!("the hold was lost under work: {lost:?}")),
        }
    };
    Ok(Started::new(locker, future).then(kept.give_up()))
}

async fn ping(bench: &Bench) -> Outcome<Started> {
    let locker = bench.locker().await?;
    let calling = Arc::clone(&locker);
    Ok(Started::new(locker, async move { Ok(calling.ping().await?) }))
}

async fn close_with_a_holder_and_a_waiter(bench: &Bench) -> Outcome<Started> {
    let locker = bench.locker().await?;
    let guard = bench.take(&locker, LONG).await?;
    let waiter = bench.waiter(&locker, Wait::Forever)?;
    bench.moment().await;
    let (calling, again) = (Arc::clone(&locker), Arc::clone(&locker));
    let future = async move { Ok(calling.close().await?) };
    let after = async move {
        again.close().await?;
        waiters_see_it().await;
        Ok(())
    };
    // The guard and the waiter are still there when the close that was dropped is finished by another.
    Ok(Started::new((guard, waiter, locker), future).then(after))
}

/// A bound does not cover the time in which the runtime has not yet polled those whom it wakes.
async fn waiters_see_it() {
    sleep(Duration::from_millis(1)).await;
}

async fn run(bench: &Bench, wait: Wait, holder: Holder, expected: fn(&Attempt<()>) -> bool) -> Outcome<Started> {
    let (locker, key) = (bench.scoped().await?, bench.key().clone());
    let calling = Arc::clone(&locker);
    let future = async move {
        let body = async |_| {
            tokio::task::yield_now().await;
            sleep(BRIEF).await;
        };
        let attempt = calling.with_lock_opts(&key, ScopedOptions::new(wait), body).await?;
        check!(expected(&attempt), "the answer is {attempt:?}");
        Ok(())
    };
    Ok(Started::new(locker, future).beside(holder).beside_one_who_stays(wait == Wait::Never))
}

async fn with_lock_of_a_free_key(bench: &Bench) -> Outcome<Started> {
    run(bench, Wait::Forever, Holder::Nobody, |answer| !answer.is_contended()).await
}

async fn with_lock_of_a_held_key(bench: &Bench) -> Outcome<Started> {
    run(bench, Wait::Forever, Holder::body(bench).await?, |answer| !answer.is_contended()).await
}

async fn with_lock_of_a_body_that_panics(bench: &Bench) -> Outcome<Started> {
    let (locker, key) = (bench.scoped().await?, bench.key().clone());
    let calling = Arc::clone(&locker);
    let future = async move {
        let body = async |_| {
            sleep(BRIEF).await;
            // Without a word on the error stream.
            resume_unwind(Box::new("on purpose"))
        };
        let mut run = Box::pin(calling.with_lock::<(), _, _>(&key, body));
        // The panic has to stop here, or it would end the sweep.
        let caught = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(answer)) => Poll::Ready(Err(broken!("the panic did not reach the caller: {answer:?}"))),
            Err(_panic) => Poll::Ready(Ok(())),
        });
        caught.await
    };
    Ok(Started::new(locker, future))
}

async fn with_lock_within_that_elapses(bench: &Bench) -> Outcome<Started> {
    run(bench, Wait::UpTo(BRIEF), Holder::body(bench).await?, |_| true).await
}

async fn try_with_lock_of_a_free_key(bench: &Bench) -> Outcome<Started> {
    run(bench, Wait::Never, Holder::Nobody, |answer| !answer.is_contended()).await
}

async fn try_with_lock_of_a_held_key(bench: &Bench) -> Outcome<Started> {
    run(bench, Wait::Never, Holder::body(bench).await?, Attempt::is_contended).await
}

async fn scoped_ping(bench: &Bench) -> Outcome<Started> {
    let locker = bench.scoped().await?;
    let calling = Arc::clone(&locker);
    Ok(Started::new(locker, async move { Ok(calling.ping().await?) }))
}

async fn scoped_close_with_a_body_and_a_waiting_run(bench: &Bench) -> Outcome<Started> {
    let locker = bench.scoped().await?;
    let (running, _hold) = Occupied::of(bench, &locker).await?;
    let waiting = Occupied::start(bench, &locker, Wait::Forever);
    bench.moment().await;
    let (calling, again) = (Arc::clone(&locker), Arc::clone(&locker));
    let future = async move { Ok(calling.close().await?) };
    let after = async move {
        again.close().await?;
        waiters_see_it().await;
        Ok(())
    };
    // The body and the waiting run are still there when the close that was dropped is finished by another.
    Ok(Started::new((running, waiting, locker), future).then(after))
}
