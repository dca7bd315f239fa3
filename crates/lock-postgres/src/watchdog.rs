//! Ends holders that were cut off or frozen in the middle of a write, which stops the server's own timer, while somebody waits.
//!
//! Only the session of a lease, known by its beacon, that waits for its client and has been silent for longer than T +
//! max(T/10, 250 ms), T being what its beacon says: by then its own deadline has passed. It is looked at twice, since what the
//! server shows of a session that was granted its lock just now is not of one instant.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, SystemTime},
};

use distributed_lock::{ErrorKind, Result};
use tokio::time::sleep;
use tokio_postgres::{Row, types::Type};

use crate::{
    error,
    housekeeping::{Desk, Parameter},
    sql,
    timing::Timing,
};

/// From the first look to the second. A session that works has moved on by then.
const SECOND_LOOK: Duration = Duration::from_millis(50);

pub(crate) const SHORTEST_ROUND: Duration = Duration::from_millis(250);
const LONGEST_ROUND: Duration = Duration::from_secs(5);

/// How often it looks while somebody waits, at the least.
pub(crate) fn interval(session: &Timing) -> Duration {
    (session.ttl() / 4).clamp(SHORTEST_ROUND, LONGEST_ROUND)
}

/// Whether it does its work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Watched {
    Yes,
    /// Switched off.
    Off,
    /// The server does not let our role see or end the sessions of a holder's role.
    NotAllowed,
}

/// What is promised of a holder in that state; `None` over a pool of the user's.
pub(crate) fn note(session: &Timing, watched: Option<Watched>) -> Cow<'static, str> {
    match watched {
        Some(Watched::Yes) => {
            let bound = session.ttl() + session.margin() + interval(session) + SECOND_LOOK;
            format!(
                "a freeze in the middle of a write is bounded by the watchdog while a waiter of this locker queues: freed within \
                 {bound:?}; that of a body in the lock's transaction is not bounded"
            )
            .into()
        }
        Some(Watched::Off) => "a freeze in the middle of a write is not bounded: the watchdog is off".into(),
        Some(Watched::NotAllowed) => "a freeze in the middle of a write is not bounded: this role may not see or end the sessions of the \
                                      holder's role (grant it pg_read_all_stats and pg_signal_backend), or track_activities is off"
            .into(),
        None => "a freeze in the middle of a write is not bounded: over a pool of yours there is no watchdog".into(),
    }
}

/// One round over the holders of these ids. Whether we were allowed to look and to act.
pub(crate) async fn round(desk: &Arc<Desk>, ids: &[i64]) -> Result<bool> {
    let of_ids = || -> Parameter<'_> { (&ids, Type::INT8_ARRAY) };
    let seen = desk.ask(sql::SILENT, &[of_ids()], "look for silent holders").await?;
    let mut allowed = true;
    let mut silent = Vec::new();
    for row in &seen {
        match Silent::read(row).map_err(|error| error::wrap(error, "look for silent holders"))? {
            Some(session) => silent.push(session),
            None => allowed = false,
        }
    }
    if silent.is_empty() {
        return Ok(allowed);
    }
    sleep(SECOND_LOOK).await;
    for Silent { pid, began, last } in &silent {
        let parameters =
            [of_ids(), (pid as _, Type::INT4), (began as _, Type::TIMESTAMPTZ), (last as _, Type::TIMESTAMPTZ)];
        match desk.ask(sql::END_SILENT, &parameters, "end a silent holder").await {
            Ok(rows) if rows.is_empty() => {}
            Ok(_) => tracing::warn!(
                target: "lock_postgres",
                backend = pid,
                "ended the session of a holder that was cut off or frozen in the middle of a write"
            ),
            Err(error) if error.kind() == ErrorKind::Denied => allowed = false,
            Err(error) => return Err(error),
        }
    }
    Ok(allowed)
}

/// A holder at the first look.
struct Silent {
    pid: i32,
    began: SystemTime,
    last: SystemTime,
}

impl Silent {
    /// `None` if the server does not show what it does.
    fn read(row: &Row) -> Result<Option<Self>, tokio_postgres::Error> {
        if row.try_get("blind")? {
            return Ok(None);
        }
        let (pid, began, last) = (row.try_get("pid")?, row.try_get("backend_start")?, row.try_get("state_change")?);
        Ok(Some(Self { pid, began, last }))
    }
}
