//! One PostgreSQL connection of ours that can own advisory locks: opened, set up, and asked.

use std::time::{Duration, SystemTime};

use distributed_lock::{Error, ErrorKind, Result};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::{
    Client, IsolationLevel, Row, Statement, Transaction,
    types::{ToSql, Type},
};

use crate::{
    answer::{Answer, Before, Limits, Proof, answer, before, limits, proof},
    connect::{Connector, Opened},
    error,
    link::{Borrowed, Link, OwnLink},
    sql,
    world::{WorldCell, ensure_borrowed, ensure_identity, refuse_standby},
};

/// For one server: from the look-up of its name until the session is set up.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) type DriverError = tokio_postgres::Error;

/// A session that is ready for lock statements.
#[derive(Debug)]
pub(crate) struct Session {
    link: Link,
    statements: Statements,
    /// The limits that a session of ours had before we set its own; `None` for a borrowed one, which keeps them.
    inherited: Option<Limits>,
}

/// Prepared once, so that a grant and a release are one write each.
#[derive(Debug)]
struct Statements {
    try_lock: Statement,
    try_fenced: Statement,
    heartbeat: Statement,
    unlock: Statement,
}

/// The key of the two-int space that tells whether this session still owns what it took: the TTL in ms, and 32 random bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Beacon {
    pub(crate) ttl_millis: i32,
    pub(crate) random: i32,
}

/// How a lock is owned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Scope {
    /// By the session, which holds this beacon beside it.
    Session(Beacon),
    /// By a transaction of its own.
    Transaction,
}

/// What tells whether a lock is still owned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Owner {
    Session(Beacon),
    /// The transaction that began then, by the server's clock.
    Transaction(SystemTime),
}

/// What a lock statement asks for.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) id: i64,
    pub(crate) scope: Scope,
    /// The idle limit of a holder, in ms.
    pub(crate) idle: String,
    pub(crate) fenced: bool,
}

