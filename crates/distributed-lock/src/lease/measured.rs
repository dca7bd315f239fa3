//! The events of a run as metrics.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use super::{CancelReason, JobOutcome, LeaseEvent};
use crate::{
    Clock, Loss, TokioClock,
    telemetry::{Label, Metric, One, Telemetry, words},
};

/// Sees every event of one run.
#[derive(Debug)]
pub(super) struct Measured {
    telemetry: Telemetry,
    term: Mutex<Option<Term>>,
}

/// A term whose job was started. Dropped without an end, its run was.
#[derive(Debug)]
struct Term {
    telemetry: Telemetry,
    started: Instant,
    loss_told: bool,
    outcome: &'static str,
    _leading: One,
}

impl Drop for Term {
    fn drop(&mut self) {
        let lasted = TokioClock.now().saturating_duration_since(self.started);
        self.telemetry.record(Metric::Term, lasted, &[(Label::Outcome, self.outcome)]);
    }
}

impl Measured {
    pub(super) fn new(telemetry: Telemetry) -> Self {
        Self { telemetry, term: Mutex::default() }
    }

    pub(super) fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    pub(super) fn see(&self, event: &LeaseEvent<'_>) {
        if !self.telemetry.is_on() {
            return;
        }
        let mut term = self.term.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            LeaseEvent::AcquireFailed { error, .. } => {
                self.telemetry.count(Metric::LeaseFailures, &[(Label::ErrorType, words::error_type(error))]);
            }
            LeaseEvent::Leading { .. } => {
                *term = Some(Term {
                    telemetry: self.telemetry.clone(),
                    started: TokioClock.now(),
                    loss_told: false,
                    outcome: "cancelled",
                    _leading: self.telemetry.one(Metric::Leading, &[]),
                });
            }
            LeaseEvent::Draining { reason: CancelReason::Lost(loss), .. } => self.lost(term.as_mut(), loss),
            LeaseEvent::TermEnded { outcome, loss, overrun, .. } => {
                if let Some(loss) = loss {
                    self.lost(term.as_mut(), loss);
                    self.telemetry.record(Metric::LeaseOverrun, *overrun, &[]);
                }
                if let Some(mut term) = term.take() {
                    term.outcome = name(*outcome);
                }
            }
            LeaseEvent::Draining { .. } | LeaseEvent::StandingBy { .. } | LeaseEvent::TakingOver { .. } => {}
        }
    }

    /// Once a term, whoever says it first.
    fn lost(&self, term: Option<&mut Term>, loss: &Loss) {
        if !term.is_some_and(|term| std::mem::replace(&mut term.loss_told, true)) {
            self.telemetry.count(Metric::LeaseLosses, &[(Label::Cause, words::cause(loss.cause()))]);
        }
    }
}

const fn name(outcome: JobOutcome) -> &'static str {
    match outcome {
        JobOutcome::Dropped => "dropped",
        JobOutcome::Err => "failed",
        JobOutcome::NotStarted => "not_started",
        JobOutcome::Ok => "finished",
        JobOutcome::Panicked => "panicked",
    }
}
