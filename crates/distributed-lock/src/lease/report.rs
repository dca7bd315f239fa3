use std::time::Duration;

use super::{
    CancelReason, JobOutcome, LeaseExit, TermEnd,
    machine::{Exit, JobEnd, Stop},
};
use crate::{Hold, Loss};

/// What became of a job.
#[derive(Debug)]
pub(super) enum Job<T, E> {
    Dropped,
    NotStarted,
    Panicked(String),
    Returned(Result<T, E>),
}

/// What is known of a term at its end.
#[derive(Debug)]
pub(super) struct Report<T, E> {
    pub(super) hold: Hold,
    pub(super) job: Job<T, E>,
    pub(super) reason: Option<CancelReason>,
    pub(super) loss: Option<Loss>,
    pub(super) overrun: Duration,
}

impl<T, E> Job<T, E> {
    pub(super) fn end(&self) -> JobEnd {
        match self {
            Self::Dropped | Self::NotStarted => JobEnd::Dropped,
            Self::Panicked(_) => JobEnd::Panic,
            Self::Returned(Err(_)) => JobEnd::Err,
            Self::Returned(Ok(_)) => JobEnd::Ok,
        }
    }

    pub(super) fn outcome(&self) -> JobOutcome {
        match self {
            Self::Dropped => JobOutcome::Dropped,
            Self::NotStarted => JobOutcome::NotStarted,
            Self::Panicked(_) => JobOutcome::Panicked,
            Self::Returned(Err(_)) => JobOutcome::Err,
            Self::Returned(Ok(_)) => JobOutcome::Ok,
        }
    }
}

impl<T, E> Report<T, E> {
    /// A term without a job, or one whose job just ended.
    pub(super) fn new(hold: Hold, job: Job<T, E>, reason: Option<CancelReason>) -> Self {
        let loss = hold.loss();
        let overrun = match (&job, &loss) {
            (Job::NotStarted, _) | (_, None) => Duration::ZERO,
            (_, Some(loss)) => hold.overrun(loss),
        };
        Self { hold, job, reason, loss, overrun }
    }

    /// For the user; `None` if there was no job to speak of, or if it panicked, which is an exit of its own.
    pub(super) fn into_end(self) -> Option<TermEnd<T, E>> {
        let result = match self.job {
            Job::NotStarted | Job::Panicked(_) => return None,
            Job::Dropped => None,
            Job::Returned(result) => Some(result),
        };
        let Self { hold, reason, loss, overrun, .. } = self;
        Some(TermEnd { fencing_token: hold.fencing_token(), reason, result, loss, overrun })
    }

    /// The end of the run that the machine decided on.
    pub(super) fn into_exit(self, exit: Exit) -> LeaseExit<T, E> {
        match (exit, self.job) {
            (Exit::Finished, Job::Returned(Ok(value))) => LeaseExit::Finished(value),
            (Exit::Failed, Job::Returned(Err(error))) => LeaseExit::Failed(error),
            (Exit::Panicked, Job::Panicked(message)) => LeaseExit::Panicked(message),
            (exit, job) => {
                let end = Self { job, ..self }.into_end();
                match (exit, end) {
                    (Exit::Stalled(stall), Some(end)) => LeaseExit::Stalled(stall, end),
                    (Exit::Stopped(Stop::Stop), end) => LeaseExit::Stopped(end),
                    (Exit::Stopped(Stop::Close), end) => LeaseExit::Closed(end),
                    (exit, _) => unreachable!("BUG: no job can end a run as {exit:?}"),
                }
            }
        }
    }
}
