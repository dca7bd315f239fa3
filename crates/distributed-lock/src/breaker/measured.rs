//! The changes of state as metrics.

use super::BreakerState;
use crate::telemetry::{Label, Metric, Telemetry};

pub(super) fn change(telemetry: &Telemetry, to: BreakerState) {
    let name = match to {
        BreakerState::Closed => "closed",
        BreakerState::HalfOpen => "half_open",
        BreakerState::Open => "open",
    };
    telemetry.count(Metric::BreakerTransitions, &[(Label::To, name)]);
    state(telemetry, to);
}

pub(super) fn state(telemetry: &Telemetry, now: BreakerState) {
    let value = match now {
        BreakerState::Closed => 0.0,
        BreakerState::HalfOpen => 1.0,
        BreakerState::Open => 2.0,
    };
    telemetry.set(Metric::BreakerState, value, &[]);
}
