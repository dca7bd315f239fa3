//! A database with the tables of the page, and two who come at a time.

use std::time::Duration;

use distributed_lock::FencingToken;
use libtest_mimic::Trial;
use lock_testkit::{Cluster, requirement, wait_until};
use tokio_postgres::{Client, Error, NoTls};

pub(crate) const PAGE: &str = include_str!("../../../docs/fencing.md");
const LIMIT: Duration = Duration::from_secs(20);

/// The statements of the page, in its order.
pub(crate) struct Sql {
    pub(crate) accounts: &'static str,
    pub(crate) claim: &'static str,
    pub(crate) write: &'static str,
    pub(crate) fences: &'static str,
    pub(crate) seen: &'static str,
}

pub(crate) fn sql() -> Sql {
    let blocks: Vec<_> = PAGE.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let [accounts, claim, write, fences, seen] = blocks[..] else {
        panic!("the page has other statements: {blocks:?}")
    };
    Sql { accounts, claim, write, fences, seen }
}

/// A database with the tables of the page and the account `42`, and whoever looks on.
pub(crate) struct Bench {
    pub(crate) cluster: &'static Cluster,
    database: String,
    pub(crate) observer: Client,
    pub(crate) sql: Sql,
}

pub(crate) fn on_server(name: &str, body: impl AsyncFnOnce(Bench) + Send + 'static) -> Trial {
    requirement::trial(name, Cluster::shared, |cluster| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(async {
            let database = cluster.create_database().await.unwrap();
            let observer = connect(cluster, &database).await;
            let sql = sql();
            observer.batch_execute(&format!("{}{}", sql.accounts, sql.fences)).await.unwrap();
            observer.execute("insert into accounts (name, balance) values ('42', 100)", &[]).await.unwrap();
            body(Bench { cluster, database, observer, sql }).await;
        });
        Ok(())
    })
}

async fn connect(cluster: &Cluster, database: &str) -> Client {
    let (client, connection) = cluster.admin_config(database).connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Bench {
    pub(crate) async fn client(&self) -> Client {
        connect(self.cluster, &self.database).await
    }

    pub(crate) async fn balance(&self) -> i64 {
        self.observer.query_one("select balance from accounts where name = '42'", &[]).await.unwrap().get(0)
    }

    /// Returns when this session waits for another.
    pub(crate) async fn blocked(&self, pid: i32) {
        let waits = "select cardinality(pg_catalog.pg_blocking_pids($1)) > 0";
        let is_blocked = async || self.observer.query_one(waits, &[&pid]).await.unwrap().get(0);
        wait_until(LIMIT, "the second statement waits for the first", is_blocked).await.unwrap();
    }

    /// `earlier` has run `statement` in a transaction when `later` comes with the same in one of its own, and ends when that waits.
    pub(crate) async fn interleaved(
        &self,
        statement: &str,
        (earlier, end): (FencingToken, &str),
        (later, isolation): (FencingToken, &str),
    ) -> Result<bool, Error> {
        let (first, second) = (self.client().await, self.client().await);
        let pid = second.query_one("select pg_catalog.pg_backend_pid()", &[]).await?.get(0);
        first.batch_execute("begin isolation level read committed").await?;
        second.batch_execute(&format!("begin isolation level {isolation}; select from accounts")).await?;
        assert!(passes(&first, statement, earlier).await?, "nobody was there before");
        let ends = async {
            self.blocked(pid).await;
            first.batch_execute(end).await
        };
        let (passed, ended) = tokio::join!(passes(&second, statement, later), ends);
        ended?;
        let passed = passed?;
        second.batch_execute("commit").await?;
        Ok(passed)
    }
}

/// Whether the statement gives a row with this token, bound as the page says.
pub(crate) async fn passes(client: &Client, statement: &str, token: FencingToken) -> Result<bool, Error> {
    let text = token.to_string();
    let row = match statement.contains("$3") {
        true => client.query_opt(statement, &[&"42", &text, &i64::try_from(token.get()).unwrap_or(-1)]).await?,
        false => client.query_opt(statement, &[&"42", &text]).await?,
    };
    Ok(row.is_some())
}

pub(crate) const fn token(value: u128) -> FencingToken {
    FencingToken::new(value)
}
