//! What a configuration gives, and how it is read and refused.

#![cfg(feature = "serde")]
#![expect(clippy::unwrap_used, reason = "a test whose own steps fail has failed")]

use std::{ffi::OsString, time::Duration};

use distributed_lock::{InvalidInput, backend::Fields};
use serde_json::{Value, json};

fn fields(json: Value) -> Fields {
    serde_json::from_value(json).unwrap()
}

fn from_vars(vars: &[(&str, &str)]) -> Fields {
    let vars = vars.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    Fields::from_vars("L_", &["part"], vars)
}

/// What is refused when a field is read this way.
fn refusal<T>(value: &Value, read: impl FnOnce(&mut Fields) -> Option<T>) -> Option<String> {
    let mut fields = fields(json!({ "field": value }));
    let given = read(&mut fields).is_some();
    assert_eq!(fields.has_refused("field"), !given);
    let refused = fields.finish().err().map(|invalid| invalid.to_string());
    assert_eq!(refused.is_none(), given);
    refused
}

#[test]
fn values_are_read_as_their_types_and_as_text() {
    let mut fields = fields(json!({
        "whole": 7, "whole_text": "-7", "share": 0.5, "share_whole": 1, "share_text": "0.25", "on": true, "off_text": "false",
        "pause": "1m 30s", "text": "x", "secret": "y", "word": "slow", "null": null,
    }));
    assert_eq!((fields.integer("whole", ""), fields.integer("whole_text", "")), (Some(7_u8), Some(-7_i64)));
    let shares = ["share", "share_whole", "share_text"].map(|field| fields.number(field, ""));
    assert_eq!(shares, [Some(0.5), Some(1.0), Some(0.25)]);
    assert_eq!((fields.flag("on"), fields.flag("off_text")), (Some(true), Some(false)));
    assert_eq!(fields.duration("pause"), Some(Duration::from_secs(90)));
    assert_eq!((fields.text("text", ""), fields.secret("secret")), (Some("x".into()), Some("y".into())));
    assert_eq!(fields.choice("word", &["fast", "slow"]), Some("slow"));
    assert!(!fields.has("null") && fields.flag("null").is_none() && fields.part("absent").is_none());
    fields.finish().unwrap();
}

