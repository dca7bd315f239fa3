//! How far this machine fell behind real time.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A thread that sleeps a millisecond at a time and records how late it wakes. A test that asserts a short time measures
/// beside it: if the machine stalled for longer than the assertion has room for, the figure is void.
pub struct StallProbe {
    record: Arc<Mutex<Record>>,
    thread: Option<JoinHandle<()>>,
}

/// A moment from which stalls count.
#[derive(Clone, Copy, Debug)]
pub struct Mark(Instant);

#[derive(Debug)]
struct Record {
    /// When the thread should wake next.
    due: Instant,
    /// When it woke, and how late that was, if it was late by more than a tick.
    stalls: Vec<(Instant, Duration)>,
    stopped: bool,
}

impl StallProbe {
    /// Starts the thread. Dropping the probe ends it.
    pub fn start() -> std::io::Result<Self> {
        let record = Arc::new(Mutex::new(Record { due: now() + TICK, stalls: Vec::new(), stopped: false }));
        let shared = Arc::clone(&record);
        let thread = std::thread::Builder::new().name("stall-probe".into()).spawn(move || watch(&shared))?;
        Ok(Self { record, thread: Some(thread) })
    }

    /// The present moment, for [`Self::longest_since`].
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark(now())
    }

    /// The longest stall of which a part lay after the mark. One that still goes on counts as far as it has come. Zero means
    /// that the thread never woke late by a millisecond.
    #[must_use]
    pub fn longest_since(&self, mark: Mark) -> Duration {
        self.lock().longest_since(mark, now())
    }

    /// The longest stall while `work` ran, beside what it gave.
    pub async fn stall_during<T>(&self, work: impl Future<Output = T>) -> (T, Duration) {
        let mark = self.mark();
        let output = work.await;
        (output, self.longest_since(mark))
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StallProbe {
    fn drop(&mut self) {
        self.lock().stopped = true;
        if let Some(thread) = self.thread.take() {
            // It cannot panic, and wakes within a tick.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for StallProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StallProbe").finish_non_exhaustive()
    }
}

impl Record {
    /// Notes a wake-up and says when the next one is due.
    fn woke(&mut self, at: Instant) {
        let late = at.saturating_duration_since(self.due);
        if late >= TICK {
            self.stalls.push((at, late));
        }
        self.due = at + TICK;
    }

    fn longest_since(&self, mark: Mark, at: Instant) -> Duration {
        let going_on = at.saturating_duration_since(self.due);
        let going_on = if going_on >= TICK { going_on } else { Duration::ZERO };
        let ended = self.stalls.iter().rev().take_while(|(woke, _)| *woke >= mark.0).map(|(_, late)| *late).max();
        ended.unwrap_or_default().max(going_on)
    }
}

#[expect(clippy::disallowed_methods, reason = "how late the system wakes a sleeping thread is what is measured")]
fn watch(record: &Mutex<Record>) {
    loop {
        std::thread::sleep(TICK);
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        if record.stopped {
            return;
        }
        record.woke(now());
    }
}

#[expect(clippy::disallowed_methods, reason = "the machine's stalls are in real time, whatever clock a test runs on")]
fn now() -> Instant {
    Instant::now()
}

const TICK: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_longest_stall_that_reaches_past_the_mark_counts() {
        let start = now();
        let mut record = Record { due: start + TICK, stalls: Vec::new(), stopped: false };
        for at in [1, 2, 53, 54, 75] {
            record.woke(start + ms(at));
        }
        let longest = |mark: u64| record.longest_since(Mark(start + ms(mark)), start + ms(76));
        assert_eq!([longest(0), longest(40), longest(60), longest(76)], [ms(50), ms(50), ms(20), ms(0)]);
    }

    #[test]
    fn a_stall_that_goes_on_counts_already() {
        let start = now();
        let record = Record { due: start + TICK, stalls: Vec::new(), stopped: false };
        assert_eq!(record.longest_since(Mark(start), start + ms(1)), ms(0));
        assert_eq!(record.longest_since(Mark(start), start + ms(31)), ms(30));
    }

    #[tokio::test]
    async fn a_held_up_thread_is_noticed() {
        let probe = StallProbe::start().unwrap();
        let held_up = async {
            // The thread cannot take its record, as if it had not been given the processor.
            let record = probe.lock();
            let due = record.due;
            while now() < due + ms(30) {
                std::hint::spin_loop();
            }
        };
        let ((), stall) = probe.stall_during(held_up).await;
        assert!(stall >= ms(29), "{stall:?}");
    }
}
