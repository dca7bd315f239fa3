//! What the server's answers say.

use std::time::SystemTime;

use tokio_postgres::Row;

use crate::session::{DriverError, Owner, Scope};

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
    /// The server is a standby, whose grants exclude nobody.
    InRecovery,
}

#[derive(Debug)]
pub(crate) struct Granted {
    /// `None` if another session has our beacon: such a grant cannot be watched.
    pub(crate) owner: Option<Owner>,
    /// The parts of the fencing token.
    pub(crate) token: Option<String>,
    /// The session's idle limit before the grant; a wait has changed it before.
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

pub(crate) fn answer(row: &Row, scope: Scope, idle_before: Option<&str>) -> Result<Answer, DriverError> {
    if row.try_get("in_recovery")? {
        return Ok(Answer::InRecovery);
    }
    if !row.try_get::<_, bool>("granted")? {
        return Ok(Answer::Contended);
    }
    let owner = match scope {
        Scope::Session(beacon) => {
            let taken = row.try_get::<_, bool>("beacon")? && row.try_get::<_, bool>("again")?;
            taken.then_some(Owner::Session(beacon))
        }
        Scope::Transaction => Some(Owner::Transaction(row.try_get("since")?)),
    };
    let idle_before = idle_before.map(|column| row.try_get(column)).transpose()?;
    Ok(Answer::Granted(Granted { owner, token: row.try_get("token")?, idle_before }))
}

pub(crate) fn proof(row: &Row, owned: bool) -> Result<Proof, DriverError> {
    Ok(Proof { owned, in_recovery: row.try_get("in_recovery")?, now: row.try_get("now")? })
}
