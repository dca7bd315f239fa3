//! The id of a caller's transaction that had one before it took the key. The right way is to give such a grant no token.

use lock_testkit::Cluster;
use tokio_postgres::Client;

use crate::{Failure, tokens::KEY};

use super::{
    Told,
    session::{Log, Parts, TAKE, TAKE_IN_TRANSACTION, connect, give_back, take},
};

const IS_FRESH: &str = "select pg_catalog.pg_current_xact_id_if_assigned() is null";

pub(super) async fn history(cluster: &Cluster) -> Result<Told, Failure> {
    let config = cluster.admin_config("postgres");
    let [caller, rival] = [connect(&config).await?, connect(&config).await?];
    let (mut wrong, mut right) = (Log::default(), Log::default());
    caller.batch_execute("begin; select pg_catalog.pg_current_xact_id()").await?;
    let parts = take(&rival, TAKE, KEY.1).await?;
    give_back(&rival, KEY.1).await?;
    let (written, old) = in_transaction(&caller).await?;
    caller.batch_execute("begin").await?;
    let (empty, new) = in_transaction(&caller).await?;
    if written || !empty {
        return Err("the server does not tell which transaction had an id".into());
    }
    for log in [&mut wrong, &mut right] {
        log.whole(1, 0, parts);
    }
    wrong.whole(2, 0, old);
    wrong.whole(3, 0, new);
    right.whole(3, 0, new);
    Ok(Told { wrong: wrong.with(Parts::right), right: right.with(Parts::right) })
}

/// Takes the key in the transaction that is open and ends that: whether it had no id before, and the token.
async fn in_transaction(caller: &Client) -> Result<(bool, Parts), Failure> {
    let fresh = caller.query_one(IS_FRESH, &[]).await?.get(0);
    let parts = take(caller, TAKE_IN_TRANSACTION, KEY.1).await?;
    caller.batch_execute("commit").await?;
    Ok((fresh, parts))
}
