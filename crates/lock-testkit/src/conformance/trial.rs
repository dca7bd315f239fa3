use std::{
    fmt,
    future::Future,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use libtest_mimic::{Completion, Failed};
use tokio::runtime::{Builder, Runtime};

use super::{
    Case, Subject, Time,
    bench::Bench,
    case::{Outcome, Stop},
};
use crate::requirement::is_required;

/// How a case went.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The behaviour is there.
    Passed,
    /// It is not: the case's own finding.
    Broken(String),
    /// The case was still running at its deadline.
    Hung(String),
    /// A call failed that the case does not judge, or something panicked: nothing is known about the behaviour.
    Failed(String),
    /// The subject does not claim the behaviour, or cannot bring it about.
    Excluded(String),
    /// The backend is not on this machine.
    Missing(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Broken(why) => write!(f, "broken: {why}"),
            Self::Hung(why) => write!(f, "hung: {why}"),
            Self::Failed(why) => write!(f, "failed: {why}"),
            Self::Excluded(why) => write!(f, "excluded: {why}"),
            Self::Missing(why) => write!(f, "missing: {why}"),
        }
    }
}

/// When a case counts as hung.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// In paused time, which jumps and so costs nothing.
    pub paused: Duration,
    /// In real time.
    pub real: Duration,
    /// In real time, when the runtime itself is stuck.
    pub stuck: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let paused = Duration::from_secs(60 * 60);
        Self { paused, real: Duration::from_secs(30), stuck: Duration::from_secs(60) }
    }
}

/// Runs one case over a subject.
#[must_use]
pub fn run(subject: &Arc<dyn Subject>, case: &'static Case, limits: Limits) -> Verdict {
    let opened = Arc::clone(subject);
    block_on(subject.time(), limits, move || async move {
        let store = opened.open().await.map_err(|missing| Verdict::Missing(missing.to_string()))?;
        let bench = Bench::new(store, opened.time(), opened.name(), case.name);
        judged((case.run)(&bench).await)
    })
}

pub(crate) fn judged(outcome: Outcome) -> Result<(), Verdict> {
    outcome.map_err(|stop| match stop {
        Stop::Broken(why) => Verdict::Broken(why),
        Stop::Excluded(why) => Verdict::Excluded(why),
        Stop::Failed(error) => Verdict::Failed(format!("a call failed: {error:?}")),
    })
}

/// Runs the work in a runtime of this time on a thread of its own, so that neither a panic nor a stuck thread takes the caller
/// along.
pub(crate) fn block_on<F>(time: Time, limits: Limits, work: impl FnOnce() -> F + Send + 'static) -> Verdict
where
    F: Future<Output = Result<(), Verdict>>,
{
    let (report, verdict) = mpsc::channel();
    let worker = thread::spawn(move || {
        let runtime = runtime(time);
        let own = match time {
            Time::Paused => limits.paused,
            Time::Real => limits.real,
        };
        let ended = runtime.block_on(async move { tokio::time::timeout(own, work()).await });
        // What a case left running must not hold its verdict up.
        runtime.shutdown_background();
        let verdict = match ended {
            Ok(Ok(())) => Verdict::Passed,
            Ok(Err(verdict)) => verdict,
            Err(_elapsed) => Verdict::Hung(format!("still running after {own:?}")),
        };
        // The receiver is gone only if the caller gave up.
        let _ = report.send(verdict);
    });
    match verdict.recv_timeout(limits.stuck) {
        Ok(verdict) => verdict,
        Err(mpsc::RecvTimeoutError::Timeout) => Verdict::Hung(format!("stuck for {:?}", limits.stuck)),
        Err(mpsc::RecvTimeoutError::Disconnected) => match worker.join() {
            Ok(()) => Verdict::Failed("no verdict was given".into()),
            Err(panic) => Verdict::Failed(format!("panicked: {}", message(&*panic))),
        },
    }
}

/// The verdict as a trial shows it.
pub(crate) fn report(verdict: Verdict) -> Result<Completion, Failed> {
    match verdict {
        Verdict::Passed => Ok(Completion::Completed),
        Verdict::Excluded(why) => Ok(Completion::ignored_with(why)),
        Verdict::Missing(why) if is_required() => Err(format!("required by LOCK_TEST_REQUIRE: {why}").into()),
        Verdict::Missing(why) => Ok(Completion::ignored_with(why)),
        bad => Err(bad.into()),
    }
}

#[expect(clippy::expect_used, reason = "a test without a runtime cannot go on")]
fn runtime(time: Time) -> Runtime {
    match time {
        Time::Paused => Builder::new_current_thread().enable_all().start_paused(true).build(),
        Time::Real => Builder::new_multi_thread().worker_threads(2).enable_all().build(),
    }
    .expect("a runtime starts")
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "with a value that is no text".into())
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn limits() -> Limits {
        Limits { real: Duration::from_millis(50), stuck: Duration::from_secs(20), ..Limits::default() }
    }

    #[test]
    fn an_end_in_time_passes_and_a_verdict_comes_through() {
        for time in [Time::Paused, Time::Real] {
            assert_eq!(block_on(time, limits(), || ready(Ok(()))), Verdict::Passed);
            let broken = Verdict::Broken("why".into());
            let told = broken.clone();
            assert_eq!(block_on(time, limits(), || ready(Err(told))), broken);
        }
    }

    #[test]
    fn what_does_not_end_hangs() {
        for time in [Time::Paused, Time::Real] {
            assert!(matches!(block_on(time, limits(), pending), Verdict::Hung(_)));
        }
    }

    #[test]
    fn a_runtime_that_is_stuck_hangs() {
        let (keep, never) = mpsc::channel::<()>();
        let stuck = move || async move {
            let _ = never.recv();
            Ok(())
        };
        let limits = Limits { stuck: Duration::from_millis(50), ..limits() };
        assert!(matches!(block_on(Time::Paused, limits, stuck), Verdict::Hung(_)));
        drop(keep);
    }

    #[test]
    fn a_panic_is_a_failure_and_no_finding() {
        let panics = || async { std::panic::resume_unwind(Box::new("on purpose")) };
        let verdict = block_on(Time::Paused, limits(), panics);
        assert_eq!(verdict, Verdict::Failed("panicked: on purpose".into()));
    }

    #[test]
    fn only_passed_cases_complete() {
        assert!(matches!(report(Verdict::Passed), Ok(Completion::Completed)));
        let excluded = report(Verdict::Excluded("why".into()));
        assert!(matches!(excluded, Ok(Completion::Ignored { reason: Some(why) }) if why == "why"));
        for bad in [Verdict::Broken, Verdict::Hung, Verdict::Failed] {
            let failed = report(bad("why".into())).map(drop).expect_err("it is bad");
            assert!(failed.message().is_some_and(|message| message.ends_with("why")));
        }
    }
}
