//! What the server's answers say.

use std::time::SystemTime;

use distributed_lock::{Error, ErrorKind};
use tokio_postgres::Row;

use crate::{
    session::{DriverError, Owner, Scope},
    sql, world,
};

/// The limits of the statements of a body in the lock's transaction.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) statement_timeout: String,
    pub(crate) lock_timeout: String,
}

/// What a wait found before it changed it.
#[derive(Debug)]
pub(crate) struct Before {
    pub(crate) idle: String,
    pub(crate) limits: Limits,
    pub(crate) check_interval: String,
    pub(crate) transaction_timeout: Option<String>,
}

/// The answer to a lock statement.
#[derive(Debug)]
pub(crate) enum Answer {
    Contended,
    Granted(Granted),
    /// Whatever was taken is not to be used, so the session must be destroyed.
    Refused(Error),
}

#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) owner: Owner,
    /// The parts of the fencing token.
    pub(crate) token: Option<String>,
    /// What the idle limit of a borrowed session is to be after the hold.
    pub(crate) idle_before: Option<String>,
}

/// What a heartbeat answered.
#[derive(Debug)]
pub(crate) struct Proof {
    /// Whether the lock is still ours.
    pub(crate) owned: bool,
    pub(crate) in_recovery: bool,
    /// The server's clock.
    pub(crate) now: SystemTime,
}

pub(crate) fn limits(row: &Row) -> Result<Limits, DriverError> {
    Ok(Limits { statement_timeout: row.try_get("statement_timeout")?, lock_timeout: row.try_get("lock_timeout")? })
}

pub(crate) fn before(row: &Row) -> Result<Before, DriverError> {
    Ok(Before {
        idle: row.try_get("idle")?,
        limits: limits(row)?,
        check_interval: row.try_get("check_interval")?,
        transaction_timeout: row.try_get("transaction_timeout")?,
    })
}

pub(crate) fn answer(row: &Row, scope: Scope) -> Result<Answer, DriverError> {
    let text: &str = row.try_get("answer")?;
    let (word, token) = match text.split_once(' ') {
        Some((word, token)) => (word, Some(token)),
        None => (text, None),
    };
    Ok(match word {
        sql::GRANTED => {
            let owner = match scope {
                Scope::Session(beacon) => Owner::Session(beacon),
                Scope::Transaction => Owner::Transaction(row.try_get("since")?),
            };
            Answer::Granted(Granted { owner, token: token.map(str::to_owned), idle_before: None })
        }
        sql::CONTENDED => Answer::Contended,
        sql::BEACON_TAKEN => Answer::Refused(beacon_taken()),
        sql::RECOVERY => Answer::Refused(world::standby("the server")),
        _ => Answer::Refused(Error::new(ErrorKind::Other, format!("BUG: a lock statement answered {word:?}"))),
    })
}

pub(crate) fn beacon_taken() -> Error {
    let message = "another session has this session's beacon, so the grant was given back; try again";
    Error::new(ErrorKind::Unavailable, message)
}

pub(crate) fn proof(row: &Row, owned: bool) -> Result<Proof, DriverError> {
    Ok(Proof { owned, in_recovery: row.try_get("in_recovery")?, now: row.try_get("now")? })
}
