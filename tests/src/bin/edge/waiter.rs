//! Who waits: the locker, or a waiter that is broken on purpose.

use std::sync::{Mutex, PoisonError, atomic::Ordering};

use distributed_lock::{Attempt, Backend, Contention, ErrorKind, LockerExt};
use lock_postgres::PostgresLocker;
use tokio_postgres::{Client, NoTls};

use crate::{
    Counts, Failure, TTL, WAIT,
    sql::{LOCK, OWNED, UNLOCK, ask, has_state},
};

pub(crate) enum Waiter {
    Product(PostgresLocker),
    Broken(Broken),
}

impl Waiter {
    /// Waits once and gives back at once what it was granted; whether it was.
    pub(crate) async fn wait(&self, key: (&str, i64), counts: &Counts) -> Result<bool, Failure> {
        let locker = match self {
            Self::Product(locker) => locker,
            Self::Broken(broken) => return broken.wait(key.1, counts).await,
        };
        loop {
            match locker.acquire_within(key.0, TTL, WAIT).await {
                Ok(Attempt::Acquired(guard)) => {
                    guard.release().await?.exclusive()?;
                    return Ok(true);
                }
                Ok(Attempt::Contended(Contention::WaitElapsed)) => return Ok(false),
                // Destroyed sessions keep their places until the server has let go of them. No wait, so none is counted.
                Ok(Attempt::Contended(Contention::NoConnection)) => {}
                Ok(Attempt::Contended(why)) => return Err(format!("unexpected contention: {why}").into()),
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    counts.unanswered.fetch_add(1, Ordering::Relaxed);
                    eprintln!("edge: repeated: {error}");
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) async fn close(&self) -> Result<(), Failure> {
        match self {
            Self::Product(locker) => locker.close().await?,
            Self::Broken(broken) => broken.free.lock().unwrap_or_else(PoisonError::into_inner).clear(),
        }
        Ok(())
    }
}

/// A pool whose sessions come back also after a wait that failed, with whatever they own.
pub(crate) struct Broken {
    pub(crate) url: String,
    pub(crate) free: Mutex<Vec<Client>>,
}

impl Broken {
    async fn wait(&self, id: i64, counts: &Counts) -> Result<bool, Failure> {
        loop {
            let client = self.reserve().await?;
            let waited = Self::wait_on(&client, id, counts).await;
            // Ended by us because it owned another key that it should not.
            if waited.as_ref().is_err_and(|error| client.is_closed() || has_state(error, "57P01")) {
                continue;
            }
            let granted = waited?;
            self.free.lock().unwrap_or_else(PoisonError::into_inner).push(client);
            return Ok(granted);
        }
    }

    async fn wait_on(client: &Client, id: i64, counts: &Counts) -> Result<bool, tokio_postgres::Error> {
        match ask(client, LOCK, id).await {
            Ok(_) => {
                ask(client, UNLOCK, id).await?;
                Ok(true)
            }
            Err(error) if has_state(&error, "55P03") => {
                // Looked up for the figure only.
                let owned: i64 = ask(client, OWNED, id).await?.get(0);
                counts.errored_while_granted.fetch_add(u64::from(owned > 0), Ordering::Relaxed);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn reserve(&self) -> Result<Client, Failure> {
        let free = || self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        while let Some(client) = free() {
            if !client.is_closed() {
                return Ok(client);
            }
        }
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(&format!("set lock_timeout = {}", WAIT.as_millis())).await?;
        Ok(client)
    }
}
