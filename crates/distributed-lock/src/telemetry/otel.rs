//! The sink of feature `otel`: instruments of one meter, made once.

use std::sync::Arc;

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge, Histogram, Meter, UpDownCounter},
};

use super::{BUCKETS, Metric, MetricKind, sink::Told};

#[derive(Debug)]
enum Instrument {
    Counter(Counter<u64>),
    Gauge(Gauge<f64>),
    Histogram(Histogram<f64>),
    UpDown(UpDownCounter<i64>),
}

/// In the order of the table.
#[derive(Debug)]
pub(super) struct Instruments(Vec<Instrument>);

impl Instruments {
    pub(super) fn new(meter: &Meter) -> Self {
        let make = |metric: &Metric| {
            let row = metric.row();
            match row.kind {
                MetricKind::Counter => Instrument::Counter(
                    meter.u64_counter(row.name).with_unit(row.unit).with_description(row.help).build(),
                ),
                MetricKind::Gauge => {
                    Instrument::Gauge(meter.f64_gauge(row.name).with_unit(row.unit).with_description(row.help).build())
                }
                MetricKind::Histogram => Instrument::Histogram(
                    meter
                        .f64_histogram(row.name)
                        .with_unit(row.unit)
                        .with_description(row.help)
                        .with_boundaries(BUCKETS.to_vec())
                        .build(),
                ),
                MetricKind::UpDown => Instrument::UpDown(
                    meter.i64_up_down_counter(row.name).with_unit(row.unit).with_description(row.help).build(),
                ),
            }
        };
        Self(Metric::ALL.iter().map(make).collect())
    }

    pub(super) fn count(&self, metric: Metric, told: &Told<'_>) {
        if let Instrument::Counter(counter) = &self.0[metric as usize] {
            counter.add(1, &attributes(told));
        }
    }

    pub(super) fn record(&self, metric: Metric, told: &Told<'_>, seconds: f64) {
        if let Instrument::Histogram(histogram) = &self.0[metric as usize] {
            histogram.record(seconds, &attributes(told));
        }
    }

    pub(super) fn set(&self, metric: Metric, told: &Told<'_>, value: f64) {
        if let Instrument::Gauge(gauge) = &self.0[metric as usize] {
            gauge.record(value, &attributes(told));
        }
    }

    fn add(&self, metric: Metric, change: i64, attributes: &[KeyValue]) {
        if let Instrument::UpDown(sum) = &self.0[metric as usize] {
            sum.add(change, attributes);
        }
    }
}

fn attributes(told: &Told<'_>) -> Vec<KeyValue> {
    let mut attributes = Vec::new();
    told.each(|label, value| {
        attributes.push(match value {
            Ok(text) => KeyValue::new(label.name(), text),
            Err(shared) => KeyValue::new(label.name(), shared.clone()),
        });
    });
    attributes
}

/// One thing that was counted up.
pub(super) struct Up {
    instruments: Arc<Instruments>,
    metric: Metric,
    attributes: Vec<KeyValue>,
}

impl Up {
    pub(super) fn new(instruments: &Arc<Instruments>, metric: Metric, told: &Told<'_>) -> Self {
        let attributes = attributes(told);
        instruments.add(metric, 1, &attributes);
        Self { instruments: Arc::clone(instruments), metric, attributes }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.instruments.add(self.metric, -1, &self.attributes);
    }
}
