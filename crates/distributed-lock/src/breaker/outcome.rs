//! What an answer of the locker inside says about its store.

use crate::{Attempt, Contention, Error, ErrorKind, Release, Result};

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum Outcome {
    /// The store answered, and what it said is no judgement on it: somebody holds the key, the input is bad.
    Answered,
    /// The store did not do what it is for.
    Failure,
    /// The call's time was used up and nothing came from the store. A failure, unless the store answered others meanwhile.
    Silent,
    /// The store did as it was asked.
    Success,
    /// The store was not needed: refused or answered within this process.
    Unasked,
}

impl Outcome {
    /// Of an acquire. `answered`: the store answered while the call went on.
    pub(super) fn of_attempt<T>(attempt: &Result<Attempt<T>>, answered: bool) -> Self {
        match attempt {
            Ok(Attempt::Acquired(_)) => Self::Success,
            Ok(Attempt::Contended(why)) => Self::of_contention(why, answered),
            Err(error) => Self::of_error(error, answered),
        }
    }

    fn of_contention(why: &Contention, answered: bool) -> Self {
        match why {
            _ if answered => Self::Answered,
            Contention::Held | Contention::StaleCommit => Self::Answered,
            Contention::Collision { .. } | Contention::HeldHere => Self::Unasked,
            Contention::NoConnection | Contention::WaitElapsed => Self::Silent,
        }
    }

    pub(super) fn of_error(error: &Error, answered: bool) -> Self {
        match error.kind() {
            ErrorKind::Indeterminate | ErrorKind::Other | ErrorKind::Unavailable => Self::Failure,
            // A code is the store's own.
            _ if answered || error.code().is_some() => Self::Answered,
            _ => Self::Unasked,
        }
    }

    /// Of a call whose future was dropped.
    pub(super) fn of_dropped(answered: bool) -> Self {
        if answered { Self::Answered } else { Self::Silent }
    }

    /// Of a call that is not gated.
    pub(super) fn of_call<T>(result: &Result<T>) -> Self {
        match result {
            Ok(_) => Self::Success,
            Err(error) => Self::of_error(error, false),
        }
    }

    /// An end that came before the release may be known without the store.
    pub(super) fn of_release(released: &Result<Release>) -> Self {
        match released {
            Ok(Release::Lapsed(_) | Release::Lost(_)) => Self::Unasked,
            other => Self::of_call(other),
        }
    }
}

/// Whether what a ping says lets callers in again. An error that is no sign of a sick store is better seen by the caller itself.
pub(super) fn is_well(ping: &Result<()>) -> bool {
    !matches!(
        ping.as_ref().map_err(Error::kind),
        Err(ErrorKind::Indeterminate | ErrorKind::LimitReached | ErrorKind::Other | ErrorKind::Unavailable)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LockKey, Loss, LossCause};

    const KINDS: [ErrorKind; 14] = [
        ErrorKind::AlreadyRunning,
        ErrorKind::CircuitOpen,
        ErrorKind::Closed,
        ErrorKind::Contended,
        ErrorKind::Deadlock,
        ErrorKind::Denied,
        ErrorKind::Indeterminate,
        ErrorKind::InvalidInput,
        ErrorKind::LimitReached,
        ErrorKind::Lost,
        ErrorKind::Misconfigured,
        ErrorKind::Other,
        ErrorKind::Unavailable,
        ErrorKind::Unsupported,
    ];

    fn is_failure(kind: ErrorKind) -> bool {
        matches!(kind, ErrorKind::Indeterminate | ErrorKind::Other | ErrorKind::Unavailable)
    }

    #[test]
    fn every_error_is_a_failure_or_is_neutral_if_the_store_answered() {
        for kind in KINDS {
            let bare = || Error::new(kind, "x");
            let of = |error: Error, answered| Outcome::of_attempt::<()>(&Err(error), answered);
            let neutral = |outcome| if is_failure(kind) { Outcome::Failure } else { outcome };
            assert_eq!(of(bare(), false), neutral(Outcome::Unasked), "{kind:?}");
            assert_eq!(of(bare(), true), neutral(Outcome::Answered), "{kind:?}");
            assert_eq!(of(bare().with_code("53300"), false), neutral(Outcome::Answered), "{kind:?}");
            assert_eq!(Outcome::of_call::<()>(&Err(bare())), neutral(Outcome::Unasked), "{kind:?}");
            assert_eq!(Outcome::of_release(&Err(bare())), neutral(Outcome::Unasked), "{kind:?}");
            assert_eq!(is_well(&Err(bare())), !is_failure(kind) && kind != ErrorKind::LimitReached, "{kind:?}");
        }
    }

    #[test]
    fn contention_is_neutral_and_a_budget_used_up_without_an_answer_is_silence() {
        let name = |name| LockKey::new(name).unwrap();
        let table = [
            (Contention::Held, Outcome::Answered),
            (Contention::StaleCommit, Outcome::Answered),
            (Contention::HeldHere, Outcome::Unasked),
            (Contention::Collision { held: name("a"), wanted: name("b") }, Outcome::Unasked),
            (Contention::NoConnection, Outcome::Silent),
            (Contention::WaitElapsed, Outcome::Silent),
        ];
        for (why, outcome) in table {
            let contended = Ok(Attempt::<()>::Contended(why));
            assert_eq!(Outcome::of_attempt(&contended, false), outcome, "{contended:?}");
            assert_eq!(Outcome::of_attempt(&contended, true), Outcome::Answered, "{contended:?}");
        }
    }

    #[test]
    fn what_went_well_is_a_success_and_an_end_before_the_release_says_nothing() {
        for answered in [false, true] {
            assert_eq!(Outcome::of_attempt(&Ok(Attempt::Acquired(())), answered), Outcome::Success);
        }
        let loss = || Loss::new(LossCause::DeadlinePassed);
        assert_eq!(Outcome::of_call(&Ok(())), Outcome::Success);
        assert_eq!(Outcome::of_release(&Ok(Release::Released)), Outcome::Success);
        assert_eq!(Outcome::of_release(&Ok(Release::Lapsed(loss()))), Outcome::Unasked);
        assert_eq!(Outcome::of_release(&Ok(Release::Lost(loss()))), Outcome::Unasked);
        assert_eq!((Outcome::of_dropped(false), Outcome::of_dropped(true)), (Outcome::Silent, Outcome::Answered));
        assert!(is_well(&Ok(())));
    }
}
