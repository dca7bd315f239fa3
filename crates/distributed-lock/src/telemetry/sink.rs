//! Where measurements go: to the facade `metrics` and to a meter of OpenTelemetry, each behind its feature.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    Label, Metric, MetricKind,
    series::{self, Series},
    trace,
};
use crate::InvalidInput;

/// Whether anything can be measured in this build.
pub(crate) const ENABLED: bool = cfg!(any(feature = "metrics", feature = "otel"));

/// Where a locker, a pool or a runner tells what it measures. Cheap to clone, and nothing happens without a feature.
///
/// With feature `metrics` everything goes to the recorder that the program installed for the facade of that name; with feature
/// `otel` also to the meter that was handed in.
///
/// ```
/// use distributed_lock::telemetry::{Label, Metric, Telemetry};
///
/// let telemetry = Telemetry::new().for_backend(&"Redis");
/// telemetry.count(Metric::Losses, &[(Label::Cause, "session_ended")]);
/// Telemetry::OFF.count(Metric::Ghosts, &[]); // goes nowhere
/// ```
#[derive(Clone, Debug, Default)]
pub struct Telemetry(Option<Arc<Series>>);

/// Static values of labels.
type Labels<'a> = &'a [(Label, &'static str)];

/// Values of all labels, as the sinks want them.
pub(super) struct Told<'a> {
    series: &'a Series,
    metric: Metric,
    labels: Labels<'a>,
}

impl Told<'_> {
    #[cfg(feature = "metrics")]
    pub(super) fn metric(&self) -> Metric {
        self.metric
    }

    #[cfg(feature = "metrics")]
    pub(super) fn labels(&self) -> Labels<'_> {
        self.labels
    }

    #[cfg(feature = "metrics")]
    pub(super) fn keys(&self) -> &super::facade::Keys {
        &self.series.keys
    }

    /// Each label that has a value; those that stay the same are shared text.
    pub(super) fn each(&self, mut take: impl FnMut(Label, Result<&'static str, &Arc<str>>)) {
        let knows = |label: Label| self.metric.row().labels.contains(&label);
        debug_assert!(self.labels.iter().all(|(label, _)| knows(*label)), "{:?} has no such label", self.metric);
        if let Some(backend) = self.series.backend.as_ref().filter(|_| knows(Label::Backend)) {
            take(Label::Backend, Err(backend));
        }
        if let Some(class) = self.series.class.as_ref().filter(|_| knows(Label::Class)) {
            take(Label::Class, Err(class));
        }
        for (label, value) in self.labels {
            take(*label, Ok(value));
        }
    }
}

impl Telemetry {
    pub(super) const fn of(series: Arc<Series>) -> Self {
        Self(Some(series))
    }

    /// Goes nowhere. Spans and log lines of feature `tracing` are there all the same.
    pub const OFF: Self = Self(None);

