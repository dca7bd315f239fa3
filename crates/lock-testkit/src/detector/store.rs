//! Where a detector notes who is inside.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Error};

use crate::session;

/// `Ok` for one who is inside now, or who else is.
pub(super) type Entry = Result<(), Option<String>>;

#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<(BTreeMap<String, String>, u64)>);

impl Memory {
    pub(super) fn enter(&self, key: &str, owner: &str) -> Entry {
        let (inside, violations) = &mut *self.lock();
        if let Some(other) = inside.get(key) {
            *violations += 1;
            return Err(Some(other.clone()));
        }
        inside.insert(key.into(), owner.into());
        Ok(())
    }

    pub(super) fn leave(&self, key: &str, owner: &str) -> bool {
        let (inside, _) = &mut *self.lock();
        let was_inside = inside.get(key).is_some_and(|inside| inside == owner);
        was_inside && inside.remove(key).is_some()
    }

    pub(super) fn violations(&self) -> u64 {
        self.lock().1
    }

    /// Never held across an await.
    fn lock(&self) -> MutexGuard<'_, (BTreeMap<String, String>, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One session, owned by a task that does what it is asked in the order in which it was asked. So one who leaves in a drop,
/// where nothing can be awaited, has left before the next enters.
#[derive(Clone, Debug)]
pub(super) struct Postgres {
    orders: mpsc::UnboundedSender<Order>,
}

#[derive(Debug)]
enum Order {
    Enter(String, String, oneshot::Sender<Result<Entry, Error>>),
    Leave(String, String, Option<oneshot::Sender<Result<bool, Error>>>),
    Violations(oneshot::Sender<Result<i64, Error>>),
}

impl Postgres {
    pub(super) async fn connect(config: &Config) -> Result<Self, BoxError> {
        let client = session::connect_guarded(config).await?;
        make_tables(&client).await?;
        let (orders, queue) = mpsc::unbounded_channel();
        tokio::spawn(serve(client, queue));
        Ok(Self { orders })
    }

    pub(super) async fn enter(&self, key: &str, owner: &str) -> Result<Entry, BoxError> {
        self.ask(|reply| Order::Enter(key.into(), owner.into(), reply)).await
    }

    pub(super) async fn leave(&self, key: &str, owner: &str) -> Result<bool, BoxError> {
        self.ask(|reply| Order::Leave(key.into(), owner.into(), Some(reply))).await
    }

    pub(super) fn leave_later(&self, key: &str, owner: &str) {
        // If the task has gone with its runtime, the next to enter is told that the detector is blind.
        let _ = self.orders.send(Order::Leave(key.into(), owner.into(), None));
    }

    pub(super) async fn violations(&self) -> Result<u64, BoxError> {
        Ok(u64::try_from(self.ask(Order::Violations).await?)?)
    }

    async fn ask<T>(&self, order: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Order) -> Result<T, BoxError> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(order(reply)).map_err(|_| "the detector's task has ended")?;
        Ok(answer.await.map_err(|_| "the detector's task has ended")??)
    }
}

async fn serve(client: Client, mut queue: mpsc::UnboundedReceiver<Order>) {
    while let Some(order) = queue.recv().await {
        match order {
            Order::Enter(key, owner, reply) => {
                // One who was cancelled has no use for it, and has asked to leave again.
                let _ = reply.send(enter(&client, &key, &owner).await);
            }
            Order::Leave(key, owner, reply) => {
                let left = client.execute(LEAVE, &[&key, &owner]).await.map(|rows| rows == 1);
                // Nobody need listen: the next to enter sees what became of it.
                let _ = reply.map(|reply| reply.send(left));
            }
            Order::Violations(reply) => {
                let count = client.query_one("SELECT pg_catalog.count(*) FROM lock_testkit.violations", &[]).await;
                let _ = reply.send(count.map(|row| row.get(0)));
            }
        }
    }
}

async fn enter(client: &Client, key: &str, owner: &str) -> Result<Entry, Error> {
    let Err(error) = client.execute(ENTER, &[&key, &owner]).await else { return Ok(Ok(())) };
    if error.code() != Some(&SqlState::UNIQUE_VIOLATION) {
        return Err(error);
    }
    let inside = client.query_opt("SELECT owner FROM lock_testkit.inside WHERE key = $1", &[&key]).await?;
    let inside: Option<String> = inside.map(|row| row.get(0));
    client.execute("INSERT INTO lock_testkit.violations VALUES ($1, $2, $3)", &[&key, &inside, &owner]).await?;
    Ok(Err(inside))
}

/// Several processes can make the tables at once, and `IF NOT EXISTS` then fails with one of several errors.
async fn make_tables(client: &Client) -> Result<(), Error> {
    let mut attempts = 5;
    loop {
        attempts -= 1;
        let made = client.batch_execute(TABLES).await;
        if made.is_ok() || attempts == 0 {
            return made;
        }
    }
}

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

const TABLES: &str = "
    CREATE SCHEMA IF NOT EXISTS lock_testkit;
    CREATE TABLE IF NOT EXISTS lock_testkit.inside (key text PRIMARY KEY, owner text NOT NULL);
    CREATE TABLE IF NOT EXISTS lock_testkit.violations (key text NOT NULL, inside text, entered text NOT NULL)";
const ENTER: &str = "INSERT INTO lock_testkit.inside VALUES ($1, $2)";
const LEAVE: &str = "DELETE FROM lock_testkit.inside WHERE key = $1 AND owner = $2";
