//! What lockers of a configuration with a part `telemetry` tell, through a meter that was handed in.

use std::time::Duration;

use distributed_lock::{AcquireOptions, LockKey, Locker, LockerExt, ScopedLockerExt, Ttl, telemetry::Telemetry};
use lock_connect::LockConfig;
use serde_json::{Value, json};

use crate::{meter::Exported, read};

const TTL: Duration = Duration::from_secs(30);

/// All series that were told, with their labels, after a wait that was explained, a scoped run and what follows.
async fn told_by(config: LockConfig, telemetry: Telemetry) -> Vec<String> {
    let exported = Exported::new();
    let config = config.with_telemetry(telemetry.with_meter(&exported.meter()));
    let (locker, scoped) = (config.locker().unwrap(), config.scoped_locker().unwrap());
    let guard = locker.acquire("orders", TTL).await.unwrap();
    assert!(locker.acquire_within("orders", TTL, Duration::from_secs(2)).await.unwrap().is_contended());
    guard.release().await.unwrap().exclusive().unwrap();
    scoped.with_lock("orders", async |_| ()).await.unwrap();
    exported.lines().into_iter().map(|line| line.rsplit_once('}').unwrap().0.to_owned() + "}").collect()
}

/// The names of all metrics that were told.
async fn told(part: Value) -> Vec<String> {
    let config = read(json!({ "provider": "memory", "breaker": true, "telemetry": part }));
    let lines = told_by(config, Telemetry::new()).await;
    let mut names: Vec<_> = lines.iter().map(|line| line.split('[').next().unwrap().to_owned()).collect();
    names.dedup();
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

/// The values of `lock.class` of all that is told of calls and holds, each once. A breaker's series have none.
async fn classes(config: LockConfig, telemetry: Telemetry) -> Vec<String> {
    let (breakers, lines): (Vec<_>, Vec<_>) =
        told_by(config, telemetry).await.into_iter().partition(|line| line.starts_with("lock.breaker"));
    assert!(lines.len() > 5 && breakers.len() == 2, "{lines:?} {breakers:?}");
    assert!(breakers.iter().all(|line| !line.contains("lock.class")), "{breakers:?}");
    let class = |line: &String| {
        line.split_once("lock.class=").map_or("none", |(_, rest)| rest.split([',', '}']).next().unwrap()).to_owned()
    };
    let mut classes: Vec<_> = lines.iter().map(class).collect();
    classes.dedup();
    classes
}

#[tokio::test(start_paused = true)]
async fn class_of_the_part_is_a_label_of_every_call_and_hold_over_the_one_that_the_program_gave() {
    let part = |part: Value| read(json!({ "provider": "memory", "breaker": true, "telemetry": part }));
    let of_program = || Telemetry::new().for_class(Some("program"));
    for (config, telemetry, class) in [
        (part(json!({ "class": "billing" })), Telemetry::new(), "billing"),
        (part(json!({ "class": "billing", "explain_waits_after": "1s" })), of_program(), "billing"),
        (part(json!(true)), of_program(), "program"),
        (part(json!({ "class": null })), Telemetry::new(), "none"),
    ] {
        assert_eq!(classes(config, telemetry).await, [class]);
    }
    let vars = [("L_PROVIDER", "memory"), ("L_BREAKER", "true"), ("L_TELEMETRY_CLASS", "bills")];
    let environment = LockConfig::from_vars("L_", vars.map(|(name, value)| (name.into(), value.into())));
    let file = part(json!({ "class": "billing" }));
    assert_eq!(classes(file.overlaid_by(environment), Telemetry::new()).await, ["bills"]);
}

#[tokio::test(start_paused = true)]
async fn class_of_an_acquire_goes_over_the_one_of_the_part() {
    let exported = Exported::new();
    let config = read(json!({ "provider": "memory", "telemetry": { "class": "billing" } }));
    let locker = config.with_telemetry(Telemetry::new().with_meter(&exported.meter())).locker().unwrap();
    let options = AcquireOptions::new(Ttl::UNTIL_RELEASED);
    for options in [options.clone(), options.clone().with_class("order"), options.with_class("billing")] {
        let attempt = locker.acquire_opts(&LockKey::new("k").unwrap(), &options).await.unwrap();
        attempt.into_result().unwrap().release().await.unwrap().exclusive().unwrap();
    }
    let lines = exported.lines();
    let waits: Vec<_> = lines.iter().filter(|line| line.starts_with("lock.wait.duration")).collect();
    assert_eq!(
        waits,
        [
            "lock.wait.duration[s]{lock.backend=Memory,lock.class=billing,lock.outcome=acquired} 2x, 0",
            "lock.wait.duration[s]{lock.backend=Memory,lock.class=order,lock.outcome=acquired} 1x, 0",
        ]
    );
}

#[cfg(feature = "postgres")]
fn tells_of_a_pool(exported: &Exported) -> bool {
    exported.lines().iter().any(|line| line.starts_with("db.client.connection.count"))
}

/// There is no server behind the port: that it was tried is told all the same.
#[cfg(feature = "postgres")]
#[tokio::test]
async fn pool_of_the_provider_tells_the_same_meter() {
    for (telemetry, told) in [(json!(true), true), (json!(false), false)] {
        let exported = Exported::new();
        let url = "postgres://app@127.0.0.1:1/app?sslmode=disable";
        let config = read(json!({ "provider": url, "telemetry": telemetry }));
        let config = config.with_telemetry(Telemetry::new().with_meter(&exported.meter()));
        assert!(config.locker().unwrap().try_acquire("orders", TTL).await.is_err());
        assert_eq!(tells_of_a_pool(&exported), told, "{:?}", exported.lines());
        let exported = Exported::new();
        let config = config.with_telemetry(Telemetry::new().with_meter(&exported.meter()));
        assert!(config.scoped_locker().unwrap().with_lock("orders", async |_| ()).await.is_err());
        assert_eq!(tells_of_a_pool(&exported), told, "{:?}", exported.lines());
    }
}
