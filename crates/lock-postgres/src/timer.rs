//! A timeout for what nearly always ends long before it.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::Poll,
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    time::{Instant, Sleep, sleep_until},
};

/// Stays armed from one use to the next: arming and disarming costs more than the rest of a grant's bookkeeping. What it was armed
/// for last goes off unseen, or wakes the present user for nothing.
#[derive(Debug, Default)]
pub(crate) struct Timer(Mutex<Option<Armed>>);

#[derive(Debug)]
struct Armed {
    /// Elsewhere it might never go off.
    runtime: Id,
    sleep: Pin<Box<Sleep>>,
}

impl Timer {
    /// `None` if it takes longer. Cancel safe if the future is. May be used by several at a time.
    pub(crate) async fn within<T>(&self, limit: Duration, mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        // As far as a timer can see.
        let deadline = Instant::now() + limit.min(Duration::from_secs(u32::MAX.into()));
        let mut armed = None;
        let ended = poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            let Armed { sleep, .. } = armed.get_or_insert_with(|| self.arm(deadline));
            while sleep.as_mut().poll(cx).is_ready() {
                if Instant::now() >= deadline {
                    return Poll::Ready(None);
                }
                sleep.as_mut().reset(deadline);
            }
            Poll::Pending
        })
        .await;
        if armed.is_some() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = armed;
        }
        ended
    }

    /// Goes off at the deadline or before it.
    fn arm(&self, deadline: Instant) -> Armed {
        let runtime = Handle::current().id();
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match left {
            Some(armed) if armed.runtime == runtime && armed.sleep.deadline() <= deadline => armed,
            _ => Armed { runtime, sleep: Box::pin(sleep_until(deadline)) },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        pin::pin,
    };

    use tokio::{
        task::yield_now,
        time::{advance, sleep},
    };

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn each_use_has_its_own_limit_whatever_was_armed_before() {
        let timer = Timer::default();
        for limit in [5, 1, 3, 1, 10] {
            let limit = SECOND * limit;
            // Leaves the timer armed.
            assert_eq!(timer.within(SECOND * 4, pin!(yield_now())).await, Some(()));
            let start = Instant::now();
            assert_eq!(timer.within(limit, pin!(pending::<()>())).await, None);
            assert_eq!(start.elapsed(), limit);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_in_time_passes_its_output_on_also_after_an_old_alarm() {
        let timer = Timer::default();
        assert_eq!(timer.within(Duration::ZERO, pin!(ready(1))).await, Some(1));
        assert_eq!(timer.within(SECOND, pin!(yield_now())).await, Some(()));
        // The old alarm goes off in the middle.
        assert_eq!(timer.within(SECOND * 3, pin!(sleep(SECOND * 2))).await, Some(()));
        advance(SECOND * 9).await;
        assert_eq!(timer.within(SECOND, pin!(yield_now())).await, Some(()));
        assert_eq!(timer.within(Duration::MAX, pin!(sleep(SECOND))).await, Some(()));
    }

    #[tokio::test(start_paused = true)]
    async fn two_uses_at_a_time_each_keep_their_limit() {
        let timer = Timer::default();
        let start = Instant::now();
        let (never, late) = (pin!(pending::<()>()), pin!(sleep(SECOND * 9)));
        let both = async { tokio::join!(timer.within(SECOND, never), timer.within(SECOND * 2, late)) };
        assert_eq!(both.await, (None, None));
        assert_eq!(start.elapsed(), SECOND * 2);
    }

    #[test]
    fn a_timer_armed_on_a_runtime_that_has_ended_serves_the_next() {
        let timer = Timer::default();
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime().block_on(async { assert_eq!(timer.within(SECOND, pin!(yield_now())).await, Some(())) });
        let limit = Duration::from_millis(20);
        runtime().block_on(async { assert_eq!(timer.within(limit, pin!(pending::<()>())).await, None) });
    }
}
