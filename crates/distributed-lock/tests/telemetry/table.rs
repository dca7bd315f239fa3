//! The table of metrics: in the code, in the docs, and told by somebody.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use distributed_lock::telemetry::{Label, Metric, MetricKind, Telemetry};
use metrics_util::debugging::DebuggingRecorder;

use crate::{meter::Exported, recorder::record};

/// The row of a metric as the docs have it.
fn documented(metric: Metric) -> String {
    let row = metric.row();
    let labels: Vec<_> = row.labels.iter().map(|label| format!("`{}`", label.name())).collect();
    let labels = if labels.is_empty() { "none".to_owned() } else { labels.join(", ") };
    format!("| `{}` | `{}` | {} | `{}` | {labels} | {} |", row.name, row.facade, row.kind.name(), row.unit, row.help)
}

/// What differs between the rows of this page's table and the code's.
fn differences(page: &str) -> Vec<String> {
    let code: BTreeSet<_> = Metric::ALL.iter().map(|metric| documented(*metric)).collect();
    let table = page.lines().skip_while(|line| !line.starts_with("| name | in the facade |")).skip(2);
    let docs: BTreeSet<_> = table.take_while(|line| !line.is_empty()).map(str::to_owned).collect();
    let missing = code.difference(&docs).map(|row| format!("missing in the docs: {row}"));
    let unknown = docs.difference(&code).map(|row| format!("not in the code: {row}"));
    missing.chain(unknown).collect()
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn table_in_the_docs_is_the_one_in_the_code() {
    let page = fs::read_to_string(root().join("docs/telemetry.md")).unwrap();
    assert_eq!(differences(&page), [""; 0]);
}

#[test]
fn planted_differences_of_the_table_are_found_both_ways() {
    let rows: String = Metric::ALL.iter().map(|metric| documented(*metric) + "\n").collect();
    let page = format!("| name | in the facade | kind |\n|---|\n{rows}");
    assert_eq!(differences(&page), [""; 0]);
    assert_eq!(differences(&page.replace("`lock.held`", "`lock.hold`")).len(), 2);
    assert_eq!(differences(&page.replacen("`s`", "`ms`", 1)).len(), 2);
    assert_eq!(differences(&format!("{page}| `lock.polls` | more |\n")).len(), 1);
}

/// Metrics of the table that no source file names.
fn untold(sources: &str) -> Vec<String> {
    let named = |metric: &&Metric| !sources.contains(&format!("Metric::{metric:?}"));
    Metric::ALL.iter().filter(named).map(|metric| format!("{metric:?}")).collect()
}

/// Of the library crates, but for the table.
fn sources(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if !path.ends_with("telemetry/table.rs") {
            // Examples in the docs tell nothing.
            let text = fs::read_to_string(&path).unwrap();
            text.lines().filter(|line| !line.trim_start().starts_with("//")).for_each(|line| all.push_str(line));
        }
    }
}

#[test]
fn every_metric_of_the_table_is_told_by_somebody() {
    let mut all = String::new();
    for package in ["distributed-lock", "lock-postgres"] {
        sources(&root().join("crates").join(package).join("src"), &mut all);
    }
    assert_eq!(untold(&all), [""; 0]);
    assert_eq!(untold("Metric::Held").len(), Metric::ALL.len() - 1);
}

fn value(label: Label) -> Option<(Label, &'static str)> {
    // Those two are the telemetry's own.
    (!matches!(label, Label::Backend | Label::Class)).then_some((label, "x"))
}

#[test]
fn every_row_reaches_both_sinks_with_its_name_its_unit_and_all_its_labels() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let exported = Exported::new();
    let telemetry = Telemetry::new().with_meter(&exported.meter()).for_backend(&"x").for_class(Some("x"));
    let mut counted = Vec::new();
    for metric in Metric::ALL.iter().copied() {
        let labels: Vec<_> = metric.row().labels.iter().copied().filter_map(value).collect();
        match metric.row().kind {
            MetricKind::Counter => telemetry.count(metric, &labels),
            MetricKind::Gauge => telemetry.set(metric, 1.0, &labels),
            MetricKind::Histogram => telemetry.record(metric, Duration::from_secs(1), &labels),
            MetricKind::UpDown => counted.push(telemetry.one(metric, &labels)),
            _ => panic!("a kind without a test"),
        }
    }
    let expected = |name: fn(Label) -> &'static str, start: fn(Metric) -> String, histogram: &str| {
        let line = |metric: &Metric| {
            let row = metric.row();
            let mut labels: Vec<_> = row.labels.iter().map(|label| format!("{}=x", name(*label))).collect();
            labels.sort();
            let value = if row.kind == MetricKind::Histogram { histogram } else { "1" };
            format!("{}{{{}}} {value}", start(*metric), labels.join(","))
        };
        Metric::ALL.iter().map(line).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(recorded.lines(), expected(Label::facade, |metric| metric.row().facade.to_owned(), "[1.0]"));
    let start = |metric: Metric| format!("{}[{}]", metric.row().name, metric.row().unit);
    assert_eq!(exported.lines(), expected(Label::name, start, "1x, 1"));
}

#[test]
fn telemetry_that_is_off_tells_nothing() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let _one = Telemetry::OFF.one(Metric::Lanes, &[]);
    Telemetry::OFF.count(Metric::Ghosts, &[]);
    let labelled = Telemetry::OFF.for_backend(&"Redis").for_class(Some("order")).with_class("billing").unwrap();
    labelled.count(Metric::Losses, &[]);
    assert!(!Telemetry::OFF.is_on() && !labelled.is_on());
    assert_eq!(recorded.lines(), [""; 0]);
    Telemetry::new().count(Metric::Ghosts, &[]);
    assert_eq!(recorded.lines(), ["lock_ghosts_total{} 1"]);
}
