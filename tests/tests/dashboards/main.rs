//! `docs/grafana/distributed-lock.json` and `docs/alerts.yml` name only series and labels that exist: those that the exporter for
//! Prometheus makes of the one table of metrics. The last tests show the rules planted breaches.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its input has failed")]

mod expression;
mod known;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use distributed_lock::telemetry::Metric;
use expression::Expression;
use known::Known;
use serde_json::{Value, json};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs")).join(path)).unwrap()
}

fn dashboard() -> Value {
    serde_json::from_str(&read("grafana/distributed-lock.json")).unwrap()
}

fn alerts() -> Value {
    serde_saphyr::from_str(&read("alerts.yml")).unwrap()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

/// A panel's expression with the names that its legend uses.
fn targets(dashboard: &Value) -> Vec<(String, Vec<String>)> {
    let targets = items(&dashboard["panels"]).iter().flat_map(|panel| items(&panel["targets"]));
    targets
        .map(|target| (text(&target["expr"]).to_owned(), between(text(&target["legendFormat"]), "{{", "}}")))
        .collect()
}

/// What a dashboard gets wrong.
fn breaches_of_dashboard(dashboard: &Value, known: &Known) -> Vec<String> {
    const SOURCE: &str = "${datasource}";
    let mut breaches = Vec::new();
    for (expression, legend) in targets(dashboard) {
        breaches.extend(known.breaches(&expression, &legend));
    }
    for variable in items(&dashboard["templating"]["list"]).iter().filter(|variable| variable["type"] == "query") {
        let query = text(&variable["query"]);
        let parts = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')?.split_once(", "));
        match parts {
            Some((series, label)) => breaches.extend(known.breaches(&format!("sum by ({label}) ({series})"), &[])),
            None => breaches.push(format!("not understood: {query}")),
        }
    }
    let mut ids = BTreeSet::new();
    for panel in items(&dashboard["panels"]) {
        let title = text(&panel["title"]);
        let is_row = panel["type"] == "row";
        if !ids.insert(panel["id"].as_u64()) {
            breaches.push(format!("{title}: its id is there twice"));
        }
        if !is_row && items(&panel["targets"]).is_empty() {
            breaches.push(format!("{title}: it shows nothing"));
        }
        let sources = items(&panel["targets"]).iter().chain((!is_row).then_some(panel));
        if sources.into_iter().any(|part| part["datasource"]["uid"] != SOURCE) {
            breaches.push(format!("{title}: its data source is not the variable"));
        }
    }
    breaches
}

/// What a file of alerts gets wrong.
fn breaches_of_alerts(alerts: &Value, known: &Known) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut names = BTreeSet::new();
    for rule in items(&alerts["groups"]).iter().flat_map(|group| items(&group["rules"])) {
        let (name, summary) = (text(&rule["alert"]), text(&rule["annotations"]["summary"]));
        if name.is_empty() || !names.insert(name) {
            breaches.push(format!("{name:?} is no name, or there twice"));
        }
        // What happened, and what to do next.
        if summary.split(['.', '?']).filter(|sentence| !sentence.trim().is_empty()).count() < 2 {
            breaches.push(format!("{name}: its summary does not say what to do next"));
        }
        if !["critical", "warning"].contains(&text(&rule["labels"]["severity"])) {
            breaches.push(format!("{name}: no severity"));
        }
        let used: Vec<_> = between(summary, "{{", "}}")
            .iter()
            .filter_map(|inside| inside.trim().strip_prefix("$labels.").map(str::to_owned))
            .collect();
        breaches.extend(known.breaches(text(&rule["expr"]), &used).into_iter().map(|why| format!("{name}: {why}")));
    }
    breaches
}

fn between(text: &str, open: &str, close: &str) -> Vec<String> {
    text.split(open).skip(1).filter_map(|rest| Some(rest.split_once(close)?.0.to_owned())).collect()
}

#[test]
fn dashboard_names_only_series_and_labels_that_exist() {
    let dashboard = dashboard();
    assert!(targets(&dashboard).len() >= Metric::ALL.len());
    assert_eq!(breaches_of_dashboard(&dashboard, &Known::of_exporter()), [""; 0]);
}

