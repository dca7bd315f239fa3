//! Named jobs, each on one replica at a time.
//!
//! Start the same program on three machines and give each its runner. One of them leads and runs the job; the others are hot
//! standbys, and one of them takes over when the leader exits, crashes, freezes or loses its store.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseExit, LeaseRunner, Term}};
//!
//! async fn bill(term: Term) -> distributed_lock::Result<()> {
//!     for _customer in 0..10 {
//!         tokio::select! {
//!             _why = term.cancelled() => return Ok(()), // lost, stopped, asked to step down: wind down
//!             () = tokio::time::sleep(Duration::from_millis(1)) => {} // the work
//!         }
//!         term.ensure_valid()?; // before each side effect; better still, hand `term.fencing_token()` to the resource
//!         term.progress();
//!     }
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryLocker::new();
//! let (one, two) = (Arc::new(store.peer()), Arc::new(store.peer())); // as two processes would have it
//! let one = LeaseRunner::new(one, LeaseConfig::new())?;
//! let two = LeaseRunner::new(two, LeaseConfig::new().with_max_term(Duration::from_secs(3600)))?;
//! println!("{}", one.guarantees()); // how long a loss can stay unknown, how soon a standby takes over, ...
//! let (first, second) = tokio::try_join!(one.run("bill", bill), two.run("bill", bill))?; // one after the other
//! assert!(matches!((first, second), (LeaseExit::Finished(()), LeaseExit::Finished(()))));
//! one.close().await?; // at shutdown: tells every job, waits for the grace at most, gives the leases up at once
//! # Ok(()) }
//! ```
//!
//! **The order of things.** A job that is to end is told so ([`Term::cancelled`], with the reason), has the grace to end, and is
//! then dropped at its next await. The lease is released only after the job has ended, and only then is it contended for again.
//! Where the store counts us as the holder until a deadline, the grace ends with it, so that no two jobs work at a time. What was
//! handed to `spawn` or `spawn_blocking` is not dropped with the job: give it the term, or its hold.
//!
//! **When it ends.** A run ends when its job returns, fails or panics while it leads, when it overstays
//! [`LeaseConfig::max_term`] or [`LeaseConfig::progress_deadline`], and by [`LeaseRunner::stop`] or [`LeaseRunner::close`]:
//! see [`LeaseExit`]. After a loss or a step-down it stands by again.
//!
//! **The numbers.** With the defaults a renewal that gets no answer for 6.5 s means that the lease is lost, so that a loss stays
//! unknown for at most 13.1 s, and a holder that vanished is followed within the TTL of 23 s. [`LeaseGuarantees`] has them all, from live settings; a TTL
//! into which the grace does not fit is refused.
//!
//! **Watching.** [`LeaseRunner::watch`] follows the state of a name, [`LeaseConfig::with_hook`] hears every event,
//! [`LeaseRunner::health`] is bad while a job runs whose lease cannot be proven. With feature `tracing` every event is a log line, and each
//! job runs in a span `lease.term`; [`LeaseConfig::with_telemetry`] adds metrics.

mod config;
mod event;
mod exit;
mod guarantees;
mod log;
mod machine;
mod measured;
mod orders;
mod report;
mod run;
mod runner;
mod state;
mod tending;
mod term;
mod timing;

pub use config::LeaseConfig;
pub use event::{JobOutcome, LeaseEvent};
pub use exit::{LeaseExit, TermEnd};
pub use guarantees::LeaseGuarantees;
pub use machine::Stall;
pub use runner::LeaseRunner;
pub use state::{LeaseState, LeaseWatch};
pub use term::{CancelReason, Term};
