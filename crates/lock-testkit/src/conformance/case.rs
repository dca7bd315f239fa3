use std::{fmt, future::Future, pin::Pin};

use distributed_lock::{Error, ScopedError};

use super::bench::Bench;

/// Which kind of locker a case is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Suite {
    /// Session lockers: `Locker`.
    Locker,
    /// Scoped lockers: `ScopedLocker`.
    Scoped,
}

/// One behaviour, as a function that looks for it.
pub struct Case {
    pub(super) name: &'static str,
    pub(super) suite: Suite,
    pub(super) run: for<'a> fn(&'a Bench) -> Running<'a>,
}

impl Case {
    /// The second half of `locker::case`: a sentence, outcome last.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The suite it belongs to.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("suite", &self.suite).finish_non_exhaustive()
    }
}

pub(super) type Running<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

pub(crate) type Outcome<T = ()> = Result<T, Stop>;

/// Why a case ended before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The behaviour is broken: the case's own finding.
    Broken(String),
    /// The subject does not claim it, or cannot bring it about, for this reason.
    Excluded(String),
    /// A call failed that the case does not judge.
    Failed(Error),
}

impl Stop {
    /// The same, and where.
    pub(crate) fn at(self, place: impl fmt::Display) -> Self {
        match self {
            Self::Broken(why) => Self::Broken(format!("{place}: {why}")),
            Self::Excluded(why) => Self::Excluded(why),
            Self::Failed(error) => Self::Failed(error),
        }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl<T> From<ScopedError<T>> for Stop {
    fn from(failed: ScopedError<T>) -> Self {
        Self::Failed(failed.error)
    }
}

/// Ends the case as broken, at this place, with this finding.
macro_rules! broken {
    ($($finding:tt)+) => {
        $crate::conformance::case::Stop::Broken(format!("{} ({}:{})", format_args!($($finding)+), file!(), line!()))
    };
}

/// Ends the case as broken unless the condition holds.
macro_rules! check {
    ($condition:expr, $($finding:tt)+) => {
        if !$condition {
            return Err($crate::conformance::case::broken!($($finding)+));
        }
    };
}

/// The list of a file's cases.
macro_rules! cases {
    ($suite:ident: $($name:ident),+ $(,)?) => {
        pub(in $crate::conformance) const CASES: &[$crate::conformance::Case] = &[$($crate::conformance::Case {
            name: stringify!($name),
            suite: $crate::conformance::Suite::$suite,
            run: |bench| Box::pin($name(bench)),
        }),+];
    };
}

pub(crate) use {broken, cases, check};
