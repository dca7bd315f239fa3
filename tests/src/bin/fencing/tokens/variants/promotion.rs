//! The timeline of the control file: after a promotion it is the old one until the first checkpoint, and a standby that had not received
//! everything has lower positions and ids.

use lock_testkit::Cluster;
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::block_in_place;
use tokio_postgres::Client;

use crate::{Failure, tokens::KEY};

use super::{
    Told,
    session::{Log, Parts, TAKE, connect, give_back, take},
};

pub(super) async fn history() -> Result<Told, Failure> {
    let old = Cluster::start()?;
    let new = block_in_place(|| old.standby())?;
    block_in_place(|| new.stop())?;
    let mut log = Log::default();
    let client = connect(&old.admin_config("postgres")).await?;
    client.batch_execute("select pg_catalog.pg_switch_wal()").await?;
    client.batch_execute("checkpoint").await?;
    let parts = take(&client, TAKE, KEY.1).await?;
    give_back(&client, KEY.1).await?;
    log.whole(1, 0, parts);
    drop(client);
    block_in_place(|| old.stop_immediate())?;
    block_in_place(|| new.restart())?;
    let client = connect(&new.admin_config("postgres")).await?;
    let checkpointer = checkpointer(&client).await?;
    // The checkpoint that follows a promotion is put off, rather than raced.
    kill_process(checkpointer, Signal::STOP)?;
    let promoted = promote(&client).await;
    kill_process(checkpointer, Signal::CONT)?;
    let parts = promoted?;
    log.whole(2, log.0.len(), parts);
    Ok(Told { wrong: log.with(Parts::by_control_file), right: log.with(Parts::right) })
}

async fn checkpointer(client: &Client) -> Result<Pid, Failure> {
    let query = "select a.pid from pg_catalog.pg_stat_activity as a \
                 where a.backend_type operator(pg_catalog.=) 'checkpointer'::pg_catalog.text";
    let pid = client.query_one(query, &[]).await?.get(0);
    Pid::from_raw(pid).ok_or_else(|| "no process id".into())
}

async fn promote(client: &Client) -> Result<Parts, Failure> {
    let promoted: bool = client.query_one("select pg_catalog.pg_promote()", &[]).await?.get(0);
    if !promoted {
        return Err("it did not become a primary".into());
    }
    let parts = take(client, TAKE, KEY.1).await?;
    give_back(client, KEY.1).await?;
    Ok(parts)
}