    /// To the facade `metrics`, with that feature.
    ///
    /// ```
    /// use distributed_lock::{Instrumented, MemoryLocker, telemetry::Telemetry};
    ///
    /// let locker = Instrumented::new(MemoryLocker::new()).with_telemetry(Telemetry::new());
    /// # let _ = locker;
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self((ENABLED || trace::ENABLED).then(Arc::default))
    }

    /// The same, and to this meter.
    ///
    /// Durations are in seconds, in buckets from 100 µs to an hour, which a view of yours can change.
    ///
    /// ```
    /// use distributed_lock::{Instrumented, MemoryLocker, telemetry::Telemetry};
    ///
    /// let meter = opentelemetry::global::meter("orders"); // or that of a provider of yours
    /// let locker = Instrumented::new(MemoryLocker::new()).with_telemetry(Telemetry::new().with_meter(&meter));
    /// # let _ = locker;
    /// ```
    #[cfg(feature = "otel")]
    #[must_use]
    pub fn with_meter(self, meter: &opentelemetry::metrics::Meter) -> Self {
        Self::of(self.0.unwrap_or_else(|| Arc::new(Series::quiet())).with_meter(meter))
    }

    /// The same, for what this locker does: what it prints is the label `lock.backend`.
    #[must_use]
    pub fn for_backend(self, backend: &impl fmt::Display) -> Self {
        self.relabelled(|series| Self::of(series.like(Some(backend.to_string().into()), series.class.clone())))
    }

    /// The same, for locks of this class, if there is one: over the class that it has.
    ///
    /// ```
    /// use distributed_lock::telemetry::{Metric, Telemetry};
    ///
    /// Telemetry::new().for_backend(&"Redis").for_class(Some("order")).count(Metric::Saturations, &[]);
    /// ```
    #[must_use]
    pub fn for_class(&self, class: Option<&'static str>) -> Self {
        match class {
            Some(class) if self.class() != Some(class) => self.relabelled(|series| series.of_class(class)),
            _ => self.clone(),
        }
    }

    /// The same, for locks of a class that is only known when the program runs, as by its configuration: over the class that it has, and
    /// under one that an acquire gives.
    ///
    /// Every value is a time series for as long as the program runs, so there must be few of them. Never make one of a lock's name.
    ///
    /// # Errors
    /// For text that is no class, with the text and the rule.
    ///
    /// ```
    /// use distributed_lock::telemetry::Telemetry;
    ///
    /// let class = String::from("billing"); // from a file
    /// let telemetry = Telemetry::new().with_class(&class)?;
    /// let refused = telemetry.with_class("order 4711").unwrap_err().to_string();
    /// assert_eq!(refused, r#"invalid class ("order 4711"): must be 1 to 40 characters of a-z, A-Z, 0-9, ".", "_" and "-""#);
    /// # Ok::<(), distributed_lock::InvalidInput>(())
    /// ```
    pub fn with_class(self, class: &str) -> Result<Self, InvalidInput> {
        let class = series::class(class)?;
        Ok(self.relabelled(|series| Self::of(series.like(series.backend.clone(), Some(class)))))
    }

    /// One that goes nowhere has its labels for spans.
    fn relabelled(&self, relabel: impl FnOnce(&Series) -> Self) -> Self {
        match &self.0 {
            Some(series) => relabel(series),
            None if trace::ENABLED => relabel(&Series::quiet()),
            None => Self::OFF,
        }
    }

    pub(super) fn backend(&self) -> Option<&str> {
        self.0.as_ref().and_then(|series| series.backend.as_deref())
    }

    pub(super) fn class(&self) -> Option<&str> {
        self.0.as_ref().and_then(|series| series.class.as_deref())
    }

    /// Whether what lockers tell of themselves can reach anybody: spans and log lines with feature `tracing`, metrics with feature `metrics`,
    /// or with feature `otel` and a meter. Whether somebody listens there is not known here.
    ///
    /// ```
    /// use distributed_lock::telemetry::Telemetry;
    ///
    /// if !Telemetry::new().is_heard() {
    ///     eprintln!("built without a feature that would say what locks do");
    /// }
    /// ```
    pub fn is_heard(&self) -> bool {
        trace::ENABLED || self.0.as_deref().is_some_and(Series::is_measured)
    }

    /// Whether anything is measured, so that what has to be found out for it can be left out otherwise.
    pub fn is_on(&self) -> bool {
        self.0.as_deref().is_some_and(Series::is_measured)
    }

    /// Adds one to a counter.
    pub fn count(&self, metric: Metric, labels: &[(Label, &'static str)]) {
        self.tell(metric, MetricKind::Counter, labels, |_series, _told| {
            #[cfg(feature = "metrics")]
            if !_series.off_facade {
                super::facade::count(_told);
            }
            #[cfg(feature = "otel")]
            _series.meter.iter().for_each(|meter| meter.count(metric, _told));
        });
    }

    /// Adds a duration to a histogram.
    pub fn record(&self, metric: Metric, duration: Duration, labels: &[(Label, &'static str)]) {
        self.tell(metric, MetricKind::Histogram, labels, |_series, _told| {
            let _seconds = duration.as_secs_f64();
            #[cfg(feature = "metrics")]
            if !_series.off_facade {
                super::facade::record(_told, _seconds);
            }
            #[cfg(feature = "otel")]
            _series.meter.iter().for_each(|meter| meter.record(metric, _told, _seconds));
        });
    }

    /// Sets a gauge.
    ///
    /// ```
    /// use distributed_lock::telemetry::{Metric, Telemetry};
    ///
    /// Telemetry::new().for_backend(&"Redis").set(Metric::BreakerState, 2.0, &[]);
    /// ```
    pub fn set(&self, metric: Metric, value: f64, labels: &[(Label, &'static str)]) {
        self.tell(metric, MetricKind::Gauge, labels, |_series, _told| {
            let _value = value;
            #[cfg(feature = "metrics")]
            if !_series.off_facade {
                super::facade::set(_told, _value);
            }
            #[cfg(feature = "otel")]
            _series.meter.iter().for_each(|meter| meter.set(metric, _told, _value));
        });
    }

    /// Counts one thing for as long as the answer lives.
    ///
    /// ```
    /// use distributed_lock::telemetry::{Metric, Telemetry};
    ///
    /// let lane = Telemetry::new().one(Metric::Lanes, &[]);
    /// drop(lane); // one less
    /// ```
    pub fn one(&self, metric: Metric, labels: &[(Label, &'static str)]) -> One {
        let mut one = One::default();
        self.tell(metric, MetricKind::UpDown, labels, |_series, _told| {
            #[cfg(feature = "metrics")]
            {
                one.gauge = (!_series.off_facade).then(|| super::facade::up(_told));
            }
            #[cfg(feature = "otel")]
            {
                one.sum = _series.meter.as_ref().map(|meter| super::otel::Up::new(meter, metric, _told));
            }
            // Without either it is told to nobody.
            let _ = &mut one;
        });
        one
    }

    fn tell(&self, metric: Metric, kind: MetricKind, labels: Labels<'_>, tell: impl FnOnce(&Series, &Told<'_>)) {
        debug_assert_eq!(metric.row().kind, kind, "{metric:?} is another instrument");
        if let Some(series) = self.0.as_deref().filter(|series| series.is_measured()) {
            tell(series, &Told { series, metric, labels });
        }
    }
}

/// One thing that an up-down counter counts, until this is dropped. From [`Telemetry::one`].
#[derive(Default)]
#[must_use = "it is counted only while this lives"]
pub struct One {
    /// Of the recorder that counted it up, so that the same one counts it down.
    #[cfg(feature = "metrics")]
    gauge: Option<metrics::Gauge>,
    #[cfg(feature = "otel")]
    sum: Option<super::otel::Up>,
}

impl fmt::Debug for One {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("One")
    }
}

#[cfg(feature = "metrics")]
impl Drop for One {
    fn drop(&mut self) {
        if let Some(gauge) = &self.gauge {
            gauge.decrement(1.0);
        }
    }
}
