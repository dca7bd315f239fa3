//! The metrics of the lease runner.

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    ErrorKind, LossCause, MemoryLocker,
    lease::{LeaseConfig, LeaseExit, LeaseRunner, Term},
    telemetry::Telemetry,
};
use metrics_util::debugging::DebuggingRecorder;
use tokio::time::sleep;

use crate::recorder::record;

#[tokio::test(start_paused = true)]
async fn terms_are_counted_while_they_last_with_their_ends_losses_and_overruns() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let store = MemoryLocker::new();
    let locker = Arc::new(store.peer());
    locker.fail_next(ErrorKind::Unavailable);
    let config = LeaseConfig::new().with_telemetry(Telemetry::new()).with_class("bill");
    let runner = LeaseRunner::new(locker, config).unwrap();
    let mut terms = 0;
    let job = |term: Term| {
        terms += 1;
        let (first, store) = (terms == 1, store.peer());
        let leading = recorded.of("lease_leading");
        async move {
            assert_eq!(leading, ["lease_leading{lock_class=bill} 1"]);
            sleep(Duration::from_secs(2)).await;
            if first {
                store.lose("job", LossCause::SessionEnded).unwrap();
                term.cancelled().await;
                sleep(Duration::from_secs(3)).await;
            }
            Ok::<_, ()>(())
        }
    };
    assert!(matches!(runner.run("job", job).await.unwrap(), LeaseExit::Finished(())));
    let hangs = runner.run("job", async |_term| std::future::pending::<Result<(), ()>>().await);
    assert!(tokio::time::timeout(Duration::from_secs(7), hangs).await.is_err());
    assert_eq!(
        recorded.lines().iter().map(String::as_str).filter(|line| !line.contains("_duration_")).collect::<Vec<_>>(),
        [
            "lease_acquire_failures_total{error_type=unavailable,lock_class=bill} 1",
            "lease_leading{lock_class=bill} 0",
            "lease_losses_total{lock_class=bill,lock_loss_cause=session_ended} 1",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn terms_have_their_durations_by_outcome() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let store = MemoryLocker::new();
    let config = LeaseConfig::new().with_telemetry(Telemetry::new());
    let runner = LeaseRunner::new(Arc::new(store.peer()), config).unwrap();
    let fails = async |_term| {
        sleep(Duration::from_secs(4)).await;
        Err::<(), _>("no paper")
    };
    assert!(matches!(runner.run("job", fails).await.unwrap(), LeaseExit::Failed("no paper")));
    let loses = async |_term| {
        store.lose("job", LossCause::SessionEnded).unwrap();
        sleep(Duration::from_secs(3)).await;
        runner.stop("job");
        Ok::<_, ()>(())
    };
    assert!(matches!(runner.run("job", loses).await.unwrap(), LeaseExit::Stopped(_)));
    let hangs = runner.run("job", async |_term| std::future::pending::<Result<(), ()>>().await);
    assert!(tokio::time::timeout(Duration::from_secs(7), hangs).await.is_err());
    assert_eq!(
        recorded.lines(),
        [
            "lease_leading{} 0",
            "lease_losses_total{lock_loss_cause=session_ended} 1",
            "lease_overrun_duration_seconds{} [3.0]",
            "lease_term_duration_seconds{lock_outcome=cancelled} [7.0]",
            "lease_term_duration_seconds{lock_outcome=failed} [4.0]",
            "lease_term_duration_seconds{lock_outcome=finished} [3.0]",
        ]
    );
}
