use serde_json::{Value, from_value, json};

use super::*;

const CANARY: &str = "canary-3f9c";
const CANARY_DIGITS: &str = "ca4a57ca4a57ca4a57ca4a57ca4a57ca";

fn read(json: Value) -> Settings {
    from_value::<PostgresConfig>(json).unwrap().settings().unwrap()
}

fn refusal(json: Value) -> String {
    from_value::<PostgresConfig>(json).unwrap_err().to_string()
}

#[test]
fn an_empty_file_is_the_defaults_and_so_is_null() {
    let nulls = json!({
        "url": null, "password_file": null, "namespace": null, "pool_size": null, "conn_wait_timeout": null, "close_timeout": null,
        "heartbeat_interval": null, "query_timeout": null, "session_ttl": null, "fencing": null,
        "fencing_epoch": null, "key_scheme": null, "key_secret": null,
    });
    for settings in [read(json!({})), read(nulls), PostgresConfig::for_pool().settings().unwrap()] {
        assert_eq!(settings.namespace, 0);
        assert_eq!(settings.pool_size, 8);
        assert_eq!(settings.conn_wait, Some(Duration::from_secs(5)));
        assert_eq!(settings.close_timeout, Duration::from_secs(10));
        assert_eq!(settings.session, Timing::for_session(None, None, None).unwrap());
        assert_eq!((settings.heartbeat, settings.query_timeout), (None, None));
        assert!(settings.fencing);
        assert_eq!(settings.epoch, 0);
        assert_eq!(settings.keys, KeyScheme::SipHash);
    }
    assert_eq!(PostgresConfig::for_pool().url(), None);
    assert!(PostgresConfig::for_pool().password().unwrap().is_none());
}

#[test]
fn a_file_and_the_methods_give_the_same_settings() {
    let from_file: PostgresConfig = from_value(json!({
        "url": "postgres://app@db/app", "password_file": "/run/secrets/db", "namespace": -7, "pool_size": 3, "conn_wait_timeout": "250ms",
        "close_timeout": "1m 30s", "heartbeat_interval": "1s", "query_timeout": "2s", "session_ttl": "5s",
        "fencing": false, "fencing_epoch": 255, "key_scheme": "siphash", "key_secret": "000102030405060708090a0B0c0D0e0F",
    }))
    .unwrap();
    let built = PostgresConfig::from_url("postgres://app@db/app")
        .with_password_file("/run/secrets/db")
        .with_namespace(-7)
        .with_pool_size(3)
        .with_conn_wait_timeout(Duration::from_millis(250))
        .with_close_timeout(Duration::from_secs(90))
        .with_heartbeat_interval(Duration::from_secs(1))
        .with_query_timeout(Duration::from_secs(2))
        .with_session_ttl(Duration::from_secs(5))
        .with_fencing(Fencing::Off)
        .with_fencing_epoch(255)
        .with_key_scheme(KeyScheme::SipHashWithSecret([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]));
    for config in [&from_file, &built] {
        assert_eq!(config.url(), Some("postgres://app@db/app"));
        assert_eq!(config.password().unwrap().unwrap().to_string(), "password_file \"/run/secrets/db\"");
        let settings = config.settings().unwrap();
        assert_eq!(settings.namespace, -7);
        assert_eq!(settings.pool_size, 3);
        assert_eq!(settings.conn_wait, Some(Duration::from_millis(250)));
        assert_eq!(settings.close_timeout, Duration::from_secs(90));
        assert_eq!(settings.session.ttl(), Duration::from_secs(5));
        assert_eq!(settings.heartbeat, Some(Duration::from_secs(1)));
        assert_eq!(settings.query_timeout, Some(Duration::from_secs(2)));
        assert!(!settings.fencing);
        assert_eq!(settings.epoch, 255);
        assert!(settings.keys == built.key_scheme);
    }
}

#[test]
fn a_wait_for_ever_can_be_said_in_a_file_and_in_code() {
    assert_eq!(read(json!({ "conn_wait_timeout": "forever" })).conn_wait, None);
    assert_eq!(PostgresConfig::for_pool().with_conn_wait_forever().settings().unwrap().conn_wait, None);
    assert!(refusal(json!({ "close_timeout": "forever" })).contains("close_timeout"));
}

#[test]
fn the_other_scheme_and_the_switch_of_fencing_are_read() {
    assert_eq!(read(json!({ "key_scheme": "fnv1a" })).keys, KeyScheme::Fnv1a);
    assert!(read(json!({ "fencing": true })).fencing);
    assert!(PostgresConfig::for_pool().with_fencing(Fencing::Default).settings().unwrap().fencing);
}

