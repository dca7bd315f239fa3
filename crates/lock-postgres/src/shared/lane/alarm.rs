//! What a lane tells those who run it: when to wake it, and what it is doing.

use std::{
    fmt,
    future::poll_fn,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use distributed_lock::Clock;

pub(super) struct Alarm {
    clock: Arc<dyn Clock>,
    next: Mutex<Instant>,
    /// It owns or awaits something.
    busy: AtomicBool,
    /// It sends nothing before an answer comes.
    full: AtomicBool,
    /// How many answers it has had.
    answers: AtomicU64,
}

impl Alarm {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let next = Mutex::new(clock.now());
        Self { clock, next, busy: AtomicBool::new(false), full: AtomicBool::new(false), answers: AtomicU64::new(0) }
    }

    /// When it is to be polled, whatever happens.
    pub(super) fn next(&self) -> Instant {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn until(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.clock.now())
    }

    pub(super) fn set(&self, at: Instant) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// Completes when it is polled at this time or later. Only one at a time.
    pub(super) async fn at(&self, at: Instant) {
        poll_fn(|_| match self.until(at).is_zero() {
            true => Poll::Ready(()),
            false => {
                self.set(at);
                Poll::Pending
            }
        })
        .await;
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::SeqCst)
    }

    pub(super) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::SeqCst);
    }

    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::SeqCst)
    }

    pub(super) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    pub(super) fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm")
            .field("until", &self.until(self.next()))
            .field("busy", &self.busy)
            .finish_non_exhaustive()
    }
}
