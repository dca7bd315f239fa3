//! What a lane tells those who run it: when to wake it, and what it is doing.

use std::{
    future::poll_fn,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

/// Far enough to be never, near enough for a timer.
const NEVER: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct Alarm {
    next: Mutex<Instant>,
    /// It owns or awaits something.
    busy: AtomicBool,
    /// How many answers it has had.
    answers: AtomicU64,
}

impl Alarm {
    pub(super) fn new() -> Self {
        Self { next: Mutex::new(Instant::now()), busy: AtomicBool::new(false), answers: AtomicU64::new(0) }
    }

    /// When it is to be polled, whatever happens.
    pub(super) fn next(&self) -> Instant {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_in(&self, pause: Duration) {
        self.set(Instant::now() + pause.min(NEVER));
    }

    fn set(&self, at: Instant) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// Completes when it is polled after this long. Only one at a time.
    pub(super) async fn after(&self, pause: Duration) {
        let at = Instant::now() + pause.min(NEVER);
        poll_fn(|_| match Instant::now() >= at {
            true => Poll::Ready(()),
            false => {
                self.set(at);
                Poll::Pending
            }
        })
        .await;
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    pub(super) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Release);
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    pub(super) fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }
}