#[test]
fn wrong_value_is_refused_with_field_value_and_rule() {
    let other = "neither text, number nor truth value";
    for (value, shown) in [
        (json!(300), "300"),
        (json!(-1), "-1"),
        (json!(1.5), "1.5"),
        (json!(u64::MAX), "18446744073709551615"),
        (json!("x\u{7}"), r#""x\u{7}""#),
        (json!(true), "true"),
        (json!([1]), other),
        (json!({ "a": 1 }), other),
    ] {
        let refused = refusal(&value, |fields| fields.integer::<u8>("field", "must fit"));
        assert_eq!(refused, Some(format!("invalid field ({shown}): must fit")));
    }
    for value in [json!("NaN"), json!("inf"), json!("x"), json!(true), json!([])] {
        assert!(refusal(&value, |fields| fields.number("field", "must fit")).is_some(), "{value}");
    }
    for value in [json!(5), json!("5"), json!("0"), json!(""), json!("-5s"), json!("5 lightyears"), json!(true)] {
        assert!(refusal(&value, |fields| fields.duration("field")).is_some(), "{value}");
    }
    for value in [json!(1), json!("yes"), json!("TRUE"), json!("")] {
        assert!(refusal(&value, |fields| fields.flag("field")).is_some(), "{value}");
    }
    for value in [json!(5), json!(["canary"]), json!({ "canary": 1 })] {
        let refused = refusal(&value, |fields| fields.secret("field"));
        assert_eq!(refused.as_deref(), Some("invalid field (not shown): must be text"));
    }
    let refused = refusal(&json!("canary"), |fields| fields.part("field")).unwrap();
    assert_eq!(refused, "invalid field (not shown): must be a map of settings, or true for the defaults");
}

#[test]
fn every_fault_and_every_unknown_field_is_in_one_error() {
    let mut fields = fields(json!({ "size": "x", "share": "y", "sise": "canary", "null": null, "a b": "canary" }));
    assert_eq!((fields.integer::<u8>("size", "must fit"), fields.number("share", "must fit")), (None, None));
    assert_eq!(fields.check::<()>(Err(InvalidInput::new("both", 2, "must differ"))), None);
    let told = fields.finish().unwrap_err().to_string();
    let lines: Vec<_> = told.split("; invalid").collect();
    assert_eq!(lines[0], "invalid configuration (6 faults): invalid size (\"x\"): must fit");
    assert_eq!(lines[1..3], [" share (\"y\"): must fit", " both (2): must differ"]);
    let unknown = |name| format!(" {name} (not shown): unknown; known are size, share");
    assert_eq!(lines[3..], [unknown("field"), unknown("null"), unknown("sise")], "a name that is no name is not shown");
}

#[test]
fn part_has_fields_of_its_own_and_can_be_switched_on_and_off() {
    let mut given = fields(json!({ "on": true, "off": "false", "part": { "size": 8, "pool": { "deep": 1 } } }));
    given.part("on").unwrap().finish().unwrap();
    assert!(given.part("off").is_none() && !given.has_refused("off"));
    let mut part = given.part("part").unwrap();
    assert_eq!(part.integer("size", ""), Some(8));
    assert_eq!(part.part("pool").unwrap().integer("deep", ""), Some(1));
    part.finish().unwrap();
    given.finish().unwrap();
}

#[test]
fn part_of_the_environment_is_switched_whatever_the_order_of_its_variables() {
    let size = |fields: &mut Fields| fields.part("part").map(|mut part| part.integer("size", ""));
    for (switch, expected) in [("true", Some(Some(8))), ("false", None)] {
        let vars = [("L_PART", switch), ("L_PART_SIZE", "8")];
        assert_eq!(size(&mut from_vars(&vars)), expected);
        assert_eq!(size(&mut from_vars(&[vars[1], vars[0]])), expected);
    }
    assert_eq!(size(&mut from_vars(&[("L_PART", "true")])), Some(None));
    assert_eq!(size(&mut from_vars(&[("L_PARTSIZE", "8"), ("OTHER_PART_SIZE", "8")])), None);
}

#[test]
fn overlay_goes_field_by_field_and_switches_whole_parts() {
    let file = || fields(json!({ "size": 1, "part": { "size": 1, "limit": 1 } }));
    let read = |over: Value| {
        let mut under = file();
        under.overlay(fields(over));
        let of = |part: &mut Fields, field| part.integer::<i64>(field, "");
        let part = under.part("part").map(|mut part| (of(&mut part, "size"), of(&mut part, "limit")));
        (under.integer::<i64>("size", ""), part)
    };
    assert_eq!(read(json!({})), (Some(1), Some((Some(1), Some(1)))));
    assert_eq!(read(json!({ "size": 2, "part": { "limit": 2 } })), (Some(2), Some((Some(1), Some(2)))));
    assert_eq!(read(json!({ "part": true })), (Some(1), Some((Some(1), Some(1)))));
    assert_eq!(read(json!({ "size": null, "part": false })), (None, None));
}

#[test]
fn debug_shows_names_and_no_value() {
    let fields = fields(json!({ "url": "canary", "part": { "key": "canary", "n": null }, "a canary": 5 }));
    let text = format!("{fields:?}");
    assert!(text.contains("url") && text.contains("key") && !text.contains("canary"), "{text}");
}

#[test]
fn what_is_no_map_or_has_a_field_twice_is_refused_by_the_format() {
    for text in ["5", "[]", "\"canary\"", "null"] {
        let refused = serde_json::from_str::<Fields>(text).unwrap_err().to_string();
        assert!(refused.contains("expected a map of settings"), "{refused}");
    }
    let twice =
        serde_json::from_str::<Fields>(r#"{ "part": { "a": "canary", "a": "canary" } }"#).unwrap_err().to_string();
    assert!(twice.starts_with("a is given twice") && !twice.contains("canary"), "{twice}");
}
