//! The id in each row of a statement that takes several keys: it is fixed at the first grant, and somebody else has the last key between.

use lock_testkit::{Cluster, Observer, wait_until};
use tests::lease::AMPLE;

use crate::{
    Failure,
    tokens::witness::{Mark, Record},
};

use super::{
    Told,
    session::{Log, Parts, TAKE, connect, give_back, parts, take},
};

const FIRST: i64 = 1;
/// The statement waits for it, so that there is time before the last key.
const GATE: i64 = 2;
const LAST: i64 = 3;

macro_rules! lock {
    () => {
        "case when k operator(pg_catalog.=) 2::pg_catalog.int8 then pg_catalog.pg_advisory_lock(k)::pg_catalog.text is not null \
         else pg_catalog.pg_try_advisory_lock(k) end"
    };
}

/// The parts of the last key's token.
const WRONG: &str = concat!(
    "select case when ",
    lock!(),
    " then ",
    parts!(),
    " end as parts from pg_catalog.unnest($1::pg_catalog.int8[]) as k"
);
const RIGHT: &str = concat!(
    "select case when true operator(pg_catalog.=) all (g.locked) then ",
    parts!(),
    " end as parts \
     from (select array(select ",
    lock!(),
    " from pg_catalog.unnest($1::pg_catalog.int8[]) as k) as locked offset 0) as g"
);

pub(super) async fn history(cluster: &Cluster) -> Result<Told, Failure> {
    Ok(Told { wrong: told(cluster, WRONG).await?, right: told(cluster, RIGHT).await? })
}

async fn told(cluster: &Cluster, statement: &'static str) -> Result<Vec<Record>, Failure> {
    let config = cluster.admin_config("postgres");
    let [gate, batch, rival] = [connect(&config).await?, connect(&config).await?, connect(&config).await?];
    let observer = Observer::connect(&config).await?;
    let mut log = Log::default();
    take(&gate, TAKE, GATE).await?;
    let all = tokio::spawn(async move {
        let rows = batch.query(statement, &[&vec![FIRST, GATE, LAST]]).await;
        rows.map(|rows| (batch, rows))
    });
    let waits = async || {
        let locks = observer.advisory_locks().await.unwrap_or_default();
        locks.iter().any(|lock| lock.key == Some(GATE) && !lock.granted)
    };
    wait_until(AMPLE, "the statement has its first key and waits for the next", waits).await?;
    log.whole(1, 0, take(&rival, TAKE, LAST).await?);
    give_back(&rival, LAST).await?;
    give_back(&gate, GATE).await?;
    let (batch, rows) = all.await??;
    let parts: Option<String> = rows.last().ok_or("no rows")?.get("parts");
    let parts = Parts::parse(&parts.ok_or("a key is taken")?)?;
    log.note(Mark::Granted, 2, 0, parts);
    log.note(Mark::Ending, 2, 0, parts);
    for key in [FIRST, GATE, LAST] {
        give_back(&batch, key).await?;
    }
    log.note(Mark::Released, 2, 0, parts);
    Ok(log.with(Parts::right))
}