#[test]
fn dashboard_shows_every_metric_of_the_table() {
    let shown: BTreeSet<_> =
        targets(&dashboard()).iter().flat_map(|(text, _)| Expression::parse(text).unwrap().series()).collect();
    let is_shown = |metric: &&Metric| {
        let name = metric.row().facade;
        ["", "_bucket", "_count", "_sum"].iter().any(|suffix| shown.contains(&format!("{name}{suffix}")))
    };
    let missing: Vec<_> = Metric::ALL.iter().filter(|metric| !is_shown(metric)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn alerts_name_only_series_and_labels_that_exist_and_say_what_to_do_next() {
    let alerts = alerts();
    assert!(items(&alerts["groups"][0]["rules"]).len() > 10);
    assert_eq!(breaches_of_alerts(&alerts, &Known::of_exporter()), [""; 0]);
}

#[test]
fn planted_breach_of_the_dashboard_is_found() {
    let known = Known::of_exporter();
    let good = dashboard();
    for (from, to, told) in [
        ("lock_waiting{", "lock_waiters{", "no series lock_waiters:"),
        ("lock_wait_duration_seconds_bucket{", "lock_wait_duration_seconds{", "no series lock_wait_duration_seconds:"),
        ("lock_losses_total{", "lock_losses{", "no series lock_losses:"),
        ("(lock_losses_total{lock_backend=", "(lock_losses_total{backend=", "lock_losses_total has no label backend:"),
        ("(lock_class, lock_loss_cause) (lock", "(lock_class, cause) (lock", "lock_losses_total has no label cause:"),
        ("{{lock_loss_cause}}", "{{cause}}", "it has no label cause:"),
        ("(lease_leading{lock_class=", "(lease_leading{lock_backend=", "lease_leading has no label lock_backend:"),
        ("_count, lock_class)", "_count, class)", "lock_wait_duration_seconds_count has no label class:"),
        ("\"uid\":\"${datasource}\"", "\"uid\":\"mine\"", "its data source"),
        ("\"id\":2,", "\"id\":3,", "twice"),
    ] {
        let text = good.to_string();
        assert!(text.contains(from), "{from} is not there");
        let planted = serde_json::from_str(&text.replacen(from, to, 1)).unwrap();
        let breaches = breaches_of_dashboard(&planted, &known);
        assert!(breaches.iter().any(|breach| breach.contains(told)), "{told}: {breaches:?}");
    }
}

#[test]
fn planted_breach_of_the_alerts_is_found() {
    let known = Known::of_exporter();
    let alert = |expr: &str, summary: &str, severity: &str| {
        let rule = json!({ "alert": "A", "expr": expr, "annotations": { "summary": summary }, "labels": { "severity": severity } });
        breaches_of_alerts(&json!({ "groups": [{ "rules": [rule] }] }), &known)
    };
    const SUMMARY: &str = "{{ $labels.lock_backend }} is lost. Look at the log of {{ $labels.instance }}.";
    assert_eq!(alert("lock_losses_total > 0", SUMMARY, "warning"), [""; 0]);
    assert_eq!(alert("sum by (lock_backend, instance) (lock_losses_total) > 0", SUMMARY, "warning"), [""; 0]);
    for (expr, summary, severity) in [
        ("lock_losses > 0", "It is lost. Look.", "warning"),
        ("lock_losses_total{error_type=\"x\"} > 0", SUMMARY, "warning"),
        ("sum by (lock_backend) (lock_losses_total) > 0", SUMMARY, "warning"),
        ("lease_leading == 0", "{{ $labels.lock_backend }} has none. Look.", "warning"),
        ("lock_losses_total > 0", "It is lost.", "warning"),
        ("lock_losses_total > 0", SUMMARY, "bad"),
        ("lock_losses_total > ", SUMMARY, "warning"),
        ("", "It is lost. Look.", "warning"),
    ] {
        assert_eq!(alert(expr, summary, severity).len(), 1, "{expr}, {summary}, {severity}");
    }
    let rule = json!({ "alert": "A", "expr": "lock_held", "annotations": { "summary": "A. B." }, "labels": { "severity": "warning" } });
    assert_eq!(breaches_of_alerts(&json!({ "groups": [{ "rules": [rule.clone(), rule] }] }), &known).len(), 1, "twice");
}
