//! The servers that are measured, and sessions on them.

use std::{fmt, time::Duration};

use lock_testkit::{
    Cluster, Redis,
    postgres::{self, Builder},
    redis,
};
use tokio_postgres::{Client, NoTls};

use crate::Failure;

/// A stall that no sample counts beside.
pub(crate) const STALL: Duration = Duration::from_millis(20);

/// A server that this machine lacks.
#[derive(Debug)]
pub(crate) struct Missing(String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

pub(crate) fn start(builder: Builder) -> Result<Cluster, Failure> {
    builder.start().map_err(|error| match error {
        postgres::StartError::Missing(missing) => Missing(missing.to_string()).into(),
        failed @ postgres::StartError::Failed { .. } => failed.into(),
    })
}

pub(crate) fn start_redis() -> Result<Redis, Failure> {
    Redis::start().map_err(|error| match error {
        missing @ redis::StartError::Missing { .. } => Missing(missing.to_string()).into(),
        failed @ redis::StartError::Failed { .. } => failed.into(),
    })
}

/// Over the unix socket, as everything here that is compared.
pub(crate) fn url(cluster: &Cluster) -> String {
    format!("host={} port={} user=postgres dbname=postgres", cluster.socket_dir().display(), cluster.port())
}

/// A session that knows nothing of our lockers.
pub(crate) async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
