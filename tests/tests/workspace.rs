//! The rules that every manifest of this workspace keeps, read from `cargo metadata` and from the manifests themselves.
//! Each rule is a function from its input to the breaches it finds, so that the last tests can show it a planted breach.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its input has failed")]

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// What a package may ask for without giving a reason.
const RUST_VERSION: &str = "1.85";

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--all-features", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The workspace's own packages: those that come from no registry.
fn own(metadata: &Value) -> Vec<&Value> {
    let members: BTreeSet<_> = items(&metadata["workspace_members"]).iter().map(text).collect();
    items(&metadata["packages"]).iter().filter(|package| members.contains(text(&package["id"]))).collect()
}

fn manifests(metadata: &Value) -> Vec<(String, String)> {
    let read = |package: &Value| {
        let path = text(&package["manifest_path"]);
        (text(&package["name"]).to_owned(), std::fs::read_to_string(path).unwrap())
    };
    own(metadata).into_iter().map(read).collect()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

/// A version as numbers, so that 1.100 is newer than 1.85.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap()).collect()
}

/// Packages that could be published, or that leave edition, licence or `rust-version` to chance.
fn careless(metadata: &Value) -> Vec<String> {
    let mut breaches = Vec::new();
    for package in own(metadata) {
        let name = text(&package["name"]);
        let mut rule = |holds: bool, what: &str| {
            if !holds {
                breaches.push(format!("{name}: {what}"));
            }
        };
        rule(package["publish"] == json!([]), "publish is not false");
        rule(package["edition"] == "2024", "edition is not 2024");
        rule(package["license"] == "MIT OR Apache-2.0", "license is not MIT OR Apache-2.0");
        rule(package["rust_version"].is_string(), "rust-version is missing");
    }
    breaches
}

/// Whether the manifest turns the workspace's lints on.
fn takes_lints(manifest: &str) -> bool {
    let mut section = "";
    manifest.lines().map(str::trim).any(|line| {
        if line.starts_with('[') {
            section = line;
        }
        section == "[lints]" && line == "workspace = true"
    })
}

/// Whether the manifest's `rust-version` is the common one, or has a comment on its line or on the line above.
fn explains_rust_version(manifest: &str) -> bool {
    let lines: Vec<_> = manifest.lines().map(str::trim).collect();
    let Some(at) = lines.iter().position(|line| line.starts_with("rust-version")) else { return false };
    let common = lines[at].contains(&format!("\"{RUST_VERSION}\""));
    common || lines[at].contains('#') || (at > 0 && lines[at - 1].starts_with('#'))
}

/// Packages that `root` needs to be built (not to be tested) and that ask for a newer Rust than `root` does.
fn too_new(metadata: &Value, root: &str) -> Vec<String> {
    let by_id = |key| move |value: &'_ Value| text(&value[key]).to_owned();
    let packages: BTreeMap<_, _> = items(&metadata["packages"]).iter().map(|p| (by_id("id")(p), p)).collect();
    let nodes: BTreeMap<_, _> = items(&metadata["resolve"]["nodes"]).iter().map(|n| (by_id("id")(n), n)).collect();
    let root = own(metadata).into_iter().find(|package| package["name"] == root).unwrap();
    let promised = text(&root["rust_version"]);

    let mut breaches = Vec::new();
    let mut seen = BTreeSet::new();
    let mut open = vec![text(&root["id"]).to_owned()];
    while let Some(id) = open.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let package = packages[&id];
        if let Some(asked) = package["rust_version"].as_str()
            && numbers(asked) > numbers(promised)
        {
            let (name, version) = (text(&package["name"]), text(&package["version"]));
            breaches.push(format!("{name} {version} asks for Rust {asked}, newer than {promised}"));
        }
        let needed = items(&nodes[&id]["deps"]).iter().filter(|dep| items(&dep["dep_kinds"]).iter().any(not_dev));
        open.extend(needed.map(|dep| text(&dep["pkg"]).to_owned()));
    }
    assert!(seen.len() > 1, "the walk from {promised} found no dependency");
    breaches
}

fn not_dev(dependency: &Value) -> bool {
    dependency["kind"] != "dev"
}

/// Dependencies between our own packages that point the wrong way, and registry crates that carry one of our names.
fn wrong_arrows(metadata: &Value) -> Vec<String> {
    let names: BTreeSet<_> = own(metadata).into_iter().map(|package| text(&package["name"])).collect();
    let mut breaches = Vec::new();
    for package in own(metadata) {
        let name = text(&package["name"]);
        for dependency in items(&package["dependencies"]) {
            let to = text(&dependency["name"]);
            if !names.contains(to) {
                continue;
            }
            if !dependency["source"].is_null() {
                breaches.push(format!("{name} takes {to} from a registry: that one is another project"));
            }
            if name == "distributed-lock" && not_dev(dependency) {
                breaches.push(format!("the core depends on {to}"));
            }
            // Package `tests` only tests, and its measuring programs need the kit outside `#[cfg(test)]`; so do examples that start
            // a server of their own. Nothing is built on either.
            if to == "lock-testkit" && !matches!(name, "tests" | "examples") && not_dev(dependency) {
                breaches.push(format!("{name} depends on the kit outside its tests"));
            }
        }
    }
    breaches
}

