//! Configurations that are refused, with the exact words.

use lock_connect::LockConfig;
use serde_json::json;

use crate::{faults, read};

#[cfg(feature = "postgres")]
const THERE_ARE: &str = "there are memory, noop, postgres, and URLs that begin with postgres:// or postgresql://";
#[cfg(not(feature = "postgres"))]
const THERE_ARE: &str = "there are memory and noop; postgres needs the cargo feature `postgres` of lock-connect";

#[test]
fn provider_that_is_missing_empty_blank_or_unknown_is_refused_with_a_list_of_what_there_is() {
    for (provider, value, rule) in [
        (json!(null), "missing", "must be given, there is no default"),
        (json!(""), "empty", "unknown"),
        (json!(" \t\n"), "blank", "unknown"),
        (json!("redis"), "redis", "unknown"),
        (json!("REDIS://h"), "redis:…", "unknown"),
        (json!("postgress"), "postgress", "unknown"),
        (json!("mem ory"), "not shown, it may hold a password", "unknown"),
        (json!(":memory"), "not shown, it may hold a password", "unknown"),
        (json!("host=db user=app password=x"), "not shown, it may hold a password", "unknown"),
        (json!(5), "5", "must be text"),
        (json!({ "name": "memory" }), "neither text, number nor truth value", "must be text"),
    ] {
        let told = faults(&read(json!({ "provider": provider })));
        assert_eq!(told, format!("invalid provider ({value}): {rule}; {THERE_ARE}"));
    }
    assert_eq!(faults(&read(json!({}))), faults(&read(json!({ "provider": null }))));
}

#[test]
fn nothing_can_follow_a_provider_without_a_place() {
    for provider in ["memory", "noop"] {
        let expected = format!("invalid provider ({provider}:…): nothing can follow {provider}: in it");
        assert_eq!(faults(&LockConfig::new(format!("{provider}://x"))), expected);
        assert_eq!(faults(&LockConfig::new(format!("{provider}:x"))), expected);
    }
}

#[test]
fn part_of_the_memory_provider_is_judged() {
    let rule = "must be text with a unit, such as \"5s\" or \"250ms\"";
    for (part, expected) in [
        (json!({ "scoped_ttl": 5 }), format!("invalid memory.scoped_ttl (5): {rule}")),
        (json!({ "scoped_ttl": "5" }), format!("invalid memory.scoped_ttl (\"5\"): {rule}")),
        (json!({ "scoped_ttl": "0s" }), "invalid memory.scoped_ttl (0ns): must be between 1 ms and 366 days".into()),
        (json!({ "ttl": 5 }), "invalid memory.ttl (not shown): unknown; known are scoped_ttl".into()),
        (json!(5), "invalid memory (not shown): must be a map of settings, or true for the defaults".into()),
    ] {
        assert_eq!(faults(&read(json!({ "provider": "memory", "memory": part }))), expected);
    }
}

#[test]
fn field_that_does_not_exist_is_refused_beside_every_other_fault() {
    let config =
        read(json!({ "provder": "memory", "Provider": "x", "provider": "memory", "memory": { "scoped_ttl": "x" } }));
    let known = "not shown): unknown; known are provider, memory, breaker, telemetry, postgres";
    let lines = [
        "invalid configuration (3 faults): invalid memory.scoped_ttl (\"x\"): must be text with a unit, such as \"5s\" or \"250ms\"",
        &format!("invalid Provider ({known}"),
        &format!("invalid provder ({known}"),
    ];
    assert_eq!(faults(&config), lines.join("\n"));
}

