//! The sink of feature `metrics`. Looked up for each measurement, as the facade's own macros do, since a recorder can come late.

use std::sync::OnceLock;

use metrics::{Gauge, Key, Level, Metadata, Recorder, Unit, with_recorder};

use super::{Label, Metric, MetricKind, sink::Told};

const METADATA: Metadata<'_> = Metadata::new("distributed_lock", Level::INFO, Some("distributed_lock"));

/// Of each metric the key with the labels that it was first told with, which as a rule are those of all calls that go well. To make one
/// anew costs more than everything else that is told of a call.
#[derive(Debug)]
pub(super) struct Keys([OnceLock<Kept>; Metric::ALL.len()]);

/// A key, and what it was told with beside the labels that stay the same.
type Kept = (Option<(Label, &'static str)>, Key);

impl Default for Keys {
    fn default() -> Self {
        Self([const { OnceLock::new() }; Metric::ALL.len()])
    }
}

fn with_key<T>(told: &Told<'_>, tell: impl FnOnce(&dyn Recorder, &Key) -> T) -> T {
    let told_with = match told.labels() {
        [] => None,
        [label] => Some(*label),
        _ => return with_recorder(|recorder| tell(recorder, &key(told))),
    };
    let (known, known_key) = told.keys().0[told.metric() as usize].get_or_init(|| (told_with, key(told)));
    match *known == told_with {
        true => with_recorder(|recorder| tell(recorder, known_key)),
        false => with_recorder(|recorder| tell(recorder, &key(told))),
    }
}

fn key(told: &Told<'_>) -> Key {
    let row = told.metric().row();
    let mut labels = Vec::with_capacity(row.labels.len());
    told.each(|label, value| {
        labels.push(match value {
            Ok(text) => metrics::Label::from_static_parts(label.facade(), text),
            Err(shared) => metrics::Label::new(label.facade(), metrics::SharedString::from_shared(shared.clone())),
        });
    });
    Key::from_parts(row.facade, labels)
}

pub(super) fn count(told: &Told<'_>) {
    with_key(told, |recorder, key| recorder.register_counter(key, &METADATA)).increment(1);
}

pub(super) fn record(told: &Told<'_>, seconds: f64) {
    with_key(told, |recorder, key| recorder.register_histogram(key, &METADATA)).record(seconds);
}

pub(super) fn set(told: &Told<'_>, value: f64) {
    with_key(told, |recorder, key| recorder.register_gauge(key, &METADATA)).set(value);
}

pub(super) fn up(told: &Told<'_>) -> Gauge {
    let gauge = with_key(told, |recorder, key| recorder.register_gauge(key, &METADATA));
    gauge.increment(1.0);
    gauge
}

/// Tells the recorder that is installed what each metric means, for exporters that show it. Call it once, after installing.
///
/// ```
/// distributed_lock::telemetry::describe();
/// ```
pub fn describe() {
    with_recorder(|recorder| {
        for row in Metric::ALL.iter().map(|metric| metric.row()) {
            let unit = Some(if row.unit == "s" { Unit::Seconds } else { Unit::Count });
            let (name, help) = (row.facade.into(), row.help.into());
            match row.kind {
                MetricKind::Counter => recorder.describe_counter(name, unit, help),
                MetricKind::Gauge | MetricKind::UpDown => recorder.describe_gauge(name, unit, help),
                MetricKind::Histogram => recorder.describe_histogram(name, unit, help),
            }
        }
    });
}
