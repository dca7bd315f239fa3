//! One call for a lock, from its start to its answer, and what the backend says of it meanwhile.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::{
    Label, Metric, One, Telemetry,
    trace::{self, Span},
    words::{Outcome, reason},
};
use crate::{Attempt, Clock, Contention, LockKey, Result, TokioClock, Wait};

tokio::task_local! {
    /// The call of an [`Instrumented`](super::Instrumented) that is being answered.
    static CALL: Arc<Heard>;
}

/// For backends: says that the call in whose task this is must wait, and for what, as soon as that is known. An
/// [`Instrumented`](super::Instrumented) around the locker counts it, once per call. Nothing happens without one.
///
/// A backend that does not say it is seen to be contended only in calls that end so. Work that it spawns is heard through
/// [`heard_by_caller`](crate::backend::heard_by_caller).
///
/// ```
/// use distributed_lock::{Contention, backend::tell_waiting};
///
/// tell_waiting(&Contention::Held);
/// ```
pub fn tell_waiting(why: &Contention) {
    if super::locker::ENABLED {
        // Without such a call there is nobody to be told.
        let _ = CALL.try_with(|heard| heard.note(why));
    }
}

/// Work that is spawned for the call in whose task this is: what it says is heard as said by the call.
pub(crate) fn heard_by_caller<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let call = super::locker::ENABLED.then(|| CALL.try_with(Arc::clone).ok()).flatten();
    async move {
        match call {
            Some(call) => CALL.scope(call, work).await,
            None => work.await,
        }
    }
}

#[derive(Debug)]
struct Heard {
    telemetry: Telemetry,
    contended: AtomicBool,
    saturated: AtomicBool,
    over: AtomicBool,
}

impl Heard {
    fn note(&self, why: &Contention) {
        // A body may ask for other locks in the same task.
        if self.over.load(Relaxed) {
            return;
        }
        // A wait for a connection, until the budget was used up, is none for the lock.
        if matches!(why, Contention::WaitElapsed) && self.saturated.load(Relaxed) {
            return;
        }
        match reason(why) {
            Some(reason) if !self.contended.swap(true, Relaxed) => {
                self.telemetry.count(Metric::Contentions, &[(Label::Reason, reason)]);
            }
            None if !self.saturated.swap(true, Relaxed) => self.telemetry.count(Metric::Saturations, &[]),
            _ => {}
        }
    }
}

/// Dropped before it ended, it was cancelled.
#[derive(Debug)]
pub(super) struct Call {
    heard: Arc<Heard>,
    started: Instant,
    /// Taken by the first end.
    waiting: Mutex<Option<One>>,
    span: Span,
}

impl Call {
    pub(super) fn start(telemetry: Telemetry, key: &LockKey, wait: Wait) -> Self {
        let span = trace::acquire(&telemetry, key, wait);
        let (contended, saturated, over) = Default::default();
        Self {
            waiting: Mutex::new(Some(telemetry.one(Metric::Waiting, &[]))),
            heard: Arc::new(Heard { telemetry, contended, saturated, over }),
            started: TokioClock.now(),
            span,
        }
    }

    pub(super) fn telemetry(&self) -> &Telemetry {
        &self.heard.telemetry
    }

    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    pub(super) fn waited(&self) -> Duration {
        TokioClock.now().saturating_duration_since(self.started)
    }

    pub(super) fn is_over(&self) -> bool {
        self.heard.over.load(Relaxed)
    }

    /// Whether it found no connection free, so far.
    pub(super) fn is_saturated(&self) -> bool {
        self.heard.saturated.load(Relaxed)
    }

    /// The call to the inner locker: in the span, and with an ear for what it says.
    pub(super) fn hearing<'a, F: Future + 'a>(&self, asking: F) -> impl Future<Output = F::Output> + use<'a, F> {
        CALL.scope(Arc::clone(&self.heard), trace::within(&self.span, asking))
    }

    /// The answer is there: when it was.
    pub(super) fn answered<T>(&self, answer: &Result<Attempt<T>>) -> Instant {
        if let Ok(Attempt::Contended(why)) = answer {
            self.heard.note(why);
        }
        self.end(Outcome::of_attempt(answer))
    }

    /// When it was. Only the first end counts.
    pub(super) fn end(&self, outcome: Outcome) -> Instant {
        let now = TokioClock.now();
        self.heard.over.store(true, Relaxed);
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if waiting.is_some() {
            let waited = now.saturating_duration_since(self.started);
            outcome.with_labels(|labels| self.telemetry().record(Metric::Wait, waited, labels));
            trace::outcome(&self.span, outcome.name);
        }
        now
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.is_over() {
            self.end(Outcome::CANCELLED);
        }
    }
}
