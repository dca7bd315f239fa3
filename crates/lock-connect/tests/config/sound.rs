//! Configurations that are taken.

use std::time::Duration;

use distributed_lock::{Backend, LockerExt, ScopedLockerExt};
use lock_connect::LockConfig;
use serde_json::json;

use crate::read;

#[test]
fn provider_is_found_by_name_and_by_url_whatever_its_case() {
    for provider in ["memory", "memory:", "MEMORY", " Memory\n"] {
        let config = LockConfig::new(provider);
        assert_eq!(config.locker().unwrap().to_string(), "Memory");
        assert_eq!(config.scoped_locker().unwrap().to_string(), "Scoped(Memory)");
    }
}

#[cfg(feature = "postgres")]
#[test]
fn postgres_is_found_by_url_and_by_name_with_its_url_beside_it() {
    let url = "postgres://app@db/app";
    for provider in [url, "postgresql://app@db/app", "Postgres://app@db/app", " postgres://app@db/app\n"] {
        let config = LockConfig::new(provider);
        assert_eq!(config.locker().unwrap().to_string(), "Postgres");
        assert_eq!(config.scoped_locker().unwrap().to_string(), "PostgresScoped");
    }
    for provider in ["postgres", "postgresql", "POSTGRES", "postgres:"] {
        let config = read(json!({ "provider": provider, "postgres": { "url": url, "pool_size": 3 } }));
        assert_eq!(config.scoped_locker().unwrap().to_string(), "PostgresScoped");
        assert!(format!("{:?}", config.locker().unwrap()).contains("pool_size: 3"));
    }
    let config = read(json!({ "provider": url, "postgres": { "pool_size": 3, "session_ttl": "60s" } }));
    let built = format!("{:?}", config.locker().unwrap());
    assert!(built.contains("pool_size: 3") && built.contains("60s"), "the settings beside a URL count: {built}");
}

#[test]
fn part_that_was_not_chosen_is_not_judged() {
    let broken = json!({ "url": "nonsense", "pool_size": -1, "no_such_field": true });
    let config = read(json!({ "provider": "memory", "postgres": broken }));
    assert_eq!(config.locker().unwrap().to_string(), "Memory");
    for broken in [json!(5), json!("postgres://app:secret@db"), json!([])] {
        read(json!({ "provider": "memory", "postgres": broken })).locker().unwrap();
        read(json!({ "provider": "noop", "postgres": broken, "memory": broken })).locker().unwrap();
    }
}

#[test]
fn null_is_as_good_as_left_out() {
    let config = read(json!({ "provider": "memory", "memory": null, "postgres": null }));
    assert_eq!(config.locker().unwrap().to_string(), "Memory");
    read(json!({ "provider": "memory", "memory": { "scoped_ttl": null } })).locker().unwrap();
}

