//! The one table of metrics: what exists, how it is called, and which labels it can have.

/// Which instrument a metric is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// A number that is set.
    Gauge,
    /// A distribution of durations.
    Histogram,
    /// A number of things that are there now: grows and shrinks.
    UpDown,
}

impl MetricKind {
    /// As the documentation calls it.
    ///
    /// ```
    /// use distributed_lock::telemetry::Metric;
    ///
    /// assert_eq!(Metric::Held.row().kind.name(), "up-down counter");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::UpDown => "up-down counter",
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct MetricRow {
    /// Its name in OpenTelemetry, without a unit.
    pub name: &'static str,
    /// Its name through the facade `metrics`, which is what OpenTelemetry's exporters make of the other for Prometheus.
    pub facade: &'static str,
    /// The instrument.
    pub kind: MetricKind,
    /// The unit, as OpenTelemetry writes it: `s`, or what is counted in braces.
    pub unit: &'static str,
    /// The labels it can have.
    pub labels: &'static [Label],
    /// What it says.
    pub help: &'static str,
}

/// Bounds for the buckets of every histogram, in seconds: a lock on a near server takes less than a millisecond, and a standby waits for
/// hours. The meter of feature `otel` gets them by itself; an exporter of the facade `metrics` has to be told.
///
/// ```
/// use distributed_lock::telemetry::BUCKETS;
///
/// // With the crate `metrics-exporter-prometheus`: PrometheusBuilder::new().set_buckets(&BUCKETS)?
/// assert!(BUCKETS.is_sorted());
/// ```
pub const BUCKETS: [f64; 19] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
    600.0, 3600.0,
];

macro_rules! labels {
    ($($(#[$doc:meta])* $label:ident = $name:literal, $facade:literal;)+) => {
        /// What a metric is told apart by. Values are static, the kind of a locker, or of a configuration: never a lock's name.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[non_exhaustive]
        pub enum Label {
            $($(#[$doc])* $label,)+
        }

        impl Label {
            /// Its name in OpenTelemetry.
            ///
            /// ```
            /// assert_eq!(distributed_lock::telemetry::Label::Class.name(), "lock.class");
            /// ```
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$label => $name,)+
                }
            }

            /// Its name through the facade `metrics`.
            ///
            /// ```
            /// assert_eq!(distributed_lock::telemetry::Label::Class.facade(), "lock_class");
            /// ```
            pub const fn facade(self) -> &'static str {
                match self {
                    $(Self::$label => $facade,)+
                }
            }
        }
    };
}

labels! {
    /// What the locker prints: its kind, or the stack of wrappers.
    Backend = "lock.backend", "lock_backend";
    /// Why a hold ended before its release.
    Cause = "lock.loss.cause", "lock_loss_cause";
    /// What the caller gave with [`AcquireOptions::with_class`](crate::AcquireOptions::with_class), else what the locker's telemetry has.
    Class = "lock.class", "lock_class";
    /// The kind of an error.
    ErrorType = "error.type", "error_type";
    /// How it ended.
    Outcome = "lock.outcome", "lock_outcome";
    /// Which pool of connections.
    PoolName = "db.client.connection.pool.name", "db_client_connection_pool_name";
    /// Why somebody had to wait.
    Reason = "lock.contention.reason", "lock_contention_reason";
    /// What a connection does: `idle` or `used`.
    ConnectionState = "db.client.connection.state", "db_client_connection_state";
    /// The state that a breaker went to.
    To = "lock.breaker.to", "lock_breaker_to";
}

macro_rules! metrics {
    ($($metric:ident = $name:literal, $facade:literal, $kind:ident, $unit:literal, [$($label:ident),*], $help:literal;)+) => {
        /// A metric of this framework. `docs/telemetry.md` has the table.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[non_exhaustive]
        pub enum Metric {
            $(#[doc = $help] $metric,)+
        }

        impl Metric {
            /// All of them, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$metric,)+];

            /// Its row of the table.
            ///
            /// ```
            /// use distributed_lock::telemetry::Metric;
            ///
            /// let row = Metric::Wait.row();
            /// assert_eq!((row.name, row.unit), ("lock.wait.duration", "s"));
            /// assert_eq!(row.facade, "lock_wait_duration_seconds");
            /// ```
            pub const fn row(self) -> &'static MetricRow {
                &ROWS[self as usize]
            }
        }

        static ROWS: [MetricRow; Metric::ALL.len()] = [$(MetricRow {
            name: $name,
            facade: $facade,
            kind: MetricKind::$kind,
            unit: $unit,
            labels: &[$(Label::$label),*],
            help: $help,
        },)+];
    };
}

