//! Throw-away PostgreSQL servers from the binaries installed on this machine.

mod builder;
mod cluster;
mod error;
mod installation;

pub use builder::Builder;
pub use cluster::Cluster;
pub use error::StartError;
pub use installation::{Installation, Missing};
