//! Distributed locks chosen by configuration: a provider by its name or URL becomes `Arc<dyn Locker>` or `Arc<dyn ScopedLocker>`.
//!
//! [`LockConfig`] is read by serde from any format that describes itself, from the environment, or from both. Services take the
//! trait objects and name no backend; this crate alone knows which there are.
//!
//! | provider | gives | cargo feature |
//! |---|---|---|
//! | `memory` | [`MemoryLocker`](distributed_lock::MemoryLocker): locks in this process | always |
//! | `noop` | a locker that **locks nothing**, for who says so by this name | always |
//! | `postgres`, `postgres://…`, `postgresql://…` | `PostgresLocker`, `PostgresScopedLocker` | `postgres` |
//!
//! There is no default provider.
//!
//! ```
//! use std::sync::Arc;
//! use distributed_lock::{ScopedLocker, ScopedLockerExt};
//! use lock_connect::LockConfig;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config: LockConfig = toml::from_str(
//!     r#"
//!     provider = "memory"
//!     [memory]
//!     scoped_ttl = "10s"
//!     "#,
//! )?;
//! let locks: Arc<dyn ScopedLocker> = config.scoped_locker()?;
//! locks.ping().await?;
//! assert_eq!(locks.with_lock("orders", async |_hold| 42).await?, 42);
//! locks.close().await?;
//! # Ok(()) }
//! ```

mod around;
mod breaker;
mod config;
mod noop;
mod provider;
mod telemetry;

pub use config::LockConfig;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