impl Session {
    /// Opens a session on the first server that accepts locks. `idle` is the limit of a session that owns nothing, in ms.
    pub(crate) async fn open(connector: &Connector, idle: &str, world: &WorldCell) -> Result<Self> {
        let mut failed = None;
        for target in connector.hosts() {
            let deadline = Instant::now() + OPEN_TIMEOUT;
            let opened = match connector.open(target, OPEN_TIMEOUT).await {
                Ok(opened) => opened,
                Err(error) => {
                    failed = Some(Error::from(error));
                    continue;
                }
            };
            let at = opened.target.clone();
            let set_up = timeout_at(deadline, Self::set_up(opened, idle, world)).await;
            match set_up {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(error)) => failed = Some(error),
                Err(_elapsed) => {
                    let message = format!("{at} accepted the connection but did not answer within {OPEN_TIMEOUT:?}");
                    failed = Some(Error::new(ErrorKind::Unavailable, message));
                }
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::Misconfigured, "the connection string names no host")))
    }

    async fn set_up(opened: Opened, idle: &str, world: &WorldCell) -> Result<Self> {
        let target = opened.target.clone();
        let link = OwnLink::drive(opened);
        // All in one write.
        let (identity, (before, statements)) =
            tokio::try_join!(biased; link.query_typed_one(sql::IDENTITY, &[]), initialize(&link, idle))
                .map_err(|error| set_up_failed(error, &target))?;
        ensure_identity(&identity, &target, world)?;
        let inherited = limits(&before).map_err(|error| error::wrap(error, "read a session's settings"))?;
        Ok(Self { link: Link::Own(link), statements, inherited: Some(inherited) })
    }

    /// A session over a connection of a pool that the user handed in. Its settings stay as they are.
    pub(crate) async fn borrow(object: deadpool_postgres::Object, world: &WorldCell) -> Result<Self> {
        let prepare = |statement, types| object.prepare_typed_cached(statement, types);
        // The statements come from the connection's own cache, but for the first time. Which server it is must be asked each time:
        // the pool may have reconnected to another.
        let (identity, try_lock, try_fenced, heartbeat, unlock) = tokio::try_join!(
            object.simple_query(sql::BORROWED_IDENTITY),
            prepare(sql::TRY, TRY_TYPES),
            prepare(sql::TRY_FENCED, TRY_TYPES),
            prepare(sql::HEARTBEAT, HEARTBEAT_TYPES),
            prepare(sql::UNLOCK, UNLOCK_TYPES),
        )
        .map_err(|error| error::wrap(error, "prepare a borrowed session"))?;
        if let Err(error) = ensure_borrowed(&identity, world) {
            drop(deadpool_postgres::Object::take(object));
            return Err(error);
        }
        let statements = Statements { try_lock, try_fenced, heartbeat, unlock };
        Ok(Self { link: Link::Borrowed(Borrowed(object)), statements, inherited: None })
    }

    /// Ends it for good, instead of letting it go back to a pool.
    pub(crate) fn end(self) {
        if let Link::Borrowed(Borrowed(object)) = self.link {
            drop(deadpool_postgres::Object::take(object));
        }
    }

    /// The connection under it.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    fn client(&self) -> &Client {
        self.link.client()
    }

    /// Whether the server answers and may give locks.
    pub(crate) async fn ping(&self) -> Result<()> {
        let row = self
            .link
            .client()
            .query_typed_one(sql::PING, &[])
            .await
            .map_err(|error| error::wrap(error, "ping the server"))?;
        refuse_standby(&row, "the server")
    }

    /// Tries once. After contention the session owns nothing, but can be in a transaction.
    pub(crate) async fn try_lock(&self, ask: &Ask) -> Result<Answer, DriverError> {
        let Scope::Session(beacon) = ask.scope else { return self.try_in_transaction(ask).await };
        let statement = if ask.fenced { &self.statements.try_fenced } else { &self.statements.try_lock };
        let Beacon { ttl_millis, random } = beacon;
        let row = self.client().query_one(statement, &[&ask.id, &ttl_millis, &random, &ask.idle]).await?;
        answer(&row, ask.scope, Some("idle_before"))
    }

    async fn try_in_transaction(&self, ask: &Ask) -> Result<Answer, DriverError> {
        let statement = if ask.fenced { sql::TRY_IN_TRANSACTION_FENCED } else { sql::TRY_IN_TRANSACTION };
        let parameters = [(&ask.id as _, Type::INT8), (&ask.idle as _, Type::TEXT)];
        // In this order and in one write.
        let (begun, tried) = tokio::join!(
            biased;
            self.client().batch_execute(sql::BEGIN),
            self.client().query_typed_one(statement, &parameters),
        );
        // Outside a transaction the lock would end with its statement.
        begun?;
        answer(&tried?, ask.scope, None)
    }

    /// Queues in the server for at most `lock_timeout` (ms; zero is for ever), after a try that was contended. `idle` is the limit of
    /// a waiter, in ms. However it ends, unless with a grant, the session may own the lock all the same.
    ///
    /// First what the wait found, to be put back by [`leave_wait`](Self::leave_wait) or [`after_wait`](Self::after_wait).
    pub(crate) async fn wait_lock(
        &self,
        ask: &Ask,
        idle: &str,
        lock_timeout: &str,
    ) -> Result<(Before, Result<Answer, DriverError>), DriverError> {
        let Scope::Session(beacon) = ask.scope else {
            return self.wait_in_transaction(ask, idle, lock_timeout).await;
        };
        let statement = if ask.fenced { sql::WAIT_FENCED } else { sql::WAIT };
        let ahead = [(&idle as _, Type::TEXT)];
        let parameters = [
            (&ask.id as _, Type::INT8),
            (&beacon.ttl_millis as _, Type::INT4),
            (&beacon.random as _, Type::INT4),
            (&lock_timeout as _, Type::TEXT),
        ];
        // In this order and in one write.
        let (ahead, waited) = tokio::join!(
            biased;
            self.client().query_typed_one(sql::BEFORE_WAIT, &ahead),
            self.client().query_typed_one(statement, &parameters),
        );
        Ok((before(&ahead?)?, waited.and_then(|row| answer(&row, ask.scope, None))))
    }

    async fn wait_in_transaction(
        &self,
        ask: &Ask,
        idle: &str,
        lock_timeout: &str,
    ) -> Result<(Before, Result<Answer, DriverError>), DriverError> {
        let statement = if ask.fenced { sql::WAIT_IN_TRANSACTION_FENCED } else { sql::WAIT_IN_TRANSACTION };
        let parameters = [(&ask.id as _, Type::INT8), (&idle as _, Type::TEXT), (&lock_timeout as _, Type::TEXT)];
        // In this order and in one write.
        let (ahead, waited) = tokio::join!(
            biased;
            self.client().query_typed_one(sql::BEFORE_WAIT_IN_TRANSACTION, &[]),
            self.client().query_typed_one(statement, &parameters),
        );
        Ok((before(&ahead?)?, waited.and_then(|row| answer(&row, ask.scope, None))))
    }

    /// Puts back what a wait changed, but for the idle limit, which the proof sets to a holder's. A transaction puts it back by its end.
    pub(crate) async fn after_wait(&self, scope: Scope, before: &Before) -> Result<(), DriverError> {
        if scope == Scope::Transaction {
            return Ok(());
        }
        let Before { limits, check_interval, transaction_timeout, .. } = before;
        let parameters = [
            (&limits.statement_timeout as _, Type::TEXT),
            (check_interval as _, Type::TEXT),
            (transaction_timeout as _, Type::TEXT),
        ];
        self.client().query_typed_one(sql::AFTER_WAIT, &parameters).await.map(drop)
    }

    /// Begins a transaction for a lock and for the work under it.
    pub(crate) async fn begin(&mut self) -> Result<Transaction<'_>, DriverError> {
        self.link.client_mut().build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await
    }

    /// After a try that was contended: back to a session that owns nothing.
    pub(crate) async fn leave_try(&self, scope: Scope) -> Result<(), DriverError> {
        match scope {
            Scope::Session(_) => Ok(()),
            Scope::Transaction => self.client().batch_execute(sql::ROLLBACK).await,
        }
    }

    /// After a wait that failed: whether the session owns nothing and waits for nothing. Puts back what the wait changed.
    pub(crate) async fn leave_wait(&self, scope: Scope, before: &Before) -> Result<bool, DriverError> {
        if scope == Scope::Transaction {
            // A transaction that is rolled back owns nothing.
            return self.leave_try(scope).await.map(|()| true);
        }
        let idle = [(&before.idle as _, Type::TEXT)];
        let (proof, put_back) = tokio::join!(
            biased;
            self.client().query_typed_one(sql::PROVE_CLEAN, &idle),
            self.after_wait(scope, before),
        );
        let proof = proof?;
        put_back?;
        Ok(proof.try_get::<_, i64>("locks")? == 0)
    }

    /// After a body ran statements of its own on a session of ours: takes back whatever it left in it, its locks included. `idle` is
    /// the limit of a session that owns nothing, in ms.
    pub(crate) async fn reset(&mut self, idle: &str) -> Result<(), DriverError> {
        let client = self.link.client();
        // In this order and in one write.
        let ((), (_, statements)) =
            tokio::try_join!(biased; client.batch_execute(sql::FORGET), initialize(client, idle))?;
        self.statements = statements;
        Ok(())
    }

    /// What the statements of a body in the lock's transaction are to run under, where a session of ours has other limits.
    pub(crate) fn inherited(&self) -> Option<&Limits> {
        self.inherited.as_ref()
    }

    /// Proves ownership. `idle` is the limit of the session, or of its transaction, from now on, in ms.
    pub(crate) async fn prove(&self, owner: Owner, idle: &str) -> Result<Proof, DriverError> {
        match owner {
            Owner::Session(Beacon { ttl_millis, random }) => {
                let row = self.client().query_one(&self.statements.heartbeat, &[&ttl_millis, &random, &idle]).await?;
                proof(&row, row.try_get("had")? && row.try_get("has")?)
            }
            Owner::Transaction(since) => {
                let idle = [(&idle as _, Type::TEXT)];
                let row = self.client().query_typed_one(sql::HEARTBEAT_IN_TRANSACTION, &idle).await?;
                proof(&row, row.try_get::<_, SystemTime>("since")? == since)
            }
        }
    }

    /// Proves ownership while the beacon is exchanged for one of another TTL.
    pub(crate) async fn exchange(&self, old: Beacon, new: Beacon, idle: &str) -> Result<Proof, DriverError> {
        let parameters = [
            (&old.ttl_millis as _, Type::INT4),
            (&old.random as _, Type::INT4),
            (&new.ttl_millis as _, Type::INT4),
            (&new.random as _, Type::INT4),
            (&idle as _, Type::TEXT),
        ];
        let row = self.client().query_typed_one(sql::RENEW, &parameters).await?;
        proof(&row, row.try_get("had")? && row.try_get("has")?)
    }

    /// Gives back the lock, so that the session owns nothing; whether it was owned to the end. `idle` is the session's limit from
    /// then on, in ms; that of a transaction ends with it.
    pub(crate) async fn unlock(&self, id: i64, owner: Owner, idle: &str) -> Result<bool, DriverError> {
        match owner {
            Owner::Session(Beacon { ttl_millis, random }) => {
                let parameters: [&(dyn ToSql + Sync); 4] = [&id, &ttl_millis, &random, &idle];
                let row = self.client().query_one(&self.statements.unlock, &parameters).await?;
                Ok(row.try_get("key")? && row.try_get("beacon")? && row.try_get("again")?)
            }
            Owner::Transaction(since) => {
                // In this order and in one write.
                let (proof, committed) = tokio::join!(
                    biased;
                    self.client().query_typed_one(sql::PROVE_TRANSACTION, &[]),
                    self.client().batch_execute(sql::COMMIT),
                );
                let proof = proof?;
                committed?;
                Ok(proof.try_get::<_, SystemTime>("since")? == since)
            }
        }
    }
}

