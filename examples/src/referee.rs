use std::fmt;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// What a replica is doing from now on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// It waits for the lock.
    Standby,
    /// It has the lock and its job runs.
    Leading,
    /// Its job has ended, or it gave up waiting.
    Stopped,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standby => "standby",
            Self::Leading => "leading",
            Self::Stopped => "stopped",
        })
    }
}

/// Writes down who led when, knows nothing of locks, and so can say whether they worked.
#[derive(Debug)]
pub struct Referee {
    start: Instant,
    log: watch::Sender<Vec<Entry>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Duration,
    replica: usize,
    event: Event,
}

/// What the referee saw of the first two leaders, and of all leaders together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Verdict {
    /// From the end of the first leader's job to the start of the second's.
    pub takeover: Duration,
    /// The longest time during which two jobs ran at once.
    pub overlap: Duration,
}

impl Referee {
    /// Starts the clock.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now(), log: watch::Sender::default() }
    }

    /// Prints the event and writes it down, both in the order in which they happened.
    pub fn saw(&self, replica: usize, event: Event) {
        self.log.send_modify(|log| {
            let at = self.start.elapsed();
            println!("t_ms={} replica={replica} event={event}", at.as_millis());
            log.push(Entry { at, replica, event });
        });
    }

    /// The `n`-th replica to lead, counted from 1, or `None` if there is no such by the limit.
    pub async fn leader(&self, n: usize, limit: Duration) -> Option<usize> {
        let nth = |log: &[Entry]| leading(log).nth(n - 1).map(|entry| entry.replica);
        let mut log = self.log.subscribe();
        let seen = timeout(limit, log.wait_for(|log| nth(log).is_some())).await.ok()?.ok()?;
        nth(&seen)
    }

    /// `None` if fewer than two replicas led.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        let log = self.log.borrow();
        // In the order of their starts, since that is the order of the log. A job that has not ended runs until now.
        let mut terms = leading(&log).map(|entry| {
            let after = log.iter().filter(|later| later.at >= entry.at && later.replica == entry.replica);
            let end = after.skip_while(|later| later.event != Event::Stopped).map(|stopped| stopped.at).next();
            (entry.at, end.unwrap_or_else(|| self.start.elapsed()))
        });
        let (_, mut busy_until) = terms.next()?;
        let mut verdict = None;
        for (start, end) in terms {
            let idle = start.saturating_sub(busy_until);
            let both = busy_until.min(end).saturating_sub(start);
            let so_far = verdict.get_or_insert(Verdict { takeover: idle, overlap: Duration::ZERO });
            so_far.overlap = so_far.overlap.max(both);
            busy_until = busy_until.max(end);
        }
        verdict
    }
}

impl Default for Referee {
    fn default() -> Self {
        Self::new()
    }
}

fn leading(log: &[Entry]) -> impl Iterator<Item = Entry> {
    log.iter().copied().filter(|entry| entry.event == Event::Leading)
}

/// Overlap is rounded up, so that none is too short to be seen.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let takeover = self.takeover.as_secs_f64() * 1_000.0;
        write!(f, "takeover_ms={takeover:.1} overlap_ms={}", self.overlap.as_nanos().div_ceil(1_000_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Event::{Leading, Stopped};
    use tokio::time::advance;

    /// Plays events with their times in milliseconds.
    async fn play(events: &[(u64, usize, Event)]) -> Referee {
        let referee = Referee::new();
        for &(at, replica, event) in events {
            advance(Duration::from_millis(at) - referee.start.elapsed()).await;
            referee.saw(replica, event);
        }
        referee
    }

    #[tokio::test(start_paused = true)]
    async fn leaders_one_after_the_other_do_not_overlap() {
        let referee = play(&[(0, 1, Leading), (500, 1, Stopped), (507, 2, Leading), (600, 2, Stopped)]).await;
        assert_eq!(referee.verdict().unwrap().to_string(), "takeover_ms=7.0 overlap_ms=0");
    }

    #[tokio::test(start_paused = true)]
    async fn second_leader_before_the_first_stopped_is_an_overlap() {
        let referee = play(&[(0, 1, Leading), (500, 2, Leading), (503, 1, Stopped), (600, 2, Stopped)]).await;
        assert_eq!(referee.verdict().unwrap().to_string(), "takeover_ms=0.0 overlap_ms=3");
    }

    #[tokio::test(start_paused = true)]
    async fn leader_that_never_stopped_overlaps_all_later_ones() {
        let events = [(0, 1, Leading), (10, 2, Leading), (20, 2, Stopped), (30, 3, Leading), (70, 3, Stopped)];
        assert_eq!(play(&events).await.verdict().unwrap().overlap, Duration::from_millis(40));
    }

    #[tokio::test(start_paused = true)]
    async fn one_leader_is_no_takeover_and_is_not_waited_for_beyond_the_limit() {
        let referee = play(&[(0, 3, Leading), (10, 3, Stopped)]).await;
        assert_eq!(referee.verdict(), None);
        assert_eq!(referee.leader(1, Duration::from_secs(1)).await, Some(3));
        assert_eq!(referee.leader(2, Duration::from_secs(1)).await, None);
    }

    #[test]
    fn shortest_overlap_is_printed_as_one() {
        let verdict = Verdict { takeover: Duration::ZERO, overlap: Duration::from_nanos(1) };
        assert_eq!(verdict.to_string(), "takeover_ms=0.0 overlap_ms=1");
    }
}