#[test]
fn every_package_is_private_and_states_edition_licence_and_rust_version() {
    assert_eq!(careless(&metadata()), [""; 0]);
}

#[test]
fn every_package_takes_the_workspace_lints() {
    for (name, manifest) in manifests(&metadata()) {
        assert!(takes_lints(&manifest), "{name} has no [lints] workspace = true");
    }
}

#[test]
fn rust_version_above_the_common_one_has_its_reason_beside_it() {
    for (name, manifest) in manifests(&metadata()) {
        assert!(explains_rust_version(&manifest), "{name}: rust-version is not {RUST_VERSION} and gives no reason");
    }
}

#[test]
fn no_dependency_asks_for_a_newer_rust_than_its_dependent() {
    let metadata = metadata();
    for root in ["distributed-lock", "lock-connect", "lock-postgres"] {
        assert_eq!(too_new(&metadata, root), [""; 0], "{root}");
    }
}

#[test]
fn dependencies_point_to_the_core_and_to_the_kit_from_tests_only() {
    assert_eq!(wrong_arrows(&metadata()), [""; 0]);
}

/// Two members, `distributed-lock` and `lock-x`, and one registry crate that only the dependency kind `kind` reaches.
fn planted(kind: Value) -> Value {
    let member = |name: &str, dependencies: Value| {
        json!({"id": name, "name": name, "version": "0.1.0", "publish": [], "edition": "2024",
               "license": "MIT OR Apache-2.0", "rust_version": "1.85", "dependencies": dependencies})
    };
    let dep = |pkg: &str, kind: &Value| json!({"pkg": pkg, "dep_kinds": [{"kind": kind}]});
    json!({
        "workspace_members": ["distributed-lock", "lock-x"],
        "packages": [
            member("distributed-lock", json!([])),
            member("lock-x", json!([{"name": "distributed-lock", "kind": null, "source": null}])),
            {"id": "old", "name": "old", "version": "1.0.0", "rust_version": "1.9"},
            {"id": "new", "name": "new", "version": "2.0.0", "rust_version": "1.100.0"},
        ],
        "resolve": {"nodes": [
            {"id": "distributed-lock", "deps": [dep("old", &Value::Null)]},
            {"id": "lock-x", "deps": [dep("distributed-lock", &Value::Null)]},
            {"id": "old", "deps": [dep("new", &kind)]},
            {"id": "new", "deps": []},
        ]},
    })
}

#[test]
fn planted_dependency_that_is_too_new_is_found_unless_only_tests_need_it() {
    let found = ["new 2.0.0 asks for Rust 1.100.0, newer than 1.85"];
    assert_eq!(too_new(&planted(Value::Null), "lock-x"), found);
    assert_eq!(too_new(&planted(json!("build")), "lock-x"), found);
    assert_eq!(too_new(&planted(json!("dev")), "lock-x"), [""; 0]);
}

#[test]
fn planted_careless_package_is_found() {
    let mut metadata = planted(Value::Null);
    assert_eq!(careless(&metadata), [""; 0]);
    for (field, value) in [("publish", Value::Null), ("edition", json!("2021")), ("license", json!("MIT"))] {
        metadata["packages"][0][field] = value;
    }
    metadata["packages"][0]["rust_version"] = Value::Null;
    let found = careless(&metadata);
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found.iter().all(|breach| breach.starts_with("distributed-lock: ")), "{found:?}");
}

#[test]
fn planted_wrong_arrows_are_found() {
    let mut metadata = planted(Value::Null);
    assert_eq!(wrong_arrows(&metadata), [""; 0]);
    metadata["packages"][1]["name"] = json!("lock-testkit");
    metadata["packages"][0]["dependencies"] = json!([{"name": "lock-testkit", "kind": "dev", "source": null}]);
    assert_eq!(wrong_arrows(&metadata), [""; 0], "the core's own tests may use the kit");
    metadata["packages"][0]["dependencies"] = json!([{"name": "lock-testkit", "kind": null, "source": "registry+x"}]);
    assert_eq!(wrong_arrows(&metadata).len(), 3, "{:?}", wrong_arrows(&metadata));
}

#[test]
fn manifest_rules_tell_good_from_bad() {
    assert!(takes_lints("[package]\n[lints]\nworkspace = true\n"));
    assert!(!takes_lints("[package]\n[lints.rust]\n[dependencies.x]\nworkspace = true\n"));
    assert!(explains_rust_version("rust-version = \"1.85\""));
    assert!(explains_rust_version("# serde_json asks for it.\nrust-version = \"1.90\""));
    assert!(explains_rust_version("rust-version = \"1.90\" # serde_json asks for it"));
    assert!(!explains_rust_version("[package]\nrust-version = \"1.90\""));
    assert!(!explains_rust_version("rust-version.workspace = true"));
    assert!(!explains_rust_version("[package]\nname = \"x\""));
}