#[tokio::test(start_paused = true)]
async fn scoped_ttl_is_the_ttl_of_the_holds_that_bodies_run_under() {
    for (config, expected) in [
        (json!({ "provider": "memory" }), Duration::from_secs(30)),
        (json!({ "provider": "memory", "memory": { "scoped_ttl": "1m 30s" } }), Duration::from_secs(90)),
    ] {
        let locks = read(config).scoped_locker().unwrap();
        assert_eq!(locks.with_lock("k", async |hold| hold.remaining()).await.unwrap(), Some(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn lockers_of_one_configuration_exclude_each_other_and_those_of_two_do_not() {
    const TTL: Duration = Duration::from_secs(30);
    let config = LockConfig::new("memory");
    let _guard = config.locker().unwrap().acquire("k", TTL).await.unwrap();
    assert!(config.locker().unwrap().try_acquire("k", TTL).await.unwrap().is_contended());
    assert!(config.clone().locker().unwrap().try_acquire("k", TTL).await.unwrap().is_contended());
    assert!(config.scoped_locker().unwrap().try_with_lock("k", async |_| ()).await.unwrap().is_contended());
    let over = config.clone().overlaid_by(read(json!({ "memory": { "scoped_ttl": "5s" } })));
    assert!(over.scoped_locker().unwrap().try_with_lock("k", async |_| ()).await.unwrap().is_contended());
    assert!(!LockConfig::new("memory").locker().unwrap().try_acquire("k", TTL).await.unwrap().is_contended());
}

#[tokio::test]
async fn whatever_is_built_can_be_pinged_and_closed() {
    for provider in ["memory", "noop"] {
        let config = LockConfig::new(provider);
        let (locker, scoped) = (config.locker().unwrap(), config.scoped_locker().unwrap());
        for backend in [&locker as &dyn Backend, &scoped] {
            backend.ping().await.unwrap();
            backend.close().await.unwrap();
            backend.close().await.unwrap();
            assert_eq!(backend.ping().await.unwrap_err().kind(), distributed_lock::ErrorKind::Closed);
        }
    }
}

#[test]
fn breaker_goes_around_every_provider_when_it_is_asked_for() {
    let part = json!({
        "error_rate": 80, "min_samples": "3", "open_time": "1s", "max_open_time": "1m", "probe_timeout": "500ms",
    });
    for (provider, locker, scoped) in [
        ("memory", "CircuitBreaker(Memory)", "CircuitBreaker(Scoped(Memory))"),
        ("noop", "CircuitBreaker(Noop[locks nothing])", "CircuitBreaker(Scoped(Noop[locks nothing]))"),
        #[cfg(feature = "postgres")]
        ("postgres://app@db/app", "CircuitBreaker(Postgres)", "CircuitBreaker(PostgresScoped)"),
    ] {
        for breaker in [json!(true), json!("true"), json!({}), part.clone()] {
            let config = read(json!({ "provider": provider, "breaker": breaker }));
            assert_eq!(config.locker().unwrap().to_string(), locker);
            assert_eq!(config.scoped_locker().unwrap().to_string(), scoped);
        }
        for none in [json!(false), json!("false"), json!(null)] {
            let config = read(json!({ "provider": provider, "breaker": none }));
            assert!(!config.locker().unwrap().to_string().contains("Breaker"));
        }
    }
    let locker = read(json!({ "provider": "memory", "breaker": part })).locker().unwrap();
    let built = format!("{locker:?}");
    for setting in ["error_rate: 80", "min_samples: 3", "open_time: 1s", "max_open_time: 60s", "probe_timeout: 500ms"] {
        assert!(built.contains(setting), "{built} lacks {setting}");
    }
}

#[cfg(any(feature = "metrics", feature = "tracing"))]
#[test]
fn telemetry_goes_outermost_around_every_provider_when_it_is_asked_for() {
    for (provider, locker, scoped) in [
        ("memory", "Memory", "Scoped(Memory)"),
        ("noop", "Noop[locks nothing]", "Scoped(Noop[locks nothing])"),
        #[cfg(feature = "postgres")]
        ("postgres://app@db/app", "Postgres", "PostgresScoped"),
    ] {
        for telemetry in [json!(true), json!("true"), json!({}), json!({ "explain_waits_after": "5s" })] {
            let config = read(json!({ "provider": provider, "telemetry": telemetry }));
            assert_eq!(config.locker().unwrap().to_string(), format!("Instrumented({locker})"));
            assert_eq!(config.scoped_locker().unwrap().to_string(), format!("Instrumented({scoped})"));
            let config = read(json!({ "provider": provider, "breaker": true, "telemetry": telemetry }));
            assert_eq!(config.locker().unwrap().to_string(), format!("Instrumented(CircuitBreaker({locker}))"));
            assert_eq!(config.scoped_locker().unwrap().to_string(), format!("Instrumented(CircuitBreaker({scoped}))"));
        }
        for none in [json!(false), json!("false"), json!(null)] {
            let config = read(json!({ "provider": provider, "telemetry": none }));
            assert_eq!(config.locker().unwrap().to_string(), locker);
        }
    }
}
