//! Spans and log lines, with feature `tracing`. Names of locks and what others call themselves are escaped.

#[cfg(not(feature = "tracing"))]
pub(crate) use off::*;
#[cfg(feature = "tracing")]
pub(crate) use on::*;

use std::time::Duration;

use crate::Holder;

/// Whether anything is told in this build.
pub(crate) const ENABLED: bool = cfg!(feature = "tracing");

/// What is known of a wait.
#[derive(Debug)]
pub(crate) struct Why<'a> {
    pub(crate) waited: Duration,
    pub(crate) holders: &'a [Holder],
    pub(crate) queue: usize,
    /// It may be a connection that it waits for, and not the lock.
    pub(crate) saturated: bool,
}

#[cfg(feature = "tracing")]
mod on {
    use std::{error::Error as _, future::Future, time::Duration};

    pub(crate) use tracing::Span;
    use tracing::{Instrument, field::Empty, info, info_span, warn};

    use super::Why;
    use crate::{Error, Hold, LockKey, Loss, Wait, telemetry::Telemetry};

    pub(crate) fn acquire(telemetry: &Telemetry, key: &LockKey, wait: Wait) -> Span {
        let (backend, class) = (telemetry.backend(), telemetry.class());
        info_span!("lock.acquire", lock.key = ?key, lock.backend = backend, lock.class = class, wait = ?wait, outcome = Empty)
    }

    /// From the grant on; for a guard it is no parent of the holder's work, which is not under our hands.
    pub(crate) fn hold(telemetry: &Telemetry, hold: &Hold) -> Span {
        let (backend, class) = (telemetry.backend(), telemetry.class());
        let token = hold.fencing_token().map(|token| token.get());
        info_span!("lock.hold", lock.key = ?hold.key(), lock.backend = backend, lock.class = class, token, lost = Empty)
    }

    pub(crate) fn release(hold: &Span) -> Span {
        info_span!(parent: hold, "lock.release", outcome = Empty)
    }

    pub(crate) fn term(telemetry: &Telemetry, hold: &Hold) -> Span {
        let token = hold.fencing_token().map(|token| token.get());
        info_span!("lease.term", lock.key = ?hold.key(), lock.class = telemetry.class(), token)
    }

    pub(crate) fn outcome(span: &Span, outcome: &'static str) {
        span.record("outcome", outcome);
    }

    pub(crate) fn within<F: Future>(span: &Span, future: F) -> impl Future<Output = F::Output> + use<F> {
        future.instrument(span.clone())
    }

    pub(crate) fn lost(span: &Span, hold: &Hold, loss: &Loss, overrun: Duration) {
        span.record("lost", super::super::words::cause(loss.cause()));
        let source = loss.source().map(tracing::field::debug);
        span.in_scope(|| warn!(lock.key = ?hold.key(), overrun = ?overrun, source, "the lock was lost: {loss}"));
    }

    pub(crate) fn release_failed(span: &Span, error: &Error) {
        let source = error.source().map(tracing::field::debug);
        span.in_scope(|| warn!(source, "a release failed, so that the lock is freed as by a drop: {error}"));
    }

    /// The one line that says why somebody waits.
    pub(crate) fn explained(span: &Span, key: &LockKey, why: &Why<'_>) {
        let &Why { waited, holders, queue, saturated } = why;
        let connection = if saturated { ", no connection was free" } else { "" };
        span.in_scope(|| match holders.first() {
            Some(holder) => info!(
                lock.key = ?key,
                waited = ?waited,
                holder.application_name = holder.application_name.as_deref().map(tracing::field::debug),
                holder.host = holder.host.as_deref().map(tracing::field::debug),
                holder.process = holder.process,
                holder.session = ?holder.session.as_str(),
                holder.held_for = holder.held_for.map(tracing::field::debug),
                holders = holders.len(),
                queue,
                saturated,
                "waiting for {waited:.1?} for {key:?}: {holder}; {queue} in the queue{connection}",
            ),
            None => info!(
                lock.key = ?key,
                waited = ?waited,
                holders = 0,
                queue,
                saturated,
                "waiting for {waited:.1?} for {key:?}, which nobody holds just now; {queue} in the queue{connection}",
            ),
        });
    }
}

#[cfg(not(feature = "tracing"))]
mod off {
    use std::{future::Future, time::Duration};

    use super::Why;
    use crate::{Error, Hold, LockKey, Loss, Wait, telemetry::Telemetry};

    #[derive(Clone, Debug)]
    pub(crate) struct Span;

    pub(crate) const fn acquire(_: &Telemetry, _: &LockKey, _: Wait) -> Span {
        Span
    }
    pub(crate) const fn hold(_: &Telemetry, _: &Hold) -> Span {
        Span
    }
    pub(crate) const fn release(_: &Span) -> Span {
        Span
    }
    pub(crate) const fn term(_: &Telemetry, _: &Hold) -> Span {
        Span
    }
    pub(crate) const fn outcome(_: &Span, _: &'static str) {}
    pub(crate) const fn within<F: Future>(_: &Span, future: F) -> F {
        future
    }
    pub(crate) const fn lost(_: &Span, _: &Hold, _: &Loss, _: Duration) {}
    pub(crate) const fn release_failed(_: &Span, _: &Error) {}
    pub(crate) const fn explained(_: &Span, _: &LockKey, _: &Why<'_>) {}
}
