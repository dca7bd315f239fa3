//! The id of a transaction alone: it is handed out again after a crash if nothing of it was in the server's log.

use lock_testkit::Cluster;
use tokio::task::block_in_place;

use crate::{
    Failure,
    tokens::{KEY, witness::Mark},
};

use super::{
    Told,
    session::{Log, TAKE_IN_TRANSACTION, connect, take},
};

pub(super) async fn history(cluster: &Cluster) -> Result<Told, Failure> {
    let config = cluster.admin_config("postgres");
    // What is handed out next is known to the server's log from here on.
    connect(&config).await?.batch_execute("checkpoint").await?;
    let mut log = Log::default();
    let client = connect(&config).await?;
    client.batch_execute("begin").await?;
    log.note(Mark::Granted, 1, 0, take(&client, TAKE_IN_TRANSACTION, KEY.1).await?);
    block_in_place(|| cluster.restart_immediate())?;
    let asked = log.0.len();
    let client = connect(&config).await?;
    client.batch_execute("begin").await?;
    let parts = take(&client, TAKE_IN_TRANSACTION, KEY.1).await?;
    client.batch_execute("commit").await?;
    log.whole(2, asked, parts);
    Ok(Told { wrong: log.with(|parts| parts.id), right: log.with(|parts| parts.right()) })
}