const TRY_TYPES: &[Type] = &[Type::INT8, Type::INT4, Type::INT4, Type::TEXT];
const HEARTBEAT_TYPES: &[Type] = &[Type::INT4, Type::INT4, Type::TEXT];
const UNLOCK_TYPES: &[Type] = TRY_TYPES;

/// Our settings and statements, in one write.
async fn initialize(client: &Client, idle: &str) -> Result<(Row, Statements), DriverError> {
    let settings = [(&idle as _, Type::TEXT)];
    let (before, try_lock, try_fenced, heartbeat, unlock) = tokio::try_join!(
        biased;
        client.query_typed_one(sql::SETUP, &settings),
        client.prepare_typed(sql::TRY, TRY_TYPES),
        client.prepare_typed(sql::TRY_FENCED, TRY_TYPES),
        client.prepare_typed(sql::HEARTBEAT, HEARTBEAT_TYPES),
        client.prepare_typed(sql::UNLOCK, UNLOCK_TYPES),
    )?;
    Ok((before, Statements { try_lock, try_fenced, heartbeat, unlock }))
}

fn set_up_failed(error: DriverError, target: &str) -> Error {
    if error.code().is_some_and(|state| state.code() == "42704") {
        let message = format!("{target} lacks a setting that leases need: PostgreSQL 14 or newer is required");
        return error::with_state(Error::new(ErrorKind::Misconfigured, message), error);
    }
    error::wrap(error, "set up a session")
}
