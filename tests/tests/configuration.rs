//! `docs/configuration.md` has a row for every field that `LockConfig` knows, and none for others. What it knows it says itself, when
//! it refuses a field that does not exist.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its input has failed")]

use std::collections::BTreeSet;
use std::error::Error as _;

use lock_connect::LockConfig;
use serde_json::json;

/// The parts that have rows of their own, each with a provider that chooses it.
const PARTS: [(&str, &str); 4] =
    [("memory", "memory"), ("postgres", "postgres://app@db/app"), ("breaker", "memory"), ("telemetry", "memory")];

/// The fields that a refusal lists, with their paths.
fn known() -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    for (part, provider) in PARTS {
        let config = json!({ "provider": provider, "nonsense": 1, part: { "nonsense": 1 } });
        let config: LockConfig = serde_json::from_value(config).unwrap();
        let refused = config.locker().unwrap_err().source().unwrap().to_string();
        for fault in refused.split("; invalid ") {
            let Some((what, fields)) = fault.split_once(" (not shown): unknown; known are ") else { continue };
            let what = what.rsplit(' ').next().unwrap();
            let path = what.strip_suffix("nonsense").unwrap();
            known.extend(fields.split(", ").map(|field| format!("{path}{field}")));
        }
    }
    let parts = PARTS.map(|(part, _)| part);
    known.into_iter().filter(|field| !parts.contains(&field.as_str())).collect()
}

/// The first cells of the table of fields.
fn documented(page: &str) -> BTreeSet<String> {
    let rows = page.lines().skip_while(|line| *line != "| field | default | rule |").skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('`').nth(1).unwrap().to_owned()).collect()
}

#[test]
fn documented_fields_are_those_that_are_known() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md")).unwrap();
    let known = known();
    assert!(known.len() > 10 && known.contains("provider") && known.contains("postgres.pool_size"), "{known:?}");
    assert_eq!(documented(&page), known);
}

#[test]
fn planted_table_is_read_to_its_end_and_no_further() {
    let page = "x\n\n| field | default | rule |\n|---|---|---|\n| `a.b` | `\"1s\"` | c |\n| `d` | e | f |\n\n| `g` | h | i |\n";
    assert_eq!(documented(page), BTreeSet::from(["a.b".to_owned(), "d".to_owned()]));
    assert_eq!(documented("| `g` | h | i |\n"), BTreeSet::new());
}
