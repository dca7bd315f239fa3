//! Where orders for a lane wait for its next turn. Wakes nobody by itself: whoever orders gives the lane a turn, unless one is bound to
//! come.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use super::Order;

/// What all who order something write to, in one place.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Inbox {
    waiting: Mutex<VecDeque<Order>>,
    /// Whether something waits. Changed under the lock.
    has_orders: AtomicBool,
    /// Changed under the lock, so that nothing is put after it.
    is_closed: AtomicBool,
    /// Nobody is left who could order anything.
    is_abandoned: AtomicBool,
    /// Keys that the lane holds or is asked for.
    load: AtomicUsize,
}

impl Inbox {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Order>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the order back if the lane has ended.
    pub(super) fn put(&self, order: Order) -> Result<(), Order> {
        let is_key = matches!(order, Order::Lock(_));
        let mut waiting = self.waiting();
        if self.is_closed() {
            return Err(order);
        }
        waiting.push_back(order);
        if is_key {
            self.load.fetch_add(1, Ordering::Relaxed);
        }
        self.has_orders.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Into an empty queue, whose memory stays with the inbox.
    pub(super) fn take_into(&self, taken: &mut VecDeque<Order>) {
        if self.has_orders() {
            let mut waiting = self.waiting();
            self.has_orders.store(false, Ordering::SeqCst);
            std::mem::swap(&mut *waiting, taken);
        }
    }

    pub(super) fn has_orders(&self) -> bool {
        self.has_orders.load(Ordering::SeqCst)
    }

    pub(super) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    pub(super) fn unload(&self, keys: usize) {
        self.load.fetch_sub(keys, Ordering::Relaxed);
    }

    /// Takes no more. What waits can still be taken.
    pub(super) fn close(&self) {
        let _waiting = self.waiting();
        self.is_closed.store(true, Ordering::Release);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }
}
