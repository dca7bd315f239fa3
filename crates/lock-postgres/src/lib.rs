//! Distributed locks on PostgreSQL advisory locks.
//!
//! [`PostgresLocker`] keeps each hold on a reserved connection of its own. Its holds are leases that the server enforces, its
//! waiters queue in the server, and every grant carries a fencing token. [`PostgresSharedSession`] holds many locks on each of a few
//! sessions: for many keys, and for the lease runner. [`PostgresScopedLocker`] runs a body under a lock that a
//! transaction holds, and [`with_transaction`](PostgresScopedLocker::with_transaction) gives the body that very transaction. All
//! exclude each other on the same key, namespace and database.
//!
//! # Guarantees
//!
//! With default settings; [`guarantees()`](distributed_lock::Backend::guarantees) computes the same from the live ones. T is the
//! hold's TTL, or 17 s for one until released. Each row has its tests in `docs/guarantees.md`.
//!
//! | | |
//! |---|---|
//! | exclusion | one holder per key, namespace and database of one primary |
//! | the lock ends by | release, drop, T (our timer and the server's), or the end of its session |
//! | process killed | free within 100 ms: the server sees the socket close |
//! | process frozen or suspended | free at T + 100 ms; `ensure_valid()` fails when it wakes |
//! | cut off | the holder is told within 15.1 s and before anybody else gets in; free at T + 0.5 s |
//! | cut off in the middle of a write | free within T + 6 s, by the watchdog of a waiter in the queue; else not bounded |
//! | connection closed | the holder is told within 100 ms, at once as a rule |
//! | runtime not polled | an honest loss: `ensure_valid()` fails in time by the clock alone |
//! | waiting | the server's queue, first come first served; the caller's budget covers pool, connection and queue |
//! | dead waiter | holds up those behind it for 4.75 s at most |
//! | dropped future or guard | nothing stays beyond 0.6 s, without a runtime too |
//! | fencing | tokens grow over releases, crashes and restarts of one server; on by default, scoped runs must ask |
//! | connections | one per hold and per waiter, never more than `pool_size` (8); `ping` may open one beside the pool |
//! | housekeeping | one connection more, on a thread of its own: for `Inspect`, with `hand_over`, and while somebody waits for longer than 3.4 s |
//! | transaction form | no TTL: what the body did commits with the lock or not at all; a body silent for 17 s loses it |
//!
//! Over a pool that you bring (`with_pool`), drop and notice are weaker, as its docs say. Of [`PostgresSharedSession`] other rows hold for
//! waiting, connections and a runtime that is not polled, as its docs say, and the locks of one of its sessions are lost together.
//!
//! # Not guaranteed
//!
//! - That the old holder has stopped: it is told, and must ask `ensure_valid()`, use the token, or use the transaction form.
//! - One holder across a failover while the old primary still runs and is reachable.
//! - The whole T when the server's wall clock is set forward during a lease by more than max(T/10, 250 ms), if T exceeds 10 s.
//! - A bound when a process freezes or is cut off in the middle of a write and nobody waits with a watchdog, or in the transaction form.
//! - Anything behind a pooler in transaction mode, or across two databases.

mod acquire;
mod answer;
mod borrowed;
mod budget;
mod config;
mod connect;
mod core;
mod error;
mod housekeeping;
mod inspect;
mod jitter;
mod keeper;
mod key;
mod lease;
mod link;
mod locker;
#[cfg(test)]
mod logged;
mod pool;
mod promises;
mod reaper;
mod registry;
mod reserved;
mod runtime;
mod scoped;
mod session;
mod shared;
#[macro_use]
mod sql;
mod sql_lanes;
mod timer;
mod timing;
mod token;
mod transaction;
mod watchdog;
mod world;

pub use config::PostgresConfig;
pub use key::KeyScheme;
pub use locker::PostgresLocker;
pub use scoped::PostgresScopedLocker;
pub use shared::PostgresSharedSession;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
