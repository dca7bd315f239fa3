//! The suite for scoped lockers.

use std::{sync::Arc, time::Duration};

use distributed_lock::{Attempt, Contention, Hold, ScopedError, ScopedLocker, ScopedLockerExt, ScopedOptions, Wait};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    bench::{Bench, PATIENCE},
    case::{Outcome, broken},
};

pub(super) mod body;
pub(super) mod closing;
pub(super) mod ending;
pub(super) mod excluding;
pub(super) mod waiting;

/// A run by itself, whose body stays until it is asked to leave.
#[derive(Debug)]
pub(crate) struct Occupied {
    started: Option<oneshot::Receiver<Hold>>,
    leave: Option<oneshot::Sender<()>>,
    running: JoinHandle<Result<Attempt<u32>, ScopedError<u32>>>,
}

/// What the body of an [`Occupied`] run returns.
const VALUE: u32 = 7;

impl Occupied {
    /// Starts the run; the body may have to wait for its key.
    pub(crate) fn start(bench: &Bench, locker: &Arc<dyn ScopedLocker>, wait: Wait) -> Self {
        let (locker, key) = (Arc::clone(locker), bench.key().clone());
        let (report, started) = oneshot::channel();
        let (leave, asked) = oneshot::channel();
        let running = tokio::spawn(async move {
            let body = async |hold: Hold| {
                // Whoever started the run may look at other things than its start.
                let _ = report.send(hold);
                let _ = asked.await;
                VALUE
            };
            locker.with_lock_opts(&key, ScopedOptions::new(wait), body).await
        });
        Self { started: Some(started), leave: Some(leave), running }
    }

    /// Starts the run on a key that must be free.
    pub(crate) async fn of(bench: &Bench, locker: &Arc<dyn ScopedLocker>) -> Outcome<(Self, Hold)> {
        let mut run = Self::start(bench, locker, Wait::Never);
        let hold = run.hold(bench).await?;
        Ok((run, hold))
    }

    /// The hold of the body, which must start.
    async fn hold(&mut self, bench: &Bench) -> Outcome<Hold> {
        let Some(started) = self.started.take() else { return Err(broken!("a body was awaited twice")) };
        match bench.soon("the start of a body", started).await? {
            Ok(hold) => Ok(hold),
            Err(_) => {
                let ended = bench.soon("the end of a run that did not start its body", &mut self.running).await?;
                Err(broken!("a run ended without starting its body: {ended:?}"))
            }
        }
    }

    fn has_started(&mut self) -> bool {
        self.started
            .as_mut()
            .is_none_or(|started| !matches!(started.try_recv(), Err(oneshot::error::TryRecvError::Empty)))
    }

    /// The answer of the run without asking the body to leave.
    async fn answer(mut self, bench: &Bench) -> Outcome<Result<Attempt<u32>, ScopedError<u32>>> {
        let ended = bench.soon("the end of a run", &mut self.running).await?;
        ended.map_err(|failed| broken!("a run panicked: {failed}"))
    }

    /// Asks the body to leave, and the answer of the run.
    pub(crate) async fn leave(mut self, bench: &Bench) -> Outcome<Result<Attempt<u32>, ScopedError<u32>>> {
        if let Some(leave) = self.leave.take() {
            let _ = leave.send(());
        }
        self.answer(bench).await
    }

    /// Drops the run's future and waits until that is done.
    async fn cancel(mut self) {
        self.running.abort();
        let _cancelled = (&mut self.running).await;
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// The key must be free within the locker's promise for a live process.
pub(crate) async fn expect_free(bench: &Bench, locker: &Arc<dyn ScopedLocker>, when: &str) -> Outcome {
    let limit = match locker.guarantees().cleanup.live {
        distributed_lock::Bound::Within(limit) if !bench.is_real() => limit,
        bound => bench.within(bound),
    };
    let run = bench.soon("a run with a limit", locker.with_lock_within(bench.key(), limit, async |_| ())).await?;
    match run {
        Ok(Attempt::Acquired(())) => Ok(()),
        other => Err(broken!("the key was not free within {limit:?} {when}: {other:?}")),
    }
}

/// A try must be contended, and its body must not run.
async fn expect_contended(bench: &Bench, locker: &Arc<dyn ScopedLocker>, when: &str) -> Outcome<Contention> {
    let mut ran = false;
    let body = |_| {
        ran = true;
        async {}
    };
    let tried = bench.soon("the end of a try", locker.try_with_lock(bench.key(), body)).await?;
    match tried {
        _ if ran => Err(broken!("a body ran {when}")),
        Ok(Attempt::Contended(why)) => Ok(why),
        other => Err(broken!("a try for a held key says {other:?} {when}")),
    }
}

/// How long a body must run to outlive its hold's TTL; long enough to see where there is none.
fn past(bench: &Bench, hold: &Hold) -> Duration {
    match hold.remaining() {
        Some(left) if !bench.is_real() || left < PATIENCE => left * 5 / 2,
        _ => Duration::from_secs(3),
    }
}
