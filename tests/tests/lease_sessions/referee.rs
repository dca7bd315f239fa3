//! Who worked when, by one clock. It shares nothing with the locks that it judges.

use std::{
    cmp::{max, min},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use distributed_lock::{Clock, FencingToken, Hold, SystemClock, lease::Term};

/// Clones watch together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Referee(Arc<Mutex<Vec<Work>>>);

/// The job of one term, from when it was made until it had returned or was dropped, whether it minded its orders or not.
#[derive(Clone, Debug)]
struct Work {
    replica: &'static str,
    token: FencingToken,
    start: Instant,
    end: Option<Instant>,
}

/// Works until this is dropped.
#[derive(Debug)]
pub(crate) struct Working {
    referee: Referee,
    index: usize,
}

/// When something was last about to be done that its hold allowed.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastStep(Arc<Mutex<Option<Instant>>>);

impl Referee {
    pub(crate) fn begin(&self, replica: &'static str, term: &Term) -> Working {
        let token = term.fencing_token().expect("a term without a token");
        let mut works = self.0.lock().unwrap();
        works.push(Work { replica, token, start: SystemClock.now(), end: None });
        Working { referee: self.clone(), index: works.len() - 1 }
    }

    /// Whether the job of that term works or has worked.
    pub(crate) fn saw(&self, token: FencingToken) -> bool {
        self.0.lock().unwrap().iter().any(|work| work.token == token)
    }

    /// Work that asked before each step made its last one before the first job of this replica began.
    pub(crate) fn ensure_stopped_before(&self, replica: &str, last: &LastStep) {
        let works = self.0.lock().unwrap();
        let start = works.iter().find(|work| work.replica == replica).expect("it led").start;
        let last = last.0.lock().unwrap().expect("it worked");
        assert!(last < start, "it worked for {:?} beside the next job", last.duration_since(start));
    }

    /// The longest time that two jobs worked at once.
    pub(crate) fn overlap(&self) -> Duration {
        overlap(&self.0.lock().unwrap(), SystemClock.now())
    }

    /// Who led, in order.
    pub(crate) fn terms(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().iter().map(|work| work.replica).collect()
    }

    /// Every term has a higher token than those before it.
    pub(crate) fn ensure_tokens_rise(&self) {
        let works = self.0.lock().unwrap();
        assert!(works.is_sorted_by(|one, next| one.token < next.token), "tokens do not rise: {works:?}");
    }
}

impl LastStep {
    /// Looks at the clock first, as one who is held up between asking and doing would be judged.
    pub(crate) fn step(&self, hold: &Hold) -> bool {
        let now = SystemClock.now();
        let valid = hold.ensure_valid().is_ok();
        if valid {
            *self.0.lock().unwrap() = Some(now);
        }
        valid
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.referee.0.lock().unwrap()[self.index].end = Some(SystemClock.now());
    }
}

fn overlap(works: &[Work], now: Instant) -> Duration {
    let end = |work: &Work| work.end.unwrap_or(now);
    let pairs = works.iter().enumerate().flat_map(|(n, one)| works[..n].iter().map(move |other| (one, other)));
    let overlaps =
        pairs.map(|(one, other)| min(end(one), end(other)).saturating_duration_since(max(one.start, other.start)));
    overlaps.max().unwrap_or_default()
}