#[test]
fn the_text_of_an_environment_variable_is_read_as_number_and_truth_value() {
    let settings =
        read(json!({ "namespace": "-2147483648", "pool_size": "3", "fencing": "false", "fencing_epoch": "9" }));
    assert_eq!((settings.namespace, settings.pool_size, settings.epoch), (i32::MIN, 3, 9));
    assert!(!settings.fencing);
}

#[test]
fn a_duration_without_a_unit_is_refused_with_the_field_and_the_rule() {
    let fields = ["conn_wait_timeout", "close_timeout", "heartbeat_interval", "query_timeout", "session_ttl"];
    for field in fields {
        for value in
            [json!(5), json!(5.5), json!("5"), json!("0"), json!(""), json!("-5s"), json!("5 lightyears"), json!([5])]
        {
            let refused = refusal(json!({ field: value }));
            assert!(refused.starts_with(&format!("invalid {field} (")), "{refused}");
            assert!(refused.contains("must be text with a unit, such as \"5s\" or \"250ms\""), "{refused}");
            assert!(value.is_array() || refused.contains(&format!("({value})")), "{refused}");
        }
    }
}

#[test]
fn an_unknown_field_is_refused_by_its_name_and_its_value_is_not_shown() {
    let refused = refusal(json!({ "pool_sise": CANARY }));
    assert!(
        refused.starts_with("invalid pool_sise (not shown): unknown; known are url, password_file, namespace,"),
        "{refused}"
    );
    assert!(!refused.contains(CANARY));
}

#[test]
fn a_value_of_the_wrong_type_or_range_is_refused_with_the_field_and_the_rule() {
    let cases = [
        (json!({ "password_file": 5 }), "invalid password_file (5): must be the path of a file"),
        (json!({ "password_file": "" }), "invalid password_file (empty): must be the path of a file"),
        (json!({ "password_callback": "x" }), "invalid password_callback (not shown): unknown; known are"),
        (json!({ "namespace": 2_147_483_648_u64 }), "invalid namespace (2147483648): must be a 32-bit number"),
        (json!({ "namespace": "x" }), "invalid namespace (\"x\"): must be a 32-bit number"),
        (json!({ "pool_size": 0 }), "invalid pool_size (0): must be 1 to 1000 connections"),
        (json!({ "pool_size": 1001 }), "invalid pool_size (1001): must be 1 to 1000 connections"),
        (json!({ "pool_size": -1 }), "invalid pool_size (-1): must be 1 to 1000 connections"),
        (json!({ "pool_size": 1.5 }), "invalid pool_size (1.5): must be 1 to 1000 connections"),
        (json!({ "fencing": "on" }), "invalid fencing (\"on\"): must be true or false"),
        (json!({ "fencing_epoch": 256 }), "invalid fencing_epoch (256): must be 0 to 255"),
        (json!({ "key_scheme": "sip" }), "invalid key_scheme (\"sip\"): must be \"siphash\" or \"fnv1a\""),
        (json!({ "key_scheme": {} }), "invalid key_scheme (neither text, number nor truth value)"),
        (
            json!({ "conn_wait_timeout": "0s" }),
            "invalid conn_wait_timeout (0ns): must be at least 1ms and at most 24 days, or",
        ),
        (json!({ "conn_wait_timeout": "25days" }), "invalid conn_wait_timeout (2160000s): must be at least 1ms and"),
        (
            json!({ "close_timeout": "999us" }),
            "invalid close_timeout (999µs): must be at least 1ms and at most 24 days",
        ),
        (json!({ "heartbeat_interval": "0s" }), "invalid heartbeat_interval (0ns): must be at least 1ms"),
        (json!({ "query_timeout": "0s" }), "invalid query_timeout (0ns): must be at least 1ms"),
        (json!({ "session_ttl": "999ms" }), "invalid session_ttl (999ms): must be at least 1s"),
        (json!({ "session_ttl": "16s" }), "a session_ttl of 17s would do"),
    ];
    for (json, expected) in cases {
        let refused = refusal(json);
        assert!(refused.contains(expected), "{refused}");
    }
    assert!(refusal(json!(5)).contains("a map of settings"));
}

