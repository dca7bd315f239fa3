//! Scoped runs: the wait ends where the body starts, the hold where it ends, and what follows is the release.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use super::{
    Instrumented,
    call::Call,
    explain::Explain,
    held::{Held, Timed},
    locker::ENABLED,
    trace,
    words::Outcome,
};
use crate::{Attempt, LockKey, Release, Result, ScopedLocker, ScopedOptions, backend::ScopedBody};

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: ScopedLocker> ScopedLocker for Instrumented<L> {
    async fn run_scoped(
        &self,
        key: &LockKey,
        options: &ScopedOptions,
        body: ScopedBody<'_>,
    ) -> Result<Attempt<Release>> {
        if !ENABLED {
            return self.inner.run_scoped(key, options, body).await;
        }
        let call = Call::start(self.telemetry.for_class(options.class), key, options.wait);
        let ended = Ended::default();
        let measured: ScopedBody<'_> = Box::new(|hold| {
            let now = call.end(Outcome::new("acquired"));
            let held = Held::start(call.telemetry(), hold.clone(), now);
            let span = held.span().clone();
            let body_ends = BodyEnds { held: Some(held), ended: &ended, done: false };
            let work = async move {
                body(hold).await;
                body_ends.well();
            };
            Box::pin(trace::within(&span, work))
        });
        let asking = call.hearing(self.inner.run_scoped(key, options, measured));
        let answer = Explain::beside(self.explain.as_ref(), &self.inner, &call, key, asking).await;
        call.answered(&answer);
        if let Some((mut held, timed)) = ended.take() {
            match &answer {
                Ok(Attempt::Acquired(release)) => held.released(timed, Ok(release)),
                Ok(Attempt::Contended(_)) => {}
                Err(error) => held.released(timed, Err(error)),
            }
        }
        answer
    }
}

/// A hold whose body has ended, and its release.
#[derive(Debug, Default)]
struct Ended(Mutex<Option<(Held, Timed)>>);

impl Ended {
    fn put(&self, held: Held, release: Timed) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((held, release));
    }

    fn take(&self) -> Option<(Held, Timed)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Dropped when the body is over, by whichever way.
struct BodyEnds<'a> {
    held: Option<Held>,
    ended: &'a Ended,
    /// Whether it came to its end.
    done: bool,
}

impl BodyEnds<'_> {
    fn well(mut self) {
        self.done = true;
    }
}

impl Drop for BodyEnds<'_> {
    fn drop(&mut self) {
        let Some(mut held) = self.held.take() else { return };
        // A release follows then. A body that was dropped with its call gives the lock up as a dropped guard does.
        if self.done || std::thread::panicking() {
            let now = held.end("released");
            let release = held.releasing(now);
            self.ended.put(held, release);
        }
    }
}
