//! What outcomes and causes are called in labels.

use crate::{Attempt, Contention, Error, ErrorKind, LossCause, Release, Result, telemetry::Label};

pub(crate) const fn cause(cause: LossCause) -> &'static str {
    match cause {
        LossCause::Closed => "closed",
        LossCause::DeadlinePassed => "deadline_passed",
        LossCause::HeartbeatTimeout => "heartbeat_timeout",
        LossCause::NotOurs => "not_ours",
        LossCause::Released => "released",
        LossCause::SessionEnded => "session_ended",
    }
}

pub(crate) fn error_type(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::AlreadyRunning => "already_running",
        ErrorKind::CircuitOpen => "circuit_open",
        ErrorKind::Closed => "closed",
        ErrorKind::Contended => "contended",
        ErrorKind::Deadlock => "deadlock",
        ErrorKind::Denied => "denied",
        ErrorKind::Indeterminate => "indeterminate",
        ErrorKind::InvalidInput => "invalid_input",
        ErrorKind::LimitReached => "limit_reached",
        ErrorKind::Lost => "lost",
        ErrorKind::Misconfigured => "misconfigured",
        ErrorKind::Other => "other",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Unsupported => "unsupported",
    }
}

/// Why a caller had to wait; `None` if it was not for the lock.
pub(super) const fn reason(why: &Contention) -> Option<&'static str> {
    match why {
        Contention::Collision { .. } => Some("collision"),
        // Whoever waited until the budget was used up found it held, if nothing else was said.
        Contention::Held | Contention::WaitElapsed => Some("held"),
        Contention::HeldHere => Some("held_here"),
        Contention::NoConnection => None,
        Contention::StaleCommit => Some("stale_commit"),
    }
}

/// An outcome, and of which error it tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) name: &'static str,
    pub(super) error: Option<&'static str>,
}

impl Outcome {
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, error: None }
    }

    /// Its future was dropped.
    pub(super) const CANCELLED: Self = Self::new("cancelled");

    pub(super) fn failed(error: &Error) -> Self {
        Self { name: "error", error: Some(error_type(error)) }
    }

    pub(super) fn of_attempt<T>(answer: &Result<Attempt<T>>) -> Self {
        match answer {
            Ok(Attempt::Acquired(_)) => Self::new("acquired"),
            Ok(Attempt::Contended(Contention::NoConnection)) => Self::new("no_connection"),
            Ok(Attempt::Contended(Contention::WaitElapsed)) => Self::new("wait_elapsed"),
            Ok(Attempt::Contended(_)) => Self::new("contended"),
            Err(error) => Self::failed(error),
        }
    }

    pub(super) fn of_renewal(answer: &Result<()>) -> Self {
        match answer {
            Ok(()) => Self::new("renewed"),
            Err(error) if error.kind() == ErrorKind::Lost => Self::new("lost"),
            Err(error) => Self::failed(error),
        }
    }

    /// `was_lost`: our own side knew of an end before, so that what the store calls released is a lapse.
    pub(super) fn of_release(answer: Result<&Release, &Error>, was_lost: bool) -> Self {
        match answer {
            Ok(Release::Lost(_)) => Self::new("lost"),
            Ok(Release::Released) if !was_lost => Self::new("released"),
            Ok(Release::Released | Release::Lapsed(_)) => Self::new("lapsed"),
            Err(error) => Self::failed(error),
        }
    }

    /// As labels; without an error the second is left out.
    pub(super) fn with_labels<T>(self, tell: impl FnOnce(&[(Label, &'static str)]) -> T) -> T {
        let outcome = (Label::Outcome, self.name);
        match self.error {
            Some(error) => tell(&[outcome, (Label::ErrorType, error)]),
            None => tell(&[outcome]),
        }
    }
}
