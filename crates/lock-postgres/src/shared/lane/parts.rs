//! The two halves of a lane, and what says which of them is to be polled.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Wake, Waker},
};

use tokio::sync::Notify;

/// The two halves of a lane, polled apart, since each step of one needs at most one of the other. Dropped in this order: holders are told
/// before the socket closes.
pub(super) struct Running {
    pub(super) work: Part,
    pub(super) driving: Part,
}

pub(super) struct Part {
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    waker: Waker,
}

impl Part {
    pub(super) fn new(future: impl Future<Output = ()> + Send + 'static, part: u8, signals: &Arc<Signals>) -> Self {
        let waker = Waker::from(Arc::new(PartWaker { part, signals: Arc::clone(signals) }));
        // Its turns are ours, and not those of the task on whose thread it happens to run.
        Self { future: Box::pin(tokio::task::unconstrained(future)), waker }
    }

    fn is_over(&mut self) -> bool {
        self.future.as_mut().poll(&mut Context::from_waker(&self.waker)).is_ready()
    }
}

impl Running {
    /// Whether one of them has ended, after a turn of those that have one.
    pub(super) fn is_over(&mut self, what: u8) -> bool {
        // First what there is to read.
        (what & DRIVING != 0 && self.driving.is_over()) || (what & WORK != 0 && self.work.is_over())
    }
}

/// The bits of [`Signals::bits`]: somebody polls the lane,
const POLLED: u8 = 1;
/// its work is to be polled,
pub(super) const WORK: u8 = 2;
/// its connection is to be polled.
pub(super) const DRIVING: u8 = 4;

#[derive(Default)]
pub(super) struct Signals {
    bits: AtomicU8,
    /// Wakes our own thread.
    pub(super) bell: Notify,
}

impl Signals {
    /// `false` if nobody polls: then it is for the caller to do.
    pub(super) fn add_for_whoever_polls(&self, what: u8) -> bool {
        self.bits.fetch_or(what, Ordering::AcqRel) & POLLED != 0
    }

    /// Whether nobody else had it.
    pub(super) fn take_turn(&self) -> bool {
        self.bits.fetch_or(POLLED, Ordering::AcqRel) & POLLED == 0
    }

    /// What is to be polled, which is nobody else's any more.
    pub(super) fn take(&self) -> u8 {
        self.bits.swap(POLLED, Ordering::AcqRel) & !POLLED
    }

    /// Gives the turn up if nothing is to be polled.
    pub(super) fn leave(&self) -> bool {
        self.bits.compare_exchange(POLLED, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Gives it up whatever is to be polled.
    pub(super) fn clear(&self) {
        self.bits.store(0, Ordering::Release);
    }
}

/// Woken while somebody polls, that one sees to it; else our own thread does.
struct PartWaker {
    part: u8,
    signals: Arc<Signals>,
}

impl Wake for PartWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.signals.add_for_whoever_polls(self.part) {
            self.signals.bell.notify_one();
        }
    }
}
