//! What one round trip to a server costs, for figures that are a share of it.

use std::fmt;

use tokio_postgres::{Client, Config, Error, Statement};

use crate::session;

/// A session that asks for nothing but an answer.
pub struct RoundTrip {
    client: Client,
    statement: Statement,
}

impl RoundTrip {
    /// Opens the session and prepares the statement.
    pub async fn connect(config: &Config) -> Result<Self, Error> {
        let client = session::connect_guarded(config).await?;
        let statement = client.prepare("select 1").await?;
        Ok(Self { client, statement })
    }

    /// There and back once.
    pub async fn run(&self) -> Result<(), Error> {
        self.client.query_one(&self.statement, &[]).await.map(drop)
    }
}

impl fmt::Debug for RoundTrip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoundTrip").finish_non_exhaustive()
    }
}
