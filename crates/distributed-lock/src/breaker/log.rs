//! The changes of state as log lines, with feature `tracing`.

use super::machine::Change;

#[cfg(feature = "tracing")]
pub(super) fn log(name: &str, change: &Change) {
    match change {
        Change::Opened { .. } => tracing::warn!("the circuit breaker before {name} is {change}"),
        Change::HalfOpened | Change::Closed => tracing::info!("the circuit breaker before {name} is {change}"),
    }
}

#[cfg(not(feature = "tracing"))]
pub(super) fn log(_name: &str, _change: &Change) {}
