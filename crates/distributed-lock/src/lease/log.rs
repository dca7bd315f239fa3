//! The events as log lines, with feature `tracing`.

use super::LeaseEvent;

#[cfg(feature = "tracing")]
pub(super) fn log(event: &LeaseEvent<'_>) {
    use super::{CancelReason, JobOutcome};
    use crate::Release;

    match event {
        LeaseEvent::AcquireFailed { .. }
        | LeaseEvent::Draining { reason: CancelReason::Lost(_) | CancelReason::Stalled(_), .. }
        | LeaseEvent::TermEnded { outcome: JobOutcome::Dropped | JobOutcome::Panicked, .. }
        | LeaseEvent::TermEnded { loss: Some(_), .. }
        | LeaseEvent::TermEnded { release: Err(_) | Ok(Release::Lost(_)), .. } => tracing::warn!("{event}"),
        _ => tracing::info!("{event}"),
    }
}

#[cfg(not(feature = "tracing"))]
pub(super) fn log(_event: &LeaseEvent<'_>) {}