#[test]
fn every_fault_is_named_in_one_error() {
    let text = refusal(json!({ "pool_size": "x", "close_timeout": 5, "fencing_epoch": -1 }));
    assert!(text.starts_with("invalid configuration (3 faults): "), "{text}");
    assert!(["pool_size", "close_timeout", "fencing_epoch"].iter().all(|field| text.contains(field)), "{text}");
    let text = refusal(json!({
        "url": "postgres://app@db/app?sslmode=x", "pool_size": 0, "sise": 1, "session_ttl": "2s", "query_timeout": "3s",
    }));
    assert!(text.starts_with("invalid configuration (4 faults): "), "{text}");
    assert!(text.contains("invalid url: connection parameter sslmode (x): "), "{text}");
    assert!(
        ["invalid pool_size (0)", "invalid sise (", "invalid session_ttl (2s)"]
            .iter()
            .all(|fault| text.contains(fault))
    );
    let config = PostgresConfig::for_pool().with_pool_size(0).with_conn_wait_timeout(Duration::ZERO);
    let text =
        config.with_close_timeout(Duration::MAX).with_session_ttl(Duration::ZERO).settings().unwrap_err().to_string();
    assert!(text.starts_with("invalid configuration (4 faults): "), "{text}");
    let fields = ["pool_size", "conn_wait_timeout", "close_timeout", "session_ttl"];
    assert!(fields.iter().all(|field| text.contains(&format!("invalid {field} ("))), "{text}");
}

#[test]
fn a_secret_is_shown_neither_by_debug_nor_by_an_error() {
    let url = format!("postgres://app:{CANARY}@db/app");
    let config: PostgresConfig = from_value(json!({ "url": url, "key_secret": CANARY_DIGITS })).unwrap();
    let mut texts = vec![format!("{config:?} {config:#?} {:?}", config.settings().unwrap())];
    assert!(texts[0].contains("<redacted>"));
    texts.push(refusal(json!({ "url": url, "key_secret": CANARY_DIGITS, "pool_size": 0 })));
    texts.push(refusal(json!({ "url": [url], "key_secret": [CANARY_DIGITS] })));
    texts.push(refusal(json!({ "url": { CANARY: CANARY } })));
    texts.push(refusal(json!({ "key_secret": format!("{CANARY_DIGITS}ff") })));
    for malformed in [CANARY, &CANARY_DIGITS[1..], &format!("+{}", &CANARY_DIGITS[1..]), ""] {
        let refused = refusal(json!({ "key_secret": malformed }));
        assert!(refused.contains("invalid key_secret (not shown): must be 32 hexadecimal digits"), "{refused}");
        texts.push(refused);
    }
    texts.push(refusal(json!({ "key_scheme": "fnv1a", "key_secret": CANARY_DIGITS })));
    texts.push(refusal(json!({ "url": url, "key_scheme": "x", "key_secret": CANARY_DIGITS })));
    // Debug of a byte array would be decimal.
    for canary in [CANARY, CANARY_DIGITS, "ca4a57", "202, 74"] {
        assert!(texts.iter().all(|text| !text.contains(canary)), "{texts:#?}");
    }
    assert!(refusal(json!({ "url": 20274 })) == "invalid url (not shown): must be text");
    assert!(refusal(json!({ "key_secret": 20274 })) == "invalid key_secret (not shown): must be text");
}

async fn token() -> Result<String, std::io::Error> {
    Ok(CANARY.to_owned())
}

#[test]
fn two_sources_of_the_password_are_refused_by_their_names_and_shown_by_debug() {
    let config = PostgresConfig::from_url("postgres://app@db/app");
    let [file, callback] = [config.clone().with_password_file("/x"), config.clone().with_password_callback(token)];
    let both = file.clone().with_password_callback(token).with_pool_size(0);
    let text = both.settings().unwrap_err().to_string();
    assert!(text.contains("by password_file and by password_callback"), "{text}");
    assert!(text.contains("invalid pool_size"), "one error names every fault: {text}");
    for (config, shown) in [
        (&config, "password_file: None, password_callback: None"),
        (&file, "password_file: Some(\"/x\"), password_callback: None"),
        (&callback, "password_file: None, password_callback: Some(<code>)"),
        (&both, "password_file: Some(\"/x\"), password_callback: Some(<code>)"),
    ] {
        assert!(format!("{config:?}").contains(shown), "{config:?}");
    }
}

#[test]
fn hand_over_is_off_and_the_watchdog_on_unless_set() {
    let both = |settings: Settings| (settings.hand_over, settings.watchdog);
    assert_eq!(both(read(json!({ "hand_over": null, "watchdog": null }))), (false, true));
    assert_eq!(both(PostgresConfig::for_pool().settings().unwrap()), (false, true));
    assert_eq!(both(read(json!({ "hand_over": true, "watchdog": "false" }))), (true, false));
    let built = PostgresConfig::for_pool().with_hand_over(true).with_watchdog(false);
    assert!(format!("{built:?}").contains("hand_over: true, watchdog: false"));
    assert_eq!(both(built.settings().unwrap()), (true, false));
    assert_eq!(refusal(json!({ "hand_over": "on" })), "invalid hand_over (\"on\"): must be true or false");
    assert_eq!(refusal(json!({ "watchdog": 1 })), "invalid watchdog (1): must be true or false");
}
