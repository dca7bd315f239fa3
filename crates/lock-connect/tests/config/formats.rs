//! The same configuration through every format: written by the format's own writer, read back, and as good as the original.

use std::{collections::BTreeMap, ffi::OsString};

use lock_connect::LockConfig;
use serde_json::{Value, json};

use crate::{faults, read};

fn whole() -> Value {
    let mut postgres = json!({
        "namespace": -7, "pool_size": 3, "conn_wait_timeout": "forever", "close_timeout": "1m 30s",
        "heartbeat_interval": "1s", "query_timeout": "2s", "session_ttl": "5s", "fencing": false, "fencing_epoch": 255,
        "key_scheme": "siphash", "key_secret": "000102030405060708090a0b0c0d0e0f", "hand_over": true, "watchdog": false,
    });
    // With a character that each format escapes in its own way.
    postgres["url"] = json!("host=/run/postgresql user='a \"b\"\\\\ c' dbname=app");
    json!({ "provider": "postgres", "memory": { "scoped_ttl": "10s" }, "postgres": postgres, "breaker": breaker() })
}

fn breaker() -> Value {
    json!({ "error_rate": 80, "min_samples": 3, "open_time": "1s", "max_open_time": "1m", "probe_timeout": "500ms" })
}

/// The document written in each format and read back.
fn through_every_format(document: &Value) -> BTreeMap<&'static str, LockConfig> {
    let json = serde_json::to_string(document).unwrap();
    let pretty = serde_json::to_string_pretty(document).unwrap();
    let toml = toml::to_string(document).unwrap();
    let yaml = serde_saphyr::to_string(document).unwrap();
    BTreeMap::from([
        ("environment", LockConfig::from_vars("APP_", variables("APP", document))),
        ("JSON", serde_json::from_str(&json).unwrap()),
        ("JSON from a reader", serde_json::from_reader(pretty.as_bytes()).unwrap()),
        ("TOML", toml::from_str(&toml).unwrap()),
        ("YAML", serde_saphyr::from_str(&yaml).unwrap()),
    ])
}

/// As a shell would export it: text only, one variable for each value.
fn variables(name: &str, value: &Value) -> Vec<(OsString, OsString)> {
    match value {
        Value::Object(fields) => {
            let of = |(field, value): (&String, &Value)| variables(&format!("{name}_{}", field.to_uppercase()), value);
            fields.iter().flat_map(of).collect()
        }
        Value::String(text) => vec![(name.into(), text.into())],
        other => vec![(name.into(), other.to_string().into())],
    }
}

#[cfg(feature = "postgres")]
#[test]
fn whole_configuration_survives_every_format() {
    use lock_postgres::{PostgresConfig, PostgresLocker};

    let document = whole();
    let settings = |built: String| {
        let from = built.find("settings").unwrap();
        built[from..from + built[from..].find(" }").unwrap()].to_owned()
    };
    // Read by serde_json straight into the backend's own configuration, without this crate.
    let direct: PostgresConfig = serde_json::from_value(document["postgres"].clone()).unwrap();
    let direct = settings(format!("{:?}", PostgresLocker::new(&direct).unwrap()));
    assert!(direct.contains("pool_size: 3") && direct.contains("namespace: -7"), "{direct}");
    for (format, config) in through_every_format(&document) {
        assert_eq!(settings(format!("{:?}", config.locker().unwrap())), direct, "{format}");
        assert_eq!(config.scoped_locker().unwrap().to_string(), "CircuitBreaker(PostgresScoped)");
        let built = format!("{:?}", config.locker().unwrap());
        let breaker =
            ["error_rate: 80", "min_samples: 3", "open_time: 1s", "max_open_time: 60s", "probe_timeout: 500ms"];
        assert!(breaker.iter().all(|setting| built.contains(setting)), "{format}: {built}");
    }
    let mut other = document;
    other["postgres"]["pool_size"] = json!(4);
    for (format, config) in through_every_format(&other) {
        assert_ne!(settings(format!("{:?}", config.locker().unwrap())), direct, "{format}");
    }
}

