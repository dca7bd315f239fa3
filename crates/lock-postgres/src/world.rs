//! Which server and database the locks of one locker live in, and whether that server may give any.

use std::sync::{Mutex, PoisonError};

use distributed_lock::{Error, ErrorKind, Result, World};
use tokio_postgres::{Row, SimpleQueryMessage};

use crate::error;

/// Which server and database the sessions of one locker belong to. Locks of two worlds do not exclude each other.
#[derive(Debug, Default)]
pub(crate) struct WorldCell(Mutex<Option<World>>);

impl WorldCell {
    pub(crate) fn get(&self) -> Option<World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The first session decides; one of another world is refused.
    fn ensure(&self, found: World) -> Result<()> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some(known) if *known != found => {
                let message = format!(
                    "the connection leads to another server than before ({found}, not {known}): locks there would not \
                     exclude those taken here; let every host of the connection string belong to one cluster"
                );
                Err(Error::new(ErrorKind::Misconfigured, message))
            }
            Some(_) => Ok(()),
            None => {
                *known = Some(found);
                Ok(())
            }
        }
    }
}

/// Refuses a standby, and a server of another world.
pub(crate) fn ensure_identity(row: &Row, target: &str, world: &WorldCell) -> Result<()> {
    refuse_standby(row, target)?;
    let fact = |name| row.try_get::<_, String>(name).map_err(|error| error::wrap(error, "read the server's identity"));
    world.ensure(World::new(fact("server")?, fact("database")?))
}

/// The same of a connection that a pool of the user's gave, which may also be in a transaction that somebody left open: a lease in it
/// would have no end, and a scoped run would commit it.
pub(crate) fn ensure_borrowed(answer: &[SimpleQueryMessage], world: &WorldCell) -> Result<()> {
    let row = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let fact = |name| row.and_then(|row| row.try_get(name).ok().flatten());
    match (fact("in_recovery"), fact("fresh"), fact("server"), fact("database")) {
        (Some("t"), ..) => Err(standby("the pool's server")),
        (Some("f"), Some("t"), Some(server), Some(database)) => world.ensure(World::new(server, database)),
        (Some("f"), Some("f"), ..) => {
            let message = "the pool gave a connection with a transaction that somebody left open; it was closed: let whoever uses the \
                           pool end their transactions";
            Err(Error::new(ErrorKind::Misconfigured, message))
        }
        _ => Err(Error::new(ErrorKind::Other, "BUG: the server's identity has an unknown form")),
    }
}

pub(crate) fn refuse_standby(row: &Row, target: &str) -> Result<()> {
    match row.try_get("in_recovery") {
        Ok(false) => Ok(()),
        Ok(true) => Err(standby(target)),
        Err(error) => Err(error::wrap(error, "ask whether the server is in recovery")),
    }
}

pub(crate) fn standby(target: &str) -> Error {
    let message = format!(
        "{target} is in recovery: a standby grants locks that the primary has granted to others; connect to the primary"
    );
    Error::new(ErrorKind::Misconfigured, message)
}
