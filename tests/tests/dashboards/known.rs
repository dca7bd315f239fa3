//! The series that there are, as the exporter for Prometheus prints them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use distributed_lock::telemetry::{BUCKETS, Label, Metric, MetricKind, Telemetry};
use metrics_exporter_prometheus::PrometheusBuilder;

use crate::expression::Expression;

/// What Prometheus itself adds to each series when it fetches a page.
const ADDED: [&str; 2] = ["instance", "job"];

/// Each series and its labels.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Known(BTreeMap<String, BTreeSet<String>>);

impl Known {
    /// All metrics of the table with all their labels, told to the exporter and read from its page.
    pub(crate) fn of_exporter() -> Self {
        let by = |recommended_naming| {
            let builder = PrometheusBuilder::new().with_recommended_naming(recommended_naming);
            let recorder = builder.set_buckets(&BUCKETS).unwrap().build_recorder();
            let counted = metrics::with_local_recorder(&recorder, || {
                distributed_lock::telemetry::describe();
                tell_everything()
            });
            let page = recorder.handle().render();
            drop(counted);
            Self::read(&page)
        };
        let known = by(false);
        assert_eq!(known, by(true), "the names are the same whatever the program chose");
        known
    }

    fn read(page: &str) -> Self {
        let mut series = BTreeMap::new();
        for line in page.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let line = line.rsplit_once(' ').unwrap().0;
            let (name, labels) = line.split_once('{').unwrap_or((line, "}"));
            let labels = labels.strip_suffix('}').unwrap().split(',').filter_map(|label| label.split_once('='));
            let all: &mut BTreeSet<_> = series.entry(name.to_owned()).or_default();
            all.extend(labels.map(|(label, _)| label.to_owned()));
        }
        Self(series)
    }

    /// What an expression gets wrong, and a text that shows these labels of what comes of it.
    pub(crate) fn breaches(&self, text: &str, shown: &[String]) -> Vec<String> {
        let expression = match Expression::parse(text) {
            Ok(expression) => expression,
            Err(why) => return vec![format!("{why}: {text}")],
        };
        let mut breaches = Vec::new();
        let none = BTreeSet::new();
        for (series, matched) in &expression.selected {
            let labels = self.0.get(series).unwrap_or_else(|| {
                breaches.push(format!("no series {series}: {text}"));
                &none
            });
            if self.0.contains_key(series) {
                let has = |label: &String| labels.contains(label) || ADDED.contains(&label.as_str());
                let unknown = matched.iter().chain(&expression.grouped).filter(|label| !has(label));
                breaches.extend(unknown.map(|label| format!("{series} has no label {label}: {text}")));
            }
        }
        // What is grouped has those labels only.
        let has = |label: &String| match expression.grouped.is_empty() {
            true => ADDED.contains(&label.as_str()) || self.has_label(&expression, label),
            false => expression.grouped.contains(label),
        };
        breaches
            .extend(shown.iter().filter(|label| !has(label)).map(|label| format!("it has no label {label}: {text}")));
        breaches
    }

    fn has_label(&self, expression: &Expression, label: &str) -> bool {
        expression.selected.iter().all(|(series, _)| self.0.get(series).is_some_and(|labels| labels.contains(label)))
    }
}

/// What counts as long as it lives, or it would be counted down before the page is made.
fn tell_everything() -> Vec<distributed_lock::telemetry::One> {
    let telemetry = Telemetry::new().for_backend(&"x").for_class(Some("x"));
    let mut counted = Vec::new();
    for metric in Metric::ALL.iter().copied() {
        // Those two are the telemetry's own.
        let given = metric.row().labels.iter().filter(|label| !matches!(label, Label::Backend | Label::Class));
        let labels: Vec<_> = given.map(|label| (*label, "x")).collect();
        match metric.row().kind {
            MetricKind::Counter => telemetry.count(metric, &labels),
            MetricKind::Gauge => telemetry.set(metric, 1.0, &labels),
            MetricKind::Histogram => telemetry.record(metric, Duration::from_secs(1), &labels),
            MetricKind::UpDown => counted.push(telemetry.one(metric, &labels)),
            _ => panic!("a kind without a test"),
        }
    }
    counted
}

#[test]
fn series_of_the_exporter_are_those_of_the_table() {
    let expected = Metric::ALL.iter().flat_map(|metric| {
        let row = metric.row();
        let histogram = row.kind == MetricKind::Histogram;
        let suffixes: &[&str] = if histogram { &["_bucket", "_count", "_sum"] } else { &[""] };
        suffixes.iter().map(move |suffix| {
            let labels = row.labels.iter().map(|label| label.facade().to_owned());
            let le = (*suffix == "_bucket").then(|| "le".to_owned());
            (format!("{}{suffix}", row.facade), labels.chain(le).collect())
        })
    });
    assert_eq!(Known::of_exporter(), Known(expected.collect()));
}
