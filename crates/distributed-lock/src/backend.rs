//! What a backend or wrapper author needs beyond the user's vocabulary.
//!
//! A backend implements [`Backend`], [`Locker`] (or [`ScopedLocker`]) and [`LockHandle`]. It starts a [`HoldRecord`] with each
//! grant and tells it what it learns; deadlines, views, cancellation and the order of events are then the core's work. Five rules
//! are not checked by any type:
//!
//! 1. The deadline counts from before the request left.
//! 2. [`LockGuard::new`] comes before the first await after the grant.
//! 3. [`LockHandle::abandon`] does not wait and needs no runtime.
//! 4. A wait ends within its budget, on a store that cannot queue by [`poll_until`].
//! 5. When the store answered and the call goes on, [`store_answered`] says so.
//!
//! ```
//! use std::{collections::HashSet, fmt, sync::{Arc, Mutex}};
//!
//! use async_trait::async_trait;
//! use distributed_lock::{
//!     AcquireOptions, Attempt, Backend, BackendId, Capabilities, Clock, Contention, Expiry, Guarantees, LockGuard, LockKey,
//!     Locker, LockerExt, Loss, LossCause, Reach, Release, Result, SystemClock, Ttl,
//!     backend::{HoldRecord, LockHandle, poll_until},
//! };
//!
//! /// Keys of this process. Cannot queue, and ends nobody's hold.
//! #[derive(Clone, Debug)]
//! struct SetLocker {
//!     id: BackendId,
//!     taken: Arc<Mutex<HashSet<LockKey>>>,
//! }
//!
//! impl SetLocker {
//!     async fn once(&self, key: &LockKey, ttl: Ttl) -> Result<Attempt> {
//!         let asked_at = SystemClock.now();
//!         if !self.taken.lock().unwrap().insert(key.clone()) {
//!             return Ok(Attempt::Contended(Contention::Held));
//!         }
//!         let record = HoldRecord::draft(self.id, key.clone(), Arc::new(SystemClock))
//!             .with_deadline(ttl.duration().map(|ttl| asked_at + ttl))
//!             .open();
//!         let handle = SetHandle { locker: self.clone(), record: record.clone() };
//!         Ok(Attempt::Acquired(LockGuard::new(record.hold(), ttl, handle)))
//!     }
//! }
//!
//! impl fmt::Display for SetLocker {
//!     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
//!         f.write_str("Set")
//!     }
//! }
//!
//! #[async_trait]
//! impl Backend for SetLocker {
//!     fn id(&self) -> BackendId {
//!         self.id
//!     }
//!     fn capabilities(&self) -> Capabilities {
//!         Capabilities::new(Expiry::Client, Reach::Process)
//!     }
//!     fn guarantees(&self) -> Guarantees {
//!         Guarantees::NONE
//!     }
//!     async fn ping(&self) -> Result<()> {
//!         Ok(())
//!     }
//!     async fn close(&self) -> Result<()> {
//!         Ok(()) // A real one ends its holds here and refuses later calls.
//!     }
//! }
//!
//! #[async_trait]
//! impl Locker for SetLocker {
//!     async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
//!         poll_until(options.wait, || self.once(key, options.ttl)).await
//!     }
//! }
//!
//! #[derive(Debug)]
//! struct SetHandle {
//!     locker: SetLocker,
//!     record: HoldRecord,
//! }
//!
//! #[async_trait]
//! impl LockHandle for SetHandle {
//!     async fn renew(&mut self, ttl: Ttl) -> Result<()> {
//!         let asked_at = SystemClock.now();
//!         match self.record.extend(ttl.duration().map(|ttl| asked_at + ttl), None) {
//!             true => Ok(()),
//!             false => Err(self.record.end().unwrap_or_else(|| Loss::new(LossCause::NotOurs)).into()),
//!         }
//!     }
//!     async fn release(&mut self) -> Result<Release> {
//!         self.abandon();
//!         Ok(Release::Released)
//!     }
//!     fn abandon(&mut self) {
//!         self.locker.taken.lock().unwrap().remove(self.record.hold().key());
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locker = SetLocker { id: BackendId::fresh(), taken: Arc::default() };
//! let guard = locker.acquire("orders", Ttl::UNTIL_RELEASED).await?;
//! assert!(locker.try_acquire("orders", Ttl::UNTIL_RELEASED).await?.is_contended());
//! guard.release().await?.exclusive()?;
//! # Ok(()) }
//! ```
//!
//! [`Backend`]: crate::Backend
//! [`Locker`]: crate::Locker
//! [`LockGuard::new`]: crate::LockGuard::new
//! [`ScopedLocker`]: crate::ScopedLocker

pub use crate::answered::{heard_by_caller, store_answered};
#[cfg(feature = "serde")]
pub use crate::fields::Fields;
pub use crate::locker::LockHandle;
pub use crate::poll::poll_until;
pub use crate::record::{Draft, HoldRecord};
pub use crate::scoped::{BoxFuture, ScopedBody};
pub use crate::telemetry::call::tell_waiting;
