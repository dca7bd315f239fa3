//! Who holds and who waits, as the server's table of locks says it.

use std::{
    pin::pin,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use distributed_lock::{Attempt, Error, ErrorKind, Holder, Inspect, InvalidInput, LockKey, Result, SessionId, Waiter};
use tokio::time::timeout;
use tokio_postgres::{Row, types::Type};

use crate::{
    PostgresLocker, PostgresScopedLocker,
    core::{Core, closed},
    error,
    housekeeping::{Parameter, Sender, Wanted, payload},
    session::DriverError,
    sql,
};

macro_rules! inspect { ($($locker:ident),+) => { $(
    /// A session's id is the backend's process id in the server, and when it began. The server keeps no time of a grant: the hold of a
    /// session that is idle in a transaction counts from the begin of that, and any other from the begin of the session, which may have
    /// lain in a pool before. It knows neither tokens nor the processes of its clients, and the host only of those that come over TCP.
    /// Of sessions of other roles it shows no more than the backend and the application's name, unless our role was granted
    /// `pg_read_all_stats`; to end them it needs `pg_signal_backend` too.
    ///
    /// Asked on a connection beside the pool, or on one of the pool that you brought. `end_holder` ends the whole session: a
    /// program that keeps other locks in it loses them too.
    ///
    /// A request to step down is sent to everybody who listens in this database, as the namespace, the id of the lock and a random number. Lockers with
    /// [`with_hand_over`](crate::PostgresConfig::with_hand_over) listen from their first grant on, and whoever of them holds the lock
    /// when it arrives is asked.
    #[async_trait]
    impl Inspect for $locker {
        async fn holders(&self, key: &LockKey) -> Result<Vec<Holder>> {
            self.core().holders(key).await.map_err(|error| about(error, key))
        }
        async fn waiters(&self, key: &LockKey) -> Result<Vec<Waiter>> {
            self.core().waiters(key).await.map_err(|error| about(error, key))
        }
        async fn end_holder(&self, key: &LockKey, holder: &Holder) -> Result<bool> {
            self.core().end_holder(key, &holder.session).await.map_err(|error| about(error, key))
        }
        async fn request_step_down(&self, key: &LockKey) -> Result<bool> {
            let core = self.core();
            core.request_step_down(core.id_of(key)).await.map_err(|error| about(error, key))
        }
    }
)+ } }
inspect!(PostgresLocker, PostgresScopedLocker);

fn about(error: Error, key: &LockKey) -> Error {
    if error.key().is_some() { error } else { error.with_key(key) }
}

impl Core {
    pub(crate) fn id_of(&self, key: &LockKey) -> i64 {
        self.settings.keys.id(self.settings.namespace, key)
    }

    pub(crate) async fn holders(&self, key: &LockKey) -> Result<Vec<Holder>> {
        let doing = "list the holders of a lock";
        let rows = self.ask(sql::HOLDERS, &[(&self.id_of(key) as _, Type::INT8)], doing).await?;
        let holders: Result<_, DriverError> = rows.iter().map(|row| Party::read(row).map(Party::holder)).collect();
        holders.map_err(|error| error::wrap(error, doing))
    }

    pub(crate) async fn waiters(&self, key: &LockKey) -> Result<Vec<Waiter>> {
        let doing = "list the waiters for a lock";
        let rows = self.ask(sql::WAITERS, &[(&self.id_of(key) as _, Type::INT8)], doing).await?;
        let waiters: Result<_, DriverError> = rows.iter().map(|row| Party::read(row).map(Party::waiter)).collect();
        waiters.map_err(|error| error::wrap(error, doing))
    }

    pub(crate) async fn end_holder(&self, key: &LockKey, session: &SessionId) -> Result<bool> {
        let (pid, began) = parse(session)?;
        let began = began.ok_or_else(|| invisible(session))?;
        let id = self.id_of(key);
        let parameters = [(&id as _, Type::INT8), (&pid as _, Type::INT4), (&began as _, Type::TIMESTAMPTZ)];
        let rows = match self.ask(sql::END_HOLDER, &parameters, "end a holder").await {
            Err(error) if error.kind() == ErrorKind::Denied && error.code() == Some("42501") => {
                let message = "this role may not end the holder's session: grant it pg_signal_backend, or be a superuser where the \
                               holder is one";
                return Err(Error::new(ErrorKind::Denied, message).with_code("42501").with_source(error));
            }
            rows => rows?,
        };
        let Some(row) = rows.first() else { return Ok(false) };
        let ended: Option<bool> = row.try_get("ended").map_err(|error| error::wrap(error, "end a holder"))?;
        ended.ok_or_else(|| invisible(session))
    }

    pub(crate) async fn request_step_down(&self, id: i64) -> Result<bool> {
        let payload = payload(self.settings.namespace, id, Sender::OPERATOR);
        let parameters = [(&id as _, Type::INT8), (&payload as _, Type::TEXT), (&None::<i32> as _, Type::INT4)];
        let asked = self.ask(sql::REQUEST_STEP_DOWN, &parameters, "ask a holder to step down").await?;
        Ok(!asked.is_empty())
    }

    /// Asks the holder to step down if that can be done in time; the acquire that wants it goes on in any case.
    pub(crate) async fn ask_once(&self, id: i64, limit: Duration) {
        match timeout(limit, self.request_step_down(id)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::debug!(target: "lock_postgres", %error, "a holder could not be asked to step down")
            }
            Err(_elapsed) => {
                tracing::debug!(target: "lock_postgres", "a holder could not be asked to step down in time")
            }
        }
    }

    /// For as long as somebody waits for this id in the server's queue.
    pub(crate) fn want(&self, id: i64, asks: bool) -> Option<Wanted> {
        self.housekeeping.as_ref().map(|housekeeping| housekeeping.want(id, asks))
    }

    /// On the housekeeping session, or on a connection of the user's pool. Both are cancel safe.
    async fn ask(&self, statement: &str, parameters: &[Parameter<'_>], doing: &'static str) -> Result<Vec<Row>> {
        self.ensure_open()?;
        let ask = async {
            match &self.housekeeping {
                Some(housekeeping) => housekeeping.ask(statement, parameters, doing).await,
                None => self.ask_borrowed(statement, parameters, doing).await,
            }
        };
        tokio::select! {
            biased;
            () = self.until_closed() => Err(closed()),
            rows = ask => rows,
        }
    }

    async fn ask_borrowed(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
        doing: &'static str,
    ) -> Result<Vec<Row>> {
        let Attempt::Acquired(session) = self.pool.reserve(self.settings.conn_wait).await? else {
            let message = "every connection of the pool is in use, so the server could not be asked";
            return Err(Error::new(ErrorKind::LimitReached, message));
        };
        let limit = self.settings.session.query_timeout();
        let asked = session.within(limit, pin!(session.link().client().query_typed(statement, parameters))).await;
        match asked {
            Some(Ok(rows)) => {
                session.give_back();
                Ok(rows)
            }
            Some(Err(error)) => Err(error::wrap(error, doing)),
            None => Err(crate::budget::unanswered("a question", limit)),
        }
    }
}

/// One row of `sql::HOLDERS` or `sql::WAITERS`.
struct Party {
    session: SessionId,
    since: Option<Duration>,
    application_name: Option<String>,
    host: Option<String>,
}

impl Party {
    fn read(row: &Row) -> Result<Self, DriverError> {
        let (now, since): (SystemTime, Option<SystemTime>) = (row.try_get("now")?, row.try_get("since")?);
        let name: Option<String> = row.try_get("application_name")?;
        Ok(Self {
            session: name_of(row.try_get("pid")?, row.try_get("backend_start")?),
            // Later than now only by a step of the server's clock.
            since: since.map(|since| now.duration_since(since).unwrap_or_default()),
            application_name: name.filter(|name| !name.is_empty()),
            host: row.try_get("host")?,
        })
    }

    fn holder(self) -> Holder {
        let Self { session, since, application_name, host } = self;
        let mut holder = Holder::new(session);
        (holder.held_for, holder.application_name, holder.host) = (since, application_name, host);
        holder
    }

    fn waiter(self) -> Waiter {
        let Self { session, since, application_name, host } = self;
        let mut waiter = Waiter::new(session);
        (waiter.waiting_for, waiter.application_name, waiter.host) = (since, application_name, host);
        waiter
    }
}

/// The backend and when it began, in microseconds since 1970, as exact as the server's own clock; without the latter where the
/// server does not show it.
fn name_of(pid: Option<i32>, began: Option<SystemTime>) -> SessionId {
    let micros =
        began.and_then(|began| began.duration_since(SystemTime::UNIX_EPOCH).ok()).map(|since| since.as_micros());
    SessionId::new(match (pid, micros) {
        (Some(pid), Some(micros)) => format!("{pid}.{micros}"),
        (Some(pid), None) => pid.to_string(),
        (None, _) => PREPARED.to_owned(),
    })
}

/// What holds locks without a session.
const PREPARED: &str = "prepared transaction";

fn parse(session: &SessionId) -> Result<(i32, Option<SystemTime>)> {
    let text = session.as_str();
    if text == PREPARED {
        let message = "a prepared transaction holds it: end it with rollback prepared";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let (pid, micros) = text.split_once('.').map_or((text, None), |(pid, micros)| (pid, Some(micros)));
    let pid = pid.parse().ok().filter(|pid| *pid > 0);
    let began = micros.map(|micros| {
        let since = micros.parse().map(Duration::from_micros).ok();
        since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since))
    });
    match (pid, began) {
        (Some(pid), None) => Ok((pid, None)),
        (Some(pid), Some(Some(began))) => Ok((pid, Some(began))),
        _ => Err(InvalidInput::new(
            "holder",
            format_args!("{text:?}"),
            "must be a session that a PostgreSQL locker named",
        )
        .into()),
    }
}

fn invisible(session: &SessionId) -> Error {
    let message = format!(
        "the server does not show this role what session {session} is, so it cannot be told from a later one: grant the role \
         pg_read_all_stats and pg_signal_backend"
    );
    Error::new(ErrorKind::Denied, message).with_code("42501")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sessions_are_read_back_to_the_microsecond() {
        let began = SystemTime::UNIX_EPOCH + Duration::from_micros(1_764_537_600_123_457);
        assert_eq!(parse(&name_of(Some(4711), Some(began))).unwrap(), (4711, Some(began)));
        assert_eq!(parse(&name_of(Some(4711), None)).unwrap(), (4711, None));
        assert_eq!(parse(&name_of(None, None)).unwrap_err().kind(), ErrorKind::Unsupported);
        for foreign in
            ["", "x", "-1", "0", "1.", ".1", "1.x", "1.-1", "1.1.1", "4711/1", "99999999999", "1.99999999999999999999"]
        {
            let error = parse(&SessionId::new(foreign)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{foreign}");
        }
    }
}
