//! What the facade `metrics` was told, as lines.

use std::{collections::BTreeMap, sync::Mutex};

use metrics::LocalRecorderGuard;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

pub(crate) struct Recorded {
    snapshotter: Snapshotter,
    /// A look takes what it sees away.
    seen: Mutex<BTreeMap<String, Seen>>,
}

enum Seen {
    Sum(f64),
    Seconds(Vec<f64>),
}

/// A recorder of this thread, for as long as the guard lives.
pub(crate) fn record(recorder: &DebuggingRecorder) -> (Recorded, LocalRecorderGuard<'_>) {
    let recorded = Recorded { snapshotter: recorder.snapshotter(), seen: Mutex::default() };
    (recorded, metrics::set_default_local_recorder(recorder))
}

impl Recorded {
    /// Counters and gauges with their values, histograms with all seconds that were recorded. Sorted.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut seen = self.seen.lock().unwrap();
        for (key, _, _, value) in self.snapshotter.snapshot().into_vec() {
            let mut labels: Vec<_> =
                key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            labels.sort();
            let name = format!("{}{{{}}}", key.key().name(), labels.join(","));
            let (sum, seconds) = match value {
                DebugValue::Counter(count) => (f64::from(u32::try_from(count).unwrap()), None),
                DebugValue::Gauge(gauge) => (gauge.0, None),
                DebugValue::Histogram(seconds) => (0.0, Some(seconds)),
            };
            let new = || if seconds.is_some() { Seen::Seconds(Vec::new()) } else { Seen::Sum(0.0) };
            match (seen.entry(name).or_insert_with(new), &seconds) {
                (Seen::Sum(all), None) => *all += sum,
                (Seen::Seconds(all), Some(seconds)) => all.extend(seconds.iter().map(|seconds| seconds.0)),
                _ => panic!("another instrument"),
            }
        }
        let line = |(name, seen): (&String, &Seen)| match seen {
            Seen::Sum(sum) => format!("{name} {sum}"),
            Seen::Seconds(seconds) => format!("{name} {seconds:?}"),
        };
        seen.iter().map(line).collect()
    }

    /// Those that begin so.
    pub(crate) fn of(&self, start: &str) -> Vec<String> {
        self.lines().into_iter().filter(|line| line.starts_with(start)).collect()
    }
}
