//! What a meter of OpenTelemetry was told, as lines, from the SDK's exporter in memory.

use std::{collections::BTreeSet, fmt::Display};

use opentelemetry::{
    KeyValue,
    metrics::{Meter, MeterProvider},
};
use opentelemetry_sdk::metrics::{
    InMemoryMetricExporter, PeriodicReader, SdkMeterProvider,
    data::{AggregatedMetrics, MetricData},
};

pub(crate) struct Exported {
    exporter: InMemoryMetricExporter,
    provider: SdkMeterProvider,
}

impl Exported {
    pub(crate) fn new() -> Self {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        Self { exporter, provider: SdkMeterProvider::builder().with_reader(reader).build() }
    }

    pub(crate) fn meter(&self) -> Meter {
        self.provider.meter("test")
    }

    /// Sums and gauges with their values, histograms with how many values came and their sum. Sorted.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.exporter.reset();
        self.provider.force_flush().unwrap();
        let exported = self.exporter.get_finished_metrics().unwrap();
        let mut lines = BTreeSet::new();
        let metrics = exported.iter().flat_map(|all| all.scope_metrics()).flat_map(|scope| scope.metrics());
        for metric in metrics {
            let (name, unit) = (metric.name(), metric.unit());
            let mut add = |attributes: Vec<&KeyValue>, value: String| {
                let mut labels: Vec<_> = attributes.iter().map(|kv| format!("{}={}", kv.key, kv.value)).collect();
                labels.sort();
                lines.insert(format!("{name}[{unit}]{{{}}} {value}", labels.join(",")));
            };
            match metric.data() {
                AggregatedMetrics::F64(data) => read(data, &mut add),
                AggregatedMetrics::I64(data) => read(data, &mut add),
                AggregatedMetrics::U64(data) => read(data, &mut add),
            }
        }
        lines.into_iter().collect()
    }
}

fn read<T: Copy + Display>(data: &MetricData<T>, add: &mut impl FnMut(Vec<&KeyValue>, String)) {
    match data {
        MetricData::Gauge(gauge) => {
            gauge.data_points().for_each(|point| add(point.attributes().collect(), point.value().to_string()));
        }
        MetricData::Sum(sum) => {
            sum.data_points().for_each(|point| add(point.attributes().collect(), point.value().to_string()));
        }
        MetricData::Histogram(histogram) => histogram.data_points().for_each(|point| {
            add(point.attributes().collect(), format!("{}x, {}", point.count(), point.sum()));
        }),
        MetricData::ExponentialHistogram(_) => panic!("nobody asked for one"),
    }
}
