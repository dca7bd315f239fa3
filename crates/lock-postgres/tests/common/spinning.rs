//! Rounds of a watchdog without any pause.

use std::time::SystemTime;

use tokio::time::Instant;
use tokio_postgres::Client;

/// The very statements of the crate.
#[allow(dead_code, reason = "only two of them are needed")]
#[path = "../../src/sql.rs"]
mod sql;

pub(crate) struct Statements {
    silent: String,
    end: String,
}

impl Statements {
    pub(crate) fn ours() -> Self {
        Self { silent: sql::SILENT.into(), end: sql::END_SILENT.into() }
    }

    /// Ours with one part replaced, in both.
    #[allow(dead_code, reason = "not every target breaks them")]
    pub(crate) fn with(part: &str, replacement: &str) -> Self {
        let replace = |statement: &str| {
            assert!(statement.contains(part), "{part:?} is not in {statement}");
            statement.replace(part, replacement)
        };
        Self { silent: replace(sql::SILENT), end: replace(sql::END_SILENT) }
    }
}

/// The rounds for the holders of these ids, without any pause between them nor between the two looks. How many there were, and how
/// many sessions they ended.
pub(crate) async fn spin(client: &Client, ids: &[i64], statements: &Statements, until: Instant) -> (u64, u64) {
    let ids = ids.to_vec();
    let (mut rounds, mut ended) = (0, 0);
    while Instant::now() < until {
        rounds += 1;
        for row in client.query(&statements.silent, &[&ids]).await.unwrap() {
            let (pid, began): (i32, SystemTime) = (row.get("pid"), row.get("backend_start"));
            let last: SystemTime = row.get("state_change");
            ended += client.query(&statements.end, &[&ids, &pid, &began, &last]).await.unwrap().len() as u64;
        }
        tokio::task::yield_now().await;
    }
    (rounds, ended)
}
