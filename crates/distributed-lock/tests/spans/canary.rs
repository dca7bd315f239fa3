//! A lock's name is in no label of any metric, and in logs and errors only escaped.

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    ErrorKind, Instrumented, LockerExt, LossCause, MemoryLocker, Scoped, ScopedLockerExt,
    lease::{LeaseConfig, LeaseRunner},
    telemetry::Telemetry,
};
use metrics_util::debugging::DebuggingRecorder;

use crate::{meter::Exported, page::Page, recorder::record};

const NAME: &str = "canary\n2026 ERROR forged\u{1b}[31m";
const TTL: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn canary_name_is_in_no_label_and_only_escaped_in_logs_and_errors() {
    let (page, _subscriber) = Page::start();
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let exported = Exported::new();

    let telemetry = Telemetry::new().with_meter(&exported.meter());
    let store = MemoryLocker::new();
    let inner = Arc::new(store.peer());
    let locker = Instrumented::new(Arc::clone(&inner)).with_telemetry(telemetry.clone());
    let locker = locker.explaining_waits(Duration::from_secs(1));
    let mut errors = Vec::new();
    // Waits that elapse and are explained, a loss, failures of every call, a scoped run and a lease.
    let somebody = store.hold(NAME).unwrap();
    assert!(locker.acquire_within(NAME, TTL, Duration::from_secs(3)).await.unwrap().is_contended());
    drop(somebody);
    inner.fail_next(ErrorKind::Unavailable);
    errors.push(locker.try_acquire(NAME, TTL).await.unwrap_err());
    let mut guard = locker.acquire(NAME, TTL).await.unwrap();
    inner.fail_next(ErrorKind::Unavailable);
    errors.push(guard.renew(TTL).await.unwrap_err());
    store.lose(NAME, LossCause::SessionEnded).unwrap();
    errors.push(guard.ensure_valid().unwrap_err());
    inner.fail_next(ErrorKind::Unavailable);
    errors.push(guard.release().await.unwrap_err());
    let locks = Instrumented::new(Scoped::new(store.peer())).with_telemetry(telemetry.clone());
    locks.with_lock(NAME, async |_hold| ()).await.unwrap();
    let config = LeaseConfig::new().with_telemetry(telemetry);
    let runner = LeaseRunner::new(Arc::new(store.peer()), config).unwrap();
    let _exit = runner.run(NAME, async |_term| Ok::<_, ()>(())).await.unwrap();

    let metrics = [recorded.lines(), exported.lines()].concat();
    assert!(metrics.len() > 20, "{metrics:?}");
    assert!(metrics.iter().all(|line| !line.contains("canary")), "{metrics:?}");
    let page = page.text();
    assert!(!page.contains("canary\n") && !page.contains('\u{1b}'), "{page}");
    assert!(page.lines().all(|line| !line.starts_with("2026 ERROR")), "{page}");
    let seen = page.matches(r"canary\n2026 ERROR forged\u{1b}[31m").count();
    assert!(seen > 10, "{seen} times in {page}");
    for error in errors {
        let text = format!("{error} {error:?}");
        assert!(!text.contains("canary\n") && !text.contains('\u{1b}'), "{text}");
    }
}
