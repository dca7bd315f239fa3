//! Distributed locks on PostgreSQL advisory locks.
//!
//! [`PostgresLocker`] keeps each hold on a reserved connection of its own. Its holds are leases that the server enforces, its
//! waiters queue in the server, and every grant carries a fencing token.

mod acquire;
mod answer;
mod borrowed;
mod budget;
mod config;
mod connect;
mod core;
mod error;
mod keeper;
mod key;
mod lease;
mod link;
mod locker;
mod pool;
mod promises;
mod reaper;
mod registry;
mod reserved;
mod scoped;
mod session;
mod sql;
mod timing;
mod token;
mod transaction;
mod world;

pub use config::PostgresConfig;
pub use key::KeyScheme;
pub use locker::PostgresLocker;
pub use scoped::PostgresScopedLocker;
