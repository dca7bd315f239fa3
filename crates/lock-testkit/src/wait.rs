//! Waiting for a condition with a deadline: the one place of the kit that polls.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// A condition did not come true before its deadline.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TimedOut {
    /// What was waited for.
    pub what: String,
    /// For how long.
    pub after: Duration,
}

/// Asks `condition` until it is true. It is asked at least once, and `what` says in the error what was waited for.
///
/// A call of `condition` that is still running at the deadline is dropped.
pub async fn wait_until(
    deadline: Duration,
    what: impl Into<String>,
    mut condition: impl AsyncFnMut() -> bool,
) -> Result<(), TimedOut> {
    let end = Instant::now() + deadline;
    let poll = async {
        while !condition().await {
            sleep(INTERVAL).await;
        }
    };
    timeout_at(end, poll).await.map_err(|_| TimedOut { what: what.into(), after: deadline })
}

/// [`wait_until`] for code that is not async.
#[expect(clippy::disallowed_methods, reason = "it waits for processes, in real time and without a runtime")]
pub fn wait_until_blocking(
    deadline: Duration,
    what: impl Into<String>,
    mut condition: impl FnMut() -> bool,
) -> Result<(), TimedOut> {
    let start = std::time::Instant::now();
    while !condition() {
        if start.elapsed() >= deadline {
            return Err(TimedOut { what: what.into(), after: deadline });
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "still not so after {:?}: {}", self.after, self.what)
    }
}

impl std::error::Error for TimedOut {}

const INTERVAL: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_condition_that_comes_true_ends_the_wait() {
        let mut asked = 0;
        let waited = wait_until(Duration::from_secs(1), "third time", async || {
            asked += 1;
            asked == 3
        });
        assert_eq!(waited.await, Ok(()));
        assert_eq!(asked, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_false_or_hanging_condition_times_out_and_says_what_it_was() {
        let deadline = Duration::from_secs(1);
        let expected = TimedOut { what: "the moon".into(), after: deadline };
        assert_eq!(wait_until(deadline, "the moon", async || false).await, Err(expected.clone()));
        assert_eq!(wait_until(deadline, "the moon", async || std::future::pending().await).await, Err(expected));
        assert!(wait_until_blocking(Duration::ZERO, "the moon", || false).is_err());
        assert_eq!(wait_until_blocking(Duration::ZERO, "asked at least once", || true), Ok(()));
    }
}
