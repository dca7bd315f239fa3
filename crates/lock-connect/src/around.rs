//! The wrappers around a locker, in the one order that is right: telemetry outermost, so that it sees what a breaker refuses.

use std::sync::Arc;

use distributed_lock::{
    Backend, Inspect, Locker, Result, ScopedLocker,
    breaker::{BreakerConfig, CircuitBreaker},
    telemetry::Telemetry,
};

use crate::telemetry::Seen;

/// What was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Around {
    pub(crate) breaker: Option<BreakerConfig>,
    pub(crate) seen: Option<Seen>,
}

impl Around {
    /// What the locker itself tells of its connections.
    #[cfg(feature = "postgres")]
    pub(crate) fn telemetry(&self) -> Telemetry {
        self.seen.as_ref().map_or(Telemetry::OFF, |seen| seen.telemetry.clone())
    }

    pub(crate) fn locker(self, locker: impl Locker + Inspect) -> Result<Arc<dyn Locker>> {
        let Self { breaker, seen } = self;
        Ok(match (breaker, seen) {
            (None, None) => Arc::new(locker),
            (None, Some(seen)) => Arc::new(seen.instrumented(locker)),
            (Some(config), None) => Arc::new(CircuitBreaker::new(locker, config)?),
            (Some(config), Some(seen)) => Arc::new(seen.clone().instrumented(told(locker, config, seen.telemetry)?)),
        })
    }

    pub(crate) fn scoped_locker(self, locker: impl ScopedLocker + Inspect) -> Result<Arc<dyn ScopedLocker>> {
        let Self { breaker, seen } = self;
        Ok(match (breaker, seen) {
            (None, None) => Arc::new(locker),
            (None, Some(seen)) => Arc::new(seen.instrumented(locker)),
            (Some(config), None) => Arc::new(CircuitBreaker::new(locker, config)?),
            (Some(config), Some(seen)) => Arc::new(seen.clone().instrumented(told(locker, config, seen.telemetry)?)),
        })
    }
}

fn told<L: Backend>(locker: L, config: BreakerConfig, telemetry: Telemetry) -> Result<CircuitBreaker<L>> {
    Ok(CircuitBreaker::new(locker, config)?.with_telemetry(telemetry))
}
