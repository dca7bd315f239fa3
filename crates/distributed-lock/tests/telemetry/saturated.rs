//! Calls that end without a connection, and what is told of those whose telemetry goes to a meter alone.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Contention, Guarantees, Instrumented, LockKey, Locker,
    LockerExt, MemoryLocker, Result, backend::tell_waiting, telemetry::Telemetry,
};
use metrics_util::debugging::DebuggingRecorder;

use crate::{meter::Exported, recorder::record};

const TTL: Duration = Duration::from_secs(30);

/// Never has a connection within the budget.
#[derive(Debug)]
struct Saturated(MemoryLocker);

impl fmt::Display for Saturated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Saturated")
    }
}

#[async_trait]
impl Backend for Saturated {
    fn id(&self) -> BackendId {
        self.0.id()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn guarantees(&self) -> Guarantees {
        self.0.guarantees()
    }
    async fn ping(&self) -> Result<()> {
        self.0.ping().await
    }
    async fn close(&self) -> Result<()> {
        self.0.close().await
    }
}

#[async_trait]
impl Locker for Saturated {
    async fn acquire_opts(&self, _key: &LockKey, _options: &AcquireOptions) -> Result<Attempt> {
        tell_waiting(&Contention::NoConnection);
        Ok(Attempt::Contended(Contention::WaitElapsed))
    }
}

#[tokio::test]
async fn wait_for_a_connection_until_the_budget_is_used_up_is_saturated_and_not_contended() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let locker = Instrumented::new(Saturated(MemoryLocker::new()));
    assert!(locker.acquire_within("orders", TTL, Duration::from_millis(1)).await.unwrap().is_contended());
    assert_eq!(recorded.of("lock_saturations_total"), ["lock_saturations_total{lock_backend=Saturated} 1"]);
    assert!(recorded.of("lock_contentions_total").is_empty(), "{:?}", recorded.lines());
}

#[tokio::test]
async fn meter_that_is_given_to_a_telemetry_that_is_off_is_told_alone() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let exported = Exported::new();
    let only_meter = Telemetry::OFF.with_meter(&exported.meter());
    assert!(only_meter.is_on() && only_meter.is_heard());
    let locker = Instrumented::new(MemoryLocker::new()).with_telemetry(only_meter);
    locker.acquire("orders", TTL).await.unwrap().release().await.unwrap().exclusive().unwrap();
    assert!(recorded.lines().is_empty(), "{:?}", recorded.lines());
    assert!(exported.lines().iter().any(|line| line.starts_with("lock.wait.duration")), "{:?}", exported.lines());
}
