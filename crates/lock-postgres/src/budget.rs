//! The one time budget of an acquire: for a place in the pool, the connection and the queue together.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use distributed_lock::{Clock, Error, ErrorKind, Wait};

/// How much later than the budget an answer is still waited for.
pub(crate) const SLACK: Duration = Duration::from_millis(150);

#[derive(Debug)]
pub(crate) struct Budget {
    /// `None` is for ever, zero a single try.
    total: Option<Duration>,
    /// When, and by which clock; `None` if nobody asks.
    started: Option<(Instant, Arc<dyn Clock>)>,
}

impl Budget {
    pub(crate) fn start(wait: Wait, clock: &Arc<dyn Clock>) -> Self {
        let total = wait.budget();
        let started = total.is_some_and(|total| !total.is_zero()).then(|| (clock.now(), Arc::clone(clock)));
        Self { total, started }
    }

    pub(crate) fn is_try(&self) -> bool {
        self.total.is_some_and(|total| total.is_zero())
    }

    /// What is left; `None` is for ever.
    pub(crate) fn left(&self) -> Option<Duration> {
        let used = |(started, clock): &(Instant, Arc<dyn Clock>)| clock.now().saturating_duration_since(*started);
        self.total.map(|total| total.saturating_sub(self.started.as_ref().map_or(Duration::ZERO, used)))
    }

    /// How long to wait for a place; a single try is given one too.
    pub(crate) fn for_place(&self, conn_wait: Option<Duration>) -> Option<Duration> {
        if self.is_try() {
            return conn_wait;
        }
        self.left().map_or(conn_wait, |left| Some(conn_wait.map_or(left, |wait| wait.min(left))))
    }

    /// How long the answer to a statement that does not wait may take.
    pub(crate) fn for_answer(&self, query_timeout: Duration) -> Duration {
        if self.is_try() {
            return query_timeout;
        }
        self.left().map_or(query_timeout, |left| query_timeout.min(left.saturating_add(SLACK)))
    }
}

/// What of the time left the server may wait, so that its answer is back before we give it up. On a near network that is all of it.
pub(crate) fn server_share(left: Option<Duration>, round_trip: Duration) -> Option<Duration> {
    let travel = if round_trip > SLACK / 2 { round_trip } else { Duration::ZERO };
    left.map(|left| left.saturating_sub(travel).max(Duration::from_millis(1)))
}

/// The answer did not come, and the session that owes it is destroyed.
pub(crate) fn unanswered(what: &str, limit: Duration) -> Error {
    let message = format!("the server did not answer {what} within {limit:?}; the session was ended");
    Error::new(ErrorKind::Unavailable, message)
}
