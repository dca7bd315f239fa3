//! The kit's own sessions on a server.

use tokio_postgres::{Client, Config, Error, NoTls};

/// What the kit's own sessions are called on the server.
pub const APPLICATION_NAME: &str = "lock-testkit";

/// Opens a session whose connection is driven by a task of the current runtime.
pub(crate) async fn connect(config: &Config) -> Result<Client, Error> {
    let (client, connection) = config.connect(NoTls).await?;
    // The task ends with the client. What ends the connection early is seen by the client's next statement.
    tokio::spawn(connection);
    Ok(client)
}

/// Opens a session that a look-alike of a function or operator in another schema cannot deceive, whatever the role's and
/// the database's settings say.
pub(crate) async fn connect_guarded(config: &Config) -> Result<Client, Error> {
    let mut config = config.clone();
    connect(config.application_name(APPLICATION_NAME).options("-c search_path=pg_catalog")).await
}