#[test]
fn breaker_that_is_asked_for_and_cannot_be_built_is_refused_with_every_fault() {
    let lines = |part| {
        let told = faults(&read(json!({ "provider": "memory", "breaker": part })));
        told.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let part = json!({ "error_rate": 0, "min_samples": 0, "open_time": "1m", "probe_timeout": 5, "window": "10s" });
    assert_eq!(
        lines(part),
        [
            "invalid configuration (5 faults): invalid breaker.probe_timeout (5): must be text with a unit, such as \"5s\" or \"250ms\"",
            "invalid breaker.error_rate (0 %): must be 1 % to 100 %",
            "invalid breaker.min_samples (0): must be at least 1",
            "invalid breaker.max_open_time (30s): must be at least the open_time, 60s, and at most 24 h",
            "invalid breaker.window (not shown): unknown; known are error_rate, min_samples, open_time, max_open_time, probe_timeout",
        ]
    );
    let rule = "must be text with a unit, such as \"5s\" or \"250ms\"";
    assert_eq!(
        lines(json!({ "open_time": 5, "max_open_time": "1ms" })),
        [format!("invalid breaker.open_time (5): {rule}")]
    );
    // Whichever is refused by its form, the other is judged all the same.
    assert_eq!(
        lines(json!({ "open_time": 5, "max_open_time": "48h" })),
        [
            format!("invalid configuration (2 faults): invalid breaker.open_time (5): {rule}"),
            "invalid breaker.max_open_time (172800s): must be at least the open_time, 500ms, and at most 24 h"
                .to_owned()
        ]
    );
    assert_eq!(
        lines(json!({ "open_time": "48h", "max_open_time": 5 })),
        [
            format!("invalid configuration (2 faults): invalid breaker.max_open_time (5): {rule}"),
            "invalid breaker.open_time (172800s): must be 1 ms to 24 h".to_owned()
        ]
    );
    assert_eq!(lines(json!({ "error_rate": 300 })), ["invalid breaker.error_rate (300): must be 1 to 100, in percent"]);
    let not_a_map = "invalid breaker (not shown): must be a map of settings, or true for the defaults";
    assert_eq!(lines(json!("on")), [not_a_map]);
}

#[cfg(any(feature = "metrics", feature = "tracing"))]
#[test]
fn telemetry_with_a_setting_that_breaks_its_rule_is_refused() {
    let known = "(not shown): unknown; known are class, explain_waits_after";
    let plain = "must be 1 to 40 characters of a-z, A-Z, 0-9, \".\", \"_\" and \"-\"";
    for (part, told) in [
        (json!({ "explain_waits_after": "0s" }), "telemetry.explain_waits_after (0ns): must be 1 ms to 24 h".into()),
        (
            json!({ "explain_waits_after": "25h" }),
            "telemetry.explain_waits_after (90000s): must be 1 ms to 24 h".into(),
        ),
        (
            json!({ "explain_waits_after": 5 }),
            "telemetry.explain_waits_after (5): must be text with a unit, such as \"5s\" or \"250ms\"".into(),
        ),
        (json!({ "clas": "billing" }), format!("telemetry.clas {known}")),
        (json!({ "class": "" }), format!("telemetry.class (\"\"): {plain}")),
        (json!({ "class": "order 4711" }), format!("telemetry.class (\"order 4711\"): {plain}")),
        (json!({ "class": "x".repeat(41) }), format!("telemetry.class (41 characters): {plain}")),
        (json!({ "class": 5 }), "telemetry.class (5): must be text".into()),
        (json!("on"), "telemetry (not shown): must be a map of settings, or true for the defaults".to_owned()),
    ] {
        assert_eq!(faults(&read(json!({ "provider": "memory", "telemetry": part }))), format!("invalid {told}"));
    }
}

#[cfg(not(feature = "postgres"))]
#[test]
fn known_provider_without_its_feature_is_refused_with_the_name_of_the_feature() {
    let rule = "known, but this program was built without the cargo feature `postgres` of lock-connect";
    for (provider, value) in [
        ("postgres", "postgres"),
        ("postgres://app:canary@db/app", "postgres:…"),
        ("PostgreSQL://app@db/app", "postgresql:…"),
    ] {
        assert_eq!(faults(&LockConfig::new(provider)), format!("invalid provider ({value}): {rule}"));
    }
}

#[cfg(feature = "postgres")]
#[test]
fn every_fault_of_the_postgres_part_is_told_with_its_path() {
    let config = read(json!({
        "provider": "postgres",
        "postgres": {
            "url": "postgres://app:x@db/app?sslmode=none", "pool_size": 0, "close_timeout": 5, "pool_sise": 1,
            "session_ttl": "2s", "query_timeout": "3s",
        },
    }));
    let modes = faults(&LockConfig::new("postgres://app@db?sslmode=none"));
    let mode_rule = modes.split_once("(none): ").unwrap().1;
    let told = faults(&config);
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(
        lines[..3],
        [
            "invalid configuration (5 faults): invalid postgres.close_timeout (5): must be text with a unit, such as \"5s\" or \"250ms\"",
            &format!("invalid postgres.url: connection parameter sslmode (none): {mode_rule}"),
            "invalid postgres.pool_size (0): must be 1 to 1000 connections",
        ]
    );
    assert!(lines[3].starts_with("invalid postgres.session_ttl (2s): "), "{told}");
    assert!(
        lines[4].starts_with("invalid postgres.pool_sise (not shown): unknown; known are url, password_file, "),
        "{told}"
    );
    assert_eq!(lines.len(), 5);
}

#[cfg(feature = "postgres")]
#[test]
fn url_is_given_once_and_what_is_wrong_in_it_is_found_where_it_stands() {
    let not_a_map = "must be a map of settings, or true for the defaults";
    let must_be_given = "invalid postgres.url (missing): must be given, unless the provider is the URL";
    for (config, expected) in [
        (json!({ "provider": "postgres" }), must_be_given.to_owned()),
        (json!({ "provider": "postgres", "postgres": {} }), must_be_given.to_owned()),
        (json!({ "provider": "postgres", "postgres": { "url": null } }), must_be_given.to_owned()),
        (json!({ "provider": "postgres", "postgres": "postgres://u:p@h" }), format!("invalid postgres (not shown): {not_a_map}")),
        (
            json!({ "provider": "postgres://app@db", "postgres": { "url": "postgres://app@db" } }),
            "invalid postgres.url (not shown): must be left out, since the provider is the URL".to_owned(),
        ),
        (
            json!({ "provider": "postgres://db/app" }),
            "invalid provider.url: connection parameter user (missing): must be given; the environment is not read".to_owned(),
        ),
        (
            json!({ "provider": "postgres:app@db" }),
            "invalid provider (postgres:…): must be a URL like postgres://user@host/database, or the name alone".to_owned(),
        ),
        (
            json!({ "provider": "postgres://app@db?connect_timeout=0", "postgres": { "pool_size": 0 } }),
            "invalid configuration (2 faults): invalid provider.url: connection parameter connect_timeout (0): must be whole seconds \
             from 1 to 86400; an endless wait cannot be asked for\ninvalid postgres.pool_size (0): must be 1 to 1000 connections"
                .to_owned(),
        ),
    ] {
        assert_eq!(faults(&read(config)), expected);
    }
}
