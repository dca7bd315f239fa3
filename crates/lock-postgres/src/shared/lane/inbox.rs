//! Where orders for a lane wait for its next turn. Wakes nobody by itself: whoever orders gives the lane a turn, unless one is bound to
//! come.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::Order;

#[derive(Debug, Default)]
pub(super) struct Inbox(Mutex<Orders>);

#[derive(Debug, Default)]
struct Orders {
    waiting: VecDeque<Order>,
    is_closed: bool,
    /// Nobody is left who could order anything.
    is_abandoned: bool,
}

impl Inbox {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the order back if the lane has ended.
    pub(super) fn put(&self, order: Order) -> Result<(), Order> {
        let mut orders = self.orders();
        if orders.is_closed {
            return Err(order);
        }
        orders.waiting.push_back(order);
        Ok(())
    }

    /// Into an empty queue, whose memory stays with the inbox.
    pub(super) fn take_into(&self, taken: &mut VecDeque<Order>) {
        std::mem::swap(&mut self.orders().waiting, taken);
    }

    /// Takes no more. What waits can still be taken.
    pub(super) fn close(&self) {
        self.orders().is_closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.orders().is_closed
    }

    pub(super) fn abandon(&self) {
        self.orders().is_abandoned = true;
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.orders().is_abandoned
    }
}