#[test]
fn every_format_is_refused_with_the_same_words() {
    let mut document = whole();
    document["provider"] = json!("memory");
    document["memory"]["scoped_ttl"] = json!("soon");
    document["colour"] = json!("red");
    let expected = faults(&read(document.clone()));
    assert!(
        expected.contains("invalid memory.scoped_ttl (\"soon\")") && expected.contains("invalid colour ("),
        "{expected}"
    );
    for (format, config) in through_every_format(&document) {
        assert_eq!(faults(&config), expected, "{format}");
    }
}

#[test]
fn variables_with_another_prefix_are_left_alone_and_unknown_ones_are_refused() {
    let vars = |vars: &[(&str, &str)]| {
        let vars: Vec<_> = vars.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect();
        LockConfig::from_vars("APP_LOCKS_", vars)
    };
    let sound =
        vars(&[("APP_LOCKS_PROVIDER", "memory"), ("APP_PORT", "80"), ("LOCKS_PROVIDER", "x"), ("PROVIDER", "y")]);
    assert_eq!(sound.locker().unwrap().to_string(), "Memory");
    let known = "not shown): unknown; known are provider, memory, breaker, telemetry, postgres";
    for (name, path) in [("APP_LOCKS_MEMORYTTL", "memoryttl"), ("APP_LOCKS_POOL_SIZE", "pool_size")] {
        assert_eq!(faults(&vars(&[("APP_LOCKS_PROVIDER", "memory"), (name, "5")])), format!("invalid {path} ({known}"));
    }
    let typed = vars(&[("APP_LOCKS_PROVIDER", "memory"), ("APP_LOCKS_MEMORY_TTL", "5s")]);
    assert_eq!(faults(&typed), "invalid memory.ttl (not shown): unknown; known are scoped_ttl");
}

#[cfg(unix)]
#[test]
fn variable_that_is_no_text_is_refused_by_its_field() {
    use std::os::unix::ffi::OsStringExt;

    let broken = OsString::from_vec(vec![b'5', 0xff]);
    let vars = [("L_PROVIDER".into(), "memory".into()), ("L_MEMORY_SCOPED_TTL".into(), broken)];
    let told = faults(&LockConfig::from_vars("L_", vars));
    assert!(told.starts_with("invalid memory.scoped_ttl (neither text, number nor truth value): "), "{told}");
}

#[test]
fn fields_of_the_environment_go_over_those_of_a_file_one_by_one() {
    let file: LockConfig = toml::from_str("provider = 'noop'\nmemory.scoped_ttl = '10s'").unwrap();
    let vars = [("L_PROVIDER", "memory"), ("L_MEMORY_SCOPED_TTL", "soon")];
    let environment = LockConfig::from_vars("L_", vars.map(|(name, value)| (name.into(), value.into())));
    assert!(faults(&file.clone().overlaid_by(environment)).starts_with("invalid memory.scoped_ttl (\"soon\")"));
    assert_eq!(file.clone().overlaid_by(LockConfig::new("memory")).locker().unwrap().to_string(), "Memory");
    let empty = LockConfig::from_vars("L_", []);
    assert!(file.overlaid_by(empty).locker().unwrap().to_string().starts_with("Noop"));
}

#[test]
fn field_that_is_given_twice_is_refused_when_it_is_read() {
    let twice = serde_json::from_str::<LockConfig>(r#"{ "provider": "memory", "provider": "noop" }"#).unwrap_err();
    assert!(twice.to_string().starts_with("provider is given twice"), "{twice}");
    for text in ["[]", "5", "\"memory\""] {
        let refused = serde_json::from_str::<LockConfig>(text).unwrap_err().to_string();
        assert!(refused.contains("expected a map of settings"), "{refused}");
    }
}
