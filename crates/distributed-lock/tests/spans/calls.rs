//! The spans of a call, a hold and a release.

use std::time::Duration;

use distributed_lock::{
    AcquireOptions, Instrumented, LockKey, Locker, LockerExt, LossCause, MemoryLocker, Scoped, ScopedLockerExt, Ttl,
    telemetry::Telemetry,
};

use crate::tracer::Traced;

const TTL: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn guard_has_a_span_for_the_call_the_hold_and_the_release() {
    let (traced, _subscriber) = Traced::start();
    let locker = Instrumented::new(MemoryLocker::new());
    locker.acquire("orders", TTL).await.unwrap().release().await.unwrap().exclusive().unwrap();
    assert_eq!(
        traced.lines(),
        [
            r#"lock.acquire under nothing: lock.key="orders" lock.backend="Memory" wait=Forever outcome="acquired""#,
            r#"lock.release under lock.hold: outcome="released""#,
            r#"lock.hold under nothing: lock.key="orders" lock.backend="Memory" token=1"#,
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn spans_have_the_class_and_the_backend_also_where_no_metric_is_told() {
    let (traced, _subscriber) = Traced::start();
    let locker = |telemetry| Instrumented::new(MemoryLocker::new()).with_telemetry(telemetry);
    let options = AcquireOptions::new(Ttl::UNTIL_RELEASED);
    let key = LockKey::new("orders").unwrap();
    for telemetry in [Telemetry::new(), Telemetry::OFF] {
        let configured = locker(telemetry.with_class("billing").unwrap());
        for options in [options.clone(), options.clone().with_class("order")] {
            drop(configured.acquire_opts(&key, &options).await.unwrap().into_result().unwrap());
        }
    }
    let lines = traced.lines();
    let fields = |class: &str| format!(r#"lock.key="orders" lock.backend="Memory" lock.class="{class}" "#);
    for (line, class) in lines.iter().zip(["billing", "billing", "order", "order"].iter().cycle()) {
        assert!(line.contains(&fields(class)), "{class}: {line}");
    }
    assert_eq!(lines.len(), 8, "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn body_of_a_scoped_run_is_in_the_span_of_its_hold_and_all_of_it_under_the_caller() {
    let (traced, _subscriber) = Traced::start();
    let locks = Instrumented::new(Scoped::new(MemoryLocker::new()));
    let request = async { locks.with_lock("orders", async |_hold| tracing::info!("at work")).await };
    tracing::Instrument::instrument(request, tracing::info_span!("request")).await.unwrap();
    let lines = traced.lines();
    assert_eq!(lines[0], "INFO in lock.hold: at work");
    let spans: Vec<_> = lines[1..].iter().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(
        spans,
        [
            "lock.release under lock.hold",
            "lock.hold under lock.acquire",
            "lock.acquire under request",
            "request under nothing"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn loss_and_failed_release_are_warnings_in_the_span_of_the_hold() {
    let (traced, _subscriber) = Traced::start();
    let store = MemoryLocker::new();
    let locker = Instrumented::new(store.peer());
    let guard = locker.acquire("orders", TTL).await.unwrap();
    store.lose("orders", LossCause::SessionEnded).unwrap();
    drop(guard);
    let lines = traced.lines();
    assert_eq!(
        lines[1],
        r#"WARN in lock.hold: the lock was lost: the session that owned it ended lock.key="orders" overrun=0ns"#
    );
    assert!(lines[2].ends_with(r#"lost="session_ended""#), "{lines:?}");
}
