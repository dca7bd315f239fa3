//! What it takes without lanes: one session, one key at a time, all of them held.

use std::time::Duration;

use tokio::time::Instant;

use crate::{Failure, servers};

/// How long it took. All are given back with the session.
pub(super) async fn take(url: &str, ids: &[i64]) -> Result<Duration, Failure> {
    let client = servers::connect(url).await?;
    let statement = client.prepare("select pg_catalog.pg_try_advisory_lock($1::pg_catalog.int8)").await?;
    let start = Instant::now();
    for id in ids {
        let taken: bool = client.query_one(&statement, &[id]).await?.get(0);
        if !taken {
            return Err("a key was not free".into());
        }
    }
    Ok(start.elapsed())
}