metrics! {
    Waiting = "lock.waiting", "lock_waiting", UpDown, "{call}", [Backend, Class],
        "Calls that asked for a lock and have no answer yet.";
    Wait = "lock.wait.duration", "lock_wait_duration_seconds", Histogram, "s", [Backend, Class, Outcome, ErrorType],
        "From the call to its answer or, in a scoped call, to the start of the body.";
    Contentions = "lock.contentions", "lock_contentions_total", Counter, "{call}", [Backend, Class, Reason],
        "Calls that found the lock held, counted once each however they ended.";
    Saturations = "lock.saturations", "lock_saturations_total", Counter, "{call}", [Backend, Class],
        "Calls that found no connection free, counted once each however they ended.";
    Explanations = "lock.wait.explanations", "lock_wait_explanations_total", Counter, "{call}", [Backend, Class, Outcome],
        "Calls that waited for so long that the holder was looked for.";
    Held = "lock.held", "lock_held", UpDown, "{hold}", [Backend, Class],
        "Locks that are held, lost ones included that their holder has not given up.";
    Hold = "lock.hold.duration", "lock_hold_duration_seconds", Histogram, "s", [Backend, Class, Outcome],
        "From the grant until the holder gave the lock up: the time of its work.";
    Renew = "lock.renew.duration", "lock_renew_duration_seconds", Histogram, "s", [Backend, Class, Outcome, ErrorType],
        "Renewals, from the call to the answer.";
    Release = "lock.release.duration", "lock_release_duration_seconds", Histogram, "s", [Backend, Class, Outcome, ErrorType],
        "Releases, from the end of the work to the answer.";
    Losses = "lock.losses", "lock_losses_total", Counter, "{hold}", [Backend, Class, Cause],
        "Holds that ended before their holder gave them up, counted when its side sees it.";
    Overrun = "lock.overrun.duration", "lock_overrun_duration_seconds", Histogram, "s", [Backend, Class],
        "Of lost holds, from the loss until the holder gave up.";
    Ghosts = "lock.ghosts", "lock_ghosts_total", Counter, "{grant}", [],
        "Grants that came when nobody waited for them any more; each was undone.";
    Leading = "lease.leading", "lease_leading", UpDown, "{term}", [Class],
        "Jobs that run under a lease.";
    Term = "lease.term.duration", "lease_term_duration_seconds", Histogram, "s", [Class, Outcome],
        "Terms, from the start of the job until the lease was given up.";
    LeaseLosses = "lease.losses", "lease_losses_total", Counter, "{term}", [Class, Cause],
        "Terms whose lease was lost or could not be proven.";
    LeaseOverrun = "lease.overrun.duration", "lease_overrun_duration_seconds", Histogram, "s", [Class],
        "Of lost leases, how long the job ran on after the loss.";
    LeaseFailures = "lease.acquire.failures", "lease_acquire_failures_total", Counter, "{attempt}", [Class, ErrorType],
        "Attempts to get a lease that failed; contention is no failure.";
    BreakerState = "lock.breaker.state", "lock_breaker_state", Gauge, "{state}", [Backend],
        "0 closed, 1 half-open, 2 open.";
    BreakerTransitions = "lock.breaker.transitions", "lock_breaker_transitions_total", Counter, "{transition}", [Backend, To],
        "Changes of a breaker's state.";
    BreakerRefusals = "lock.breaker.refusals", "lock_breaker_refusals_total", Counter, "{call}", [Backend],
        "Calls that a breaker refused.";
    Connections = "db.client.connection.count", "db_client_connection_count", UpDown, "{connection}", [PoolName, ConnectionState],
        "Connections of a locker's own pool; one counts as used while it is opened, and until the server has let go of it.";
    ConnectionRequests = "db.client.connection.pending_requests", "db_client_connection_pending_requests", UpDown, "{request}", [PoolName],
        "Calls that wait for a place in a locker's own pool.";
    ConnectionWait = "db.client.connection.wait_time", "db_client_connection_wait_time_seconds", Histogram, "s", [PoolName],
        "How long it took to get a connection.";
    ConnectionCreate = "db.client.connection.create_time", "db_client_connection_create_time_seconds", Histogram, "s", [PoolName],
        "How long it took to open a connection of a locker's own pool.";
    ConnectionTimeouts = "db.client.connection.timeouts", "db_client_connection_timeouts_total", Counter, "{timeout}", [PoolName],
        "Calls that got no connection in time.";
    Lanes = "lock.lanes", "lock_lanes", UpDown, "{connection}", [],
        "Sessions of shared sessions that are open.";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What OpenTelemetry's exporters make of a name for Prometheus.
    fn for_prometheus(row: &MetricRow) -> String {
        let unit = if row.unit == "s" { "_seconds" } else { "" };
        let total = if row.kind == MetricKind::Counter { "_total" } else { "" };
        format!("{}{unit}{total}", row.name.replace('.', "_"))
    }

    #[test]
    fn names_follow_from_one_another_and_are_told_once() {
        let mut names = std::collections::BTreeSet::new();
        for metric in Metric::ALL {
            let row = metric.row();
            assert_eq!(row.facade, for_prometheus(row));
            assert!(names.insert(row.name), "{} is there twice", row.name);
            assert_eq!(row.unit == "s", row.kind == MetricKind::Histogram, "{}: durations are in seconds", row.name);
            for label in row.labels {
                assert_eq!(label.facade(), label.name().replace('.', "_"));
            }
        }
    }
}
