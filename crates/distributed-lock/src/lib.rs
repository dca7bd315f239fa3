//! Distributed locks behind one contract.
//!
//! Users read [`LockerExt`], [`ScopedLockerExt`], [`LockGuard`] and [`Hold`]. Backend authors read [`backend`]: three traits
//! without provided methods, and [`backend::HoldRecord`].
//!
//! *Cancel safe*, everywhere in this crate: after the future is dropped at any await point, within the backend's
//! [`Guarantees::cleanup`] the store keeps no waiter, no holder and no connection for it, or a guard exists that will see to
//! that.
//!
//! All times are [`Duration`](std::time::Duration)s; deadlines are kept to the nanosecond, timers of the runtime to the millisecond.
//!
//! # Panics
//! Waits, renewals and watches use tokio's timers and panic outside a runtime with its time enabled. Dropping a guard needs none.
//!
//! ```
//! use std::sync::Arc;
//! use distributed_lock::{MemoryLocker, Scoped, ScopedLocker, ScopedLockerExt};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locks: Arc<dyn ScopedLocker> = Arc::new(Scoped::new(MemoryLocker::new()));
//! let total = locks.with_lock("orders", async |hold| hold.ensure_valid().map(|()| 42)).await??;
//! assert_eq!(total, 42);
//! # Ok(()) }
//! ```

mod adapter;
mod answered;
mod attempt;
pub mod backend;
pub mod breaker;
mod capabilities;
mod clock;
mod error;
#[cfg(feature = "serde")]
mod fields;
mod forward;
mod guarantees;
mod guard;
mod hold;
mod inspect;
mod key;
pub mod lease;
mod locker;
mod loss;
mod memory;
mod options;
mod poll;
mod random;
mod record;
mod scoped;
mod task;
pub mod telemetry;
mod token;
mod ttl;
mod unwind;

pub use adapter::Scoped;
pub use attempt::{Attempt, Contention};
pub use capabilities::{Capabilities, Expiry, Fairness, FencingStrength, Reach};
pub use clock::{Clock, SystemClock, TokioClock};
pub use error::{Error, ErrorKind, InvalidInput, Result, ScopedError};
pub use guarantees::{Bound, Cleanup, Guarantees, World};
pub use guard::{LockGuard, Ran, Release};
pub use hold::Hold;
pub use inspect::{Holder, Inspect, SessionId, Waiter};
pub use key::LockKey;
pub use locker::{Backend, BackendId, Locker, LockerExt};
pub use loss::{Loss, LossCause};
pub use memory::MemoryLocker;
pub use options::{AcquireOptions, Fencing, ScopedOptions, Wait};
pub use scoped::{ScopedLocker, ScopedLockerExt};
pub use telemetry::Instrumented;
pub use token::FencingToken;
pub use ttl::Ttl;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
