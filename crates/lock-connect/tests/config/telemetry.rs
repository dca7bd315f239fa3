//! What lockers of a configuration with a part `telemetry` tell, through a meter that was handed in.

use std::time::Duration;

use distributed_lock::{LockerExt, ScopedLockerExt, telemetry::Telemetry};
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use serde_json::{Value, json};

use crate::read;

const TTL: Duration = Duration::from_secs(30);

/// The names of all metrics that were told, after a wait that was explained, a scoped run and what follows.
async fn told(part: Value) -> Vec<String> {
    let exporter = InMemoryMetricExporter::default();
    let provider = SdkMeterProvider::builder().with_reader(PeriodicReader::builder(exporter.clone()).build()).build();
    let telemetry = Telemetry::new().with_meter(&provider.meter("test"));
    let config = read(json!({ "provider": "memory", "breaker": true, "telemetry": part })).with_telemetry(telemetry);
    let (locker, scoped) = (config.locker().unwrap(), config.scoped_locker().unwrap());
    let guard = locker.acquire("orders", TTL).await.unwrap();
    assert!(locker.acquire_within("orders", TTL, Duration::from_secs(2)).await.unwrap().is_contended());
    guard.release().await.unwrap().exclusive().unwrap();
    scoped.with_lock("orders", async |_| ()).await.unwrap();
    provider.force_flush().unwrap();
    let seen = exporter.get_finished_metrics().unwrap();
    let scopes = seen.iter().flat_map(|all| all.scope_metrics());
    let mut names: Vec<_> = scopes.flat_map(|scope| scope.metrics()).map(|metric| metric.name().to_owned()).collect();
    names.sort();
    names
}

#[tokio::test(start_paused = true)]
async fn part_telemetry_has_calls_holds_and_the_breaker_told_and_waits_explained_after_its_time() {
    let mut names = [
        "lock.breaker.state",
        "lock.contentions",
        "lock.held",
        "lock.hold.duration",
        "lock.release.duration",
        "lock.wait.duration",
        "lock.waiting",
    ]
    .to_vec();
    assert_eq!(told(json!(true)).await, names);
    assert_eq!(told(json!({ "explain_waits_after": "3s" })).await, names);
    names.insert(5, "lock.wait.explanations");
    names.sort_unstable();
    assert_eq!(told(json!({ "explain_waits_after": "1s" })).await, names);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_told_without_the_part() {
    for none in [json!(null), json!(false)] {
        assert_eq!(told(none).await, [""; 0]);
    }
}
