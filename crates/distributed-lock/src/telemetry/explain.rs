//! "Why am I waiting": who holds the lock, asked on the side.

use std::{
    convert::Infallible,
    fmt,
    future::{Future, pending},
    pin::pin,
    time::Duration,
};

use super::{Label, Metric, call::Call, trace};
use crate::{Inspect, LockKey};

/// After how long a wait is explained, and whom to ask.
pub(super) struct Explain<L> {
    pub(super) after: Duration,
    pub(super) inspect: fn(&L) -> &dyn Inspect,
}

impl<L> fmt::Debug for Explain<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explain").field("after", &self.after).finish_non_exhaustive()
    }
}

impl<L> Explain<L> {
    /// Waits for the answer as without it; whoever is asked meanwhile is dropped when that is there. Cancel safe if the asking is.
    pub(super) async fn beside<F: Future>(
        this: Option<&Self>,
        locker: &L,
        call: &Call,
        key: &LockKey,
        asking: F,
    ) -> F::Output {
        let Some(explain) = this else { return asking.await };
        let mut asking = pin!(asking);
        // Both arms are cancel safe: the second only looks.
        tokio::select! {
            biased;
            answer = &mut asking => answer,
            never = explain.once(locker, call, key) => match never {},
        }
    }

    async fn once(&self, locker: &L, call: &Call, key: &LockKey) -> Infallible {
        tokio::time::sleep(self.after).await;
        if !call.is_over() {
            let inspect = (self.inspect)(locker);
            // Not in the call's span: an operator's look is no part of it.
            let seen =
                async { Ok::<_, crate::Error>((inspect.holders(key).await?, inspect.waiters(key).await?.len())) }.await;
            let outcome = match &seen {
                _ if call.is_over() => None,
                Ok((holders, queue)) => {
                    let why =
                        trace::Why { waited: call.waited(), holders, queue: *queue, saturated: call.is_saturated() };
                    trace::explained(call.span(), key, &why);
                    Some("told")
                }
                Err(_) => Some("failed"),
            };
            if let Some(outcome) = outcome {
                call.telemetry().count(Metric::Explanations, &[(Label::Outcome, outcome)]);
            }
        }
        pending().await
    }
}
