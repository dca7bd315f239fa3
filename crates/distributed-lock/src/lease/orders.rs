use std::future::pending;

use tokio::sync::watch;

use super::machine::{Input, Stop};

/// What others want of a run. Counters, so that an order is neither lost nor obeyed twice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Orders {
    pub(super) stop: Option<Stop>,
    pub(super) step_down: u64,
    pub(super) take_over: u64,
}

/// Reads the orders of one run, one at a time.
#[derive(Debug)]
pub(super) struct OrderReader {
    orders: watch::Receiver<Orders>,
    seen: Orders,
}

impl OrderReader {
    pub(super) fn new(orders: watch::Receiver<Orders>) -> Self {
        Self { orders, seen: Orders::default() }
    }

    /// An order to end that was not returned yet.
    pub(super) fn stop(&mut self) -> Option<Stop> {
        let stop = self.orders.borrow().stop.filter(|_| self.seen.stop.is_none());
        self.seen.stop = self.seen.stop.or(stop);
        stop
    }

    /// The next order. Cancel safe: an order that was not returned stays.
    pub(super) async fn next(&mut self) -> Input {
        loop {
            // Marked as seen first, so that what comes after it wakes us up.
            let orders = *self.orders.borrow_and_update();
            if let Some(stop) = self.stop() {
                return Input::Stop(stop);
            }
            if orders.step_down != self.seen.step_down {
                self.seen.step_down = orders.step_down;
                return Input::StepDown;
            }
            if orders.take_over != self.seen.take_over {
                self.seen.take_over = orders.take_over;
                return Input::TakeOver;
            }
            if self.orders.changed().await.is_err() {
                return pending().await;
            }
        }
    }
}
