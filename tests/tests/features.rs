//! Each crate's README has a table of its cargo features, and the table is that of its manifest. The last tests show the rule
//! planted breaches.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its input has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const HEADER: &str = "| feature | adds | default |";

/// Each feature, and whether it is on by default.
type Features = BTreeMap<String, bool>;

/// The features of a package as `cargo metadata` prints it. `default` is none: it says which of the others are on.
fn of_manifest(package: &Value) -> Features {
    let features = package["features"].as_object().unwrap();
    let mut on = BTreeSet::new();
    let mut open = vec!["default"];
    while let Some(feature) = open.pop() {
        let enables = features.get(feature).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        open.extend(enables.filter(|enabled| features.contains_key(*enabled) && on.insert(*enabled)));
    }
    features.keys().filter(|name| *name != "default").map(|name| (name.clone(), on.contains(name.as_str()))).collect()
}

/// The rows of the table, or what is wrong with them.
fn of_readme(readme: &str) -> Result<Features, String> {
    let mut lines = readme.lines().skip_while(|line| *line != HEADER).skip(1);
    if lines.next() != Some("|---|---|---|") {
        return Err(format!("there is no table under {HEADER}"));
    }
    let mut features = Features::new();
    for line in lines.take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let &[name, adds, default] = cells.as_slice() else { return Err(format!("not three cells: {line}")) };
        let on = match default {
            "yes" => true,
            "no" => false,
            _ => return Err(format!("neither yes nor no: {line}")),
        };
        let name = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')).unwrap_or("");
        if name.is_empty() || adds.is_empty() || features.insert(name.to_owned(), on).is_some() {
            return Err(format!("no name, no text, or a second time: {line}"));
        }
    }
    Ok(features)
}

/// What the README of a crate gets wrong. One without features needs no table.
fn breach(package: &Value, readme: Option<&str>) -> Option<String> {
    let manifest = of_manifest(package);
    let Some(readme) = readme else { return Some("there is no README.md".to_owned()) };
    match of_readme(readme) {
        Ok(table) if table == manifest => None,
        Ok(table) => Some(format!("the table says {table:?}, the manifest {manifest:?}")),
        Err(_none) if manifest.is_empty() && !readme.contains("| feature |") => None,
        Err(why) => Some(why),
    }
}

#[test]
fn readme_of_every_crate_names_its_features_and_their_defaults() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut crates = 0;
    let mut breaches = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        if folder.parent().unwrap().file_name().unwrap() == "crates" {
            crates += 1;
            let readme = std::fs::read_to_string(folder.join("README.md")).ok();
            breaches.extend(breach(package, readme.as_deref()).map(|why| format!("{}: {why}", package["name"])));
        }
    }
    assert!(crates >= 4, "only {crates} crates were read");
    assert_eq!(breaches, [""; 0]);
}

/// A crate with one feature that is on, because another one is, and one that is off.
fn planted(rows: &str) -> Option<String> {
    let package = serde_json::json!({ "features": { "default": ["all"], "all": ["tls", "dep:x"], "tls": ["x/tls"], "slow": [] } });
    breach(&package, Some(&format!("# x\n\n{HEADER}\n|---|---|---|\n{rows}\nMore.\n")))
}

#[test]
fn planted_table_that_is_right_is_fine() {
    assert_eq!(planted("| `all` | a | yes |\n| `slow` | b | no |\n| `tls` | c | yes |\n"), None);
}

#[test]
fn planted_table_that_is_wrong_is_found() {
    for rows in [
        "",
        "| none yet | | |\n",
        "| `all` | a | yes |\n| `slow` | b | no |\n",
        "| `all` | a | yes |\n| `slow` | b | no |\n| `tls` | c | no |\n",
        "| `all` | a | yes |\n| `slow` | b | no |\n| `tls` | c | yes |\n| `more` | d | no |\n",
        "| `all` | a | yes |\n| `slow` | b | off |\n| `tls` | c | yes |\n",
        "| `all` | a | yes |\n| `slow` |  | no |\n| `tls` | c | yes |\n",
        "| all | a | yes |\n| slow | b | no |\n| tls | c | yes |\n",
        "| `all` | a | yes |\n| `slow` | b | no |\n| `slow` | b | no |\n| `tls` | c | yes |\n",
    ] {
        assert!(planted(rows).is_some(), "{rows}");
    }
}

#[test]
fn crate_without_features_needs_no_table_but_a_readme() {
    let package = serde_json::json!({ "features": {} });
    assert_eq!(breach(&package, Some("# x\n")), None);
    assert!(breach(&package, Some(&format!("{HEADER}\n|---|---|---|\n| `more` | d | no |\n"))).is_some());
    assert!(breach(&package, None).is_some());
}
