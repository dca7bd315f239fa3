//! One hold, from its grant until its holder gives it up, and how the giving up went.

use std::time::Instant;

use async_trait::async_trait;

use super::{
    Label, Metric, One, Telemetry,
    trace::{self, Span},
    words::{self, Outcome},
};
use crate::{Clock, Error, Hold, Loss, Release, Result, TokioClock, Ttl, backend::LockHandle};

/// Dropped before it ended, it was given up by a drop.
#[derive(Debug)]
pub(super) struct Held {
    telemetry: Telemetry,
    hold: Hold,
    since: Instant,
    /// Taken at the end.
    counted: Option<One>,
    span: Span,
    loss_told: bool,
    /// Whether it had been lost when it ended.
    was_lost: bool,
}

impl Held {
    pub(super) fn start(telemetry: &Telemetry, hold: Hold, since: Instant) -> Self {
        let span = trace::hold(telemetry, &hold);
        let counted = Some(telemetry.one(Metric::Held, &[]));
        Self { telemetry: telemetry.clone(), hold, since, counted, span, loss_told: false, was_lost: false }
    }

    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    /// The holder gave it up, and when; only the first time counts.
    pub(super) fn end(&mut self, outcome: &'static str) -> Instant {
        let now = TokioClock.now();
        if self.counted.take().is_none() {
            return now;
        }
        let held = now.saturating_duration_since(self.since);
        self.telemetry.record(Metric::Hold, held, &[(Label::Outcome, outcome)]);
        if let Some(loss) = self.hold.loss() {
            self.was_lost = true;
            self.tell_loss(&loss);
            self.telemetry.record(Metric::Overrun, self.hold.overrun(&loss), &[]);
        }
        now
    }

    /// Once, whoever sees it first.
    fn tell_loss(&mut self, loss: &Loss) {
        if !std::mem::replace(&mut self.loss_told, true) {
            self.telemetry.count(Metric::Losses, &[(Label::Cause, words::cause(loss.cause()))]);
            trace::lost(&self.span, &self.hold, loss, self.hold.overrun(loss));
        }
    }

    /// What the release of an ended hold came to.
    pub(super) fn released(&mut self, timed: Timed, answer: Result<&Release, &Error>) {
        let outcome = Outcome::of_release(answer, self.was_lost);
        trace::outcome(&timed.span, outcome.name);
        match answer {
            Ok(Release::Lapsed(loss) | Release::Lost(loss)) => self.tell_loss(loss),
            Ok(Release::Released) => {}
            Err(error) => trace::release_failed(&timed.span, error),
        }
        timed.end(outcome);
    }

    /// Its release began then.
    pub(super) fn releasing(&self, since: Instant) -> Timed {
        Timed::start(&self.telemetry, Metric::Release, trace::release(&self.span), since)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.counted.is_some() {
            self.end("dropped");
        }
    }
}

/// Something that takes time. Dropped before it ended, it was cancelled.
#[derive(Debug)]
pub(super) struct Timed {
    telemetry: Telemetry,
    metric: Metric,
    started: Instant,
    span: Span,
    ended: bool,
}

impl Timed {
    fn start(telemetry: &Telemetry, metric: Metric, span: Span, started: Instant) -> Self {
        Self { telemetry: telemetry.clone(), metric, started, span, ended: false }
    }

    pub(super) fn end(mut self, outcome: Outcome) {
        self.tell(outcome);
    }

    fn tell(&mut self, outcome: Outcome) {
        self.ended = true;
        let took = TokioClock.now().saturating_duration_since(self.started);
        outcome.with_labels(|labels| self.telemetry.record(self.metric, took, labels));
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        if !self.ended {
            self.tell(Outcome::CANCELLED);
        }
    }
}

/// The handle of an instrumented guard.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) inner: Box<dyn LockHandle>,
    pub(super) held: Held,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockHandle for Measured {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        let timed = Timed::start(&self.held.telemetry, Metric::Renew, self.held.span.clone(), TokioClock.now());
        let answer = self.inner.renew(ttl).await;
        timed.end(Outcome::of_renewal(&answer));
        if let Some(loss) = answer.as_ref().err().and_then(loss_in) {
            self.held.tell_loss(&loss);
        }
        answer
    }

    async fn release(&mut self) -> Result<Release> {
        let now = self.held.end("released");
        let timed = self.held.releasing(now);
        let span = timed.span.clone();
        let answer = trace::within(&span, self.inner.release()).await;
        self.held.released(timed, answer.as_ref());
        answer
    }

    fn abandon(&mut self) {
        self.held.end("dropped");
        self.inner.abandon();
    }
}

/// The loss that an error of kind `Lost` tells of.
fn loss_in(error: &Error) -> Option<Loss> {
    (error.kind() == crate::ErrorKind::Lost).then(|| crate::guard::loss_of(error))
}
