//! What a lock does, in spans, log lines and metrics.
//!
//! [`Instrumented`] goes around any locker; the lease runner ([`LeaseConfig::with_telemetry`](crate::lease::LeaseConfig::with_telemetry))
//! and backends tell what only they know to a [`Telemetry`]. All of them use the metrics of one table, [`Metric`], which is also in
//! `docs/telemetry.md`, with an example for each.
//!
//! - Feature `tracing`: the spans `lock.acquire`, `lock.hold`, `lock.release` and `lease.term`, and a log line for each loss, each release
//!   that failed, and each wait that is explained. They show a lock's name, escaped.
//! - Feature `metrics`: metrics through the facade of that name, to whatever recorder the program installed.
//! - Feature `otel`: metrics through the OpenTelemetry meter that was handed in. Nothing is global.
//!
//! No metric has a lock's name as a label. Without a feature nothing of this is done, and an `Instrumented` passes calls on as they
//! are: it is there all the same, so that programs are wired alike with and without.
//!
//! ```
//! use std::time::Duration;
//! use distributed_lock::{AcquireOptions, Instrumented, LockKey, Locker, MemoryLocker, Ttl, Wait};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locker = Instrumented::new(MemoryLocker::new()).explaining_waits(Duration::from_secs(5));
//! let options = AcquireOptions::new(Ttl::new(Duration::from_secs(30))?).with_wait(Wait::Forever).with_class("order");
//! let guard = locker.acquire_opts(&LockKey::new("order/4711")?, &options).await?.into_result()?;
//! guard.release().await?.exclusive()?;
//! # Ok(()) }
//! ```

#![cfg_attr(
    not(all(feature = "metrics", feature = "otel", feature = "tracing")),
    allow(dead_code, reason = "without a feature what it would be told is asked by nobody")
)]

pub(crate) mod call;
mod explain;
#[cfg(feature = "metrics")]
mod facade;
mod held;
mod locker;
#[cfg(feature = "otel")]
mod otel;
mod scoped;
mod series;
mod sink;
mod table;
pub(crate) mod trace;
pub(crate) mod words;

#[cfg(feature = "metrics")]
pub use facade::describe;
pub use locker::Instrumented;
pub use sink::{One, Telemetry};
pub use table::{BUCKETS, Label, Metric, MetricKind, MetricRow};
