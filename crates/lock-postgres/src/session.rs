//! One PostgreSQL connection of ours that can own advisory locks: opened, set up, and asked.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use distributed_lock::{Error, ErrorKind, Result, World};
use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, timeout_at},
};
use tokio_postgres::{
    Client, IsolationLevel, Row, Statement, Transaction,
    types::{ToSql, Type},
};

use crate::{
    connect::{Connector, Opened, SocketHandle},
    error, sql,
};

/// For one server: from the look-up of its name until the session is set up.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

type DriverError = tokio_postgres::Error;

/// A session that is ready for lock statements.
#[derive(Debug)]
pub(crate) struct Session {
    link: Link,
    statements: Statements,
}

/// The connection under a session: dropped, it ends.
#[derive(Debug)]
struct Link {
    client: Client,
    socket: SocketHandle,
    ended: watch::Receiver<Option<Arc<DriverError>>>,
    driver: AbortHandle,
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

/// What a lock statement that granted answered.
#[derive(Debug)]
pub(crate) struct Granted {
    /// `None` if another session has our beacon: such a grant cannot be watched.
    pub(crate) owner: Option<Owner>,
    /// The parts of the fencing token.
    pub(crate) token: Option<String>,
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
        let link = Link::drive(opened);
        let client = &link.client;
        let settings = [(&idle as _, Type::TEXT)];
        // All in one write.
        let (facts, try_lock, try_fenced, heartbeat, unlock) = tokio::try_join!(
            client.query_typed_one(sql::SETUP, &settings),
            client.prepare_typed(sql::TRY, &[Type::INT8, Type::INT4, Type::INT4, Type::TEXT]),
            client.prepare_typed(sql::TRY_FENCED, &[Type::INT8, Type::INT4, Type::INT4, Type::TEXT]),
            client.prepare_typed(sql::HEARTBEAT, &[Type::INT4, Type::INT4, Type::TEXT]),
            client.prepare_typed(sql::UNLOCK, &[Type::INT8, Type::INT4, Type::INT4, Type::TEXT]),
        )
        .map_err(|error| set_up_failed(error, &target))?;
        refuse_standby(&facts, &target)?;
        let fact =
            |name| facts.try_get::<_, String>(name).map_err(|error| error::wrap(error, "read the server's identity"));
        world.ensure(World::new(fact("server")?, fact("database")?))?;
        Ok(Self { link, statements: Statements { try_lock, try_fenced, heartbeat, unlock } })
    }

    /// Whether it is known to be over.
    pub(crate) fn is_over(&self) -> bool {
        self.link.client.is_closed() || self.link.ended.has_changed().is_err() || self.link.ended.borrow().is_some()
    }

    /// Completes when the session has ended, with the driver's word for it. Cancel safe.
    pub(crate) fn ended(&self) -> impl Future<Output = Option<Arc<DriverError>>> + Send + use<> {
        let mut ended = self.link.ended.clone();
        async move {
            // An error here means that the driver is gone together with its runtime.
            let _ = ended.wait_for(Option::is_some).await;
            let error = ended.borrow().clone();
            error
        }
    }

    pub(crate) fn socket(&self) -> &SocketHandle {
        &self.link.socket
    }

    /// Whether the server answers and may give locks.
    pub(crate) async fn ping(&self) -> Result<()> {
        let row = self
            .link
            .client
            .query_typed_one(sql::PING, &[])
            .await
            .map_err(|error| error::wrap(error, "ping the server"))?;
        refuse_standby(&row, "the server")
    }

    /// Tries once; `None` is contention, after which the session owns nothing, but can be in a transaction.
    pub(crate) async fn try_lock(&self, ask: &Ask) -> Result<Option<Granted>, DriverError> {
        let Scope::Session(beacon) = ask.scope else { return self.try_in_transaction(ask).await };
        let statement = if ask.fenced { &self.statements.try_fenced } else { &self.statements.try_lock };
        let Beacon { ttl_millis, random } = beacon;
        let row = self.link.client.query_one(statement, &[&ask.id, &ttl_millis, &random, &ask.idle]).await?;
        granted(&row, ask.scope)
    }

    async fn try_in_transaction(&self, ask: &Ask) -> Result<Option<Granted>, DriverError> {
        let statement = if ask.fenced { sql::TRY_IN_TRANSACTION_FENCED } else { sql::TRY_IN_TRANSACTION };
        let parameters = [(&ask.id as _, Type::INT8)];
        // In this order and in one write.
        let (begun, tried) = tokio::join!(
            biased;
            self.link.client.batch_execute(sql::BEGIN),
            self.link.client.query_typed_one(statement, &parameters),
        );
        // Outside a transaction the lock would end with its statement.
        begun?;
        granted(&tried?, ask.scope)
    }

    /// Queues in the server for at most `lock_timeout` (ms; zero is for ever), after a try that was contended. `idle` is the limit of
    /// a waiter, in ms. However it ends, unless with a grant, the session may own the lock all the same.
    pub(crate) async fn wait_lock(
        &self,
        ask: &Ask,
        idle: &str,
        lock_timeout: &str,
    ) -> Result<Option<Granted>, DriverError> {
        let Scope::Session(beacon) = ask.scope else {
            return self.wait_in_transaction(ask, idle, lock_timeout).await;
        };
        let statement = if ask.fenced { sql::WAIT_FENCED } else { sql::WAIT };
        let before = [(&idle as _, Type::TEXT)];
        let parameters = [
            (&ask.id as _, Type::INT8),
            (&beacon.ttl_millis as _, Type::INT4),
            (&beacon.random as _, Type::INT4),
            (&ask.idle as _, Type::TEXT),
            (&lock_timeout as _, Type::TEXT),
        ];
        // In this order and in one write.
        let (before, waited) = tokio::join!(
            biased;
            self.link.client.query_typed_one(sql::BEFORE_WAIT, &before),
            self.link.client.query_typed_one(statement, &parameters),
        );
        before?;
        granted(&waited?, ask.scope)
    }

    async fn wait_in_transaction(
        &self,
        ask: &Ask,
        idle: &str,
        lock_timeout: &str,
    ) -> Result<Option<Granted>, DriverError> {
        let statement = if ask.fenced { sql::WAIT_IN_TRANSACTION_FENCED } else { sql::WAIT_IN_TRANSACTION };
        let parameters = [
            (&ask.id as _, Type::INT8),
            (&idle as _, Type::TEXT),
            (&ask.idle as _, Type::TEXT),
            (&lock_timeout as _, Type::TEXT),
        ];
        granted(&self.link.client.query_typed_one(statement, &parameters).await?, ask.scope)
    }

    /// Begins a transaction for a lock and for the work under it.
    pub(crate) async fn begin(&mut self) -> Result<Transaction<'_>, DriverError> {
        self.link.client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await
    }

    /// After a try that was contended: back to a session that owns nothing.
    pub(crate) async fn leave_try(&self, scope: Scope) -> Result<(), DriverError> {
        match scope {
            Scope::Session(_) => Ok(()),
            Scope::Transaction => self.link.client.batch_execute(sql::ROLLBACK).await,
        }
    }

    /// After a wait that failed: whether the session owns nothing and waits for nothing. Sets its idle limit, in ms.
    pub(crate) async fn leave_wait(&self, scope: Scope, idle: &str) -> Result<bool, DriverError> {
        self.leave_try(scope).await?;
        let row = self.link.client.query_typed_one(sql::PROVE_CLEAN, &[(&idle, Type::TEXT)]).await?;
        Ok(row.try_get::<_, i64>("locks")? == 0)
    }

    /// Proves ownership. `idle` is the session's limit from now on, in ms; a transaction keeps its own.
    pub(crate) async fn prove(&self, owner: Owner, idle: &str) -> Result<Proof, DriverError> {
        match owner {
            Owner::Session(Beacon { ttl_millis, random }) => {
                let row =
                    self.link.client.query_one(&self.statements.heartbeat, &[&ttl_millis, &random, &idle]).await?;
                proof(&row, row.try_get("had")? && row.try_get("has")?)
            }
            Owner::Transaction(since) => {
                let row = self.link.client.query_typed_one(sql::PROVE_TRANSACTION, &[]).await?;
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
        let row = self.link.client.query_typed_one(sql::RENEW, &parameters).await?;
        proof(&row, row.try_get("had")? && row.try_get("has")?)
    }

    /// Gives back the lock, so that the session owns nothing; whether it was owned to the end. `idle` as in [`prove`](Self::prove).
    pub(crate) async fn unlock(&self, id: i64, owner: Owner, idle: &str) -> Result<bool, DriverError> {
        match owner {
            Owner::Session(Beacon { ttl_millis, random }) => {
                let parameters: [&(dyn ToSql + Sync); 4] = [&id, &ttl_millis, &random, &idle];
                let row = self.link.client.query_one(&self.statements.unlock, &parameters).await?;
                Ok(row.try_get("key")? && row.try_get("beacon")? && row.try_get("again")?)
            }
            Owner::Transaction(_) => {
                // In this order and in one write.
                let (proof, committed) = tokio::join!(
                    biased;
                    self.prove(owner, idle),
                    self.link.client.batch_execute(sql::COMMIT),
                );
                committed?;
                Ok(proof?.owned)
            }
        }
    }
}

impl Link {
    /// Spawns what polls the connection, on the caller's runtime.
    fn drive(opened: Opened) -> Self {
        let Opened { client, connection, socket, .. } = opened;
        let (sender, ended) = watch::channel(None);
        let driver = tokio::spawn(async move {
            // Without an error we ended it ourselves, and nobody waits.
            if let Err(error) = connection.await {
                sender.send_replace(Some(Arc::new(error)));
            }
        });
        Self { client, socket, ended, driver: driver.abort_handle() }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Works also where no runtime polls the driver any more.
        self.socket.shutdown_write();
        self.driver.abort();
    }
}

fn granted(row: &Row, scope: Scope) -> Result<Option<Granted>, DriverError> {
    if !row.try_get::<_, bool>("granted")? {
        return Ok(None);
    }
    let owner = match scope {
        Scope::Session(beacon) => {
            let taken = row.try_get::<_, bool>("beacon")? && row.try_get::<_, bool>("again")?;
            taken.then_some(Owner::Session(beacon))
        }
        Scope::Transaction => Some(Owner::Transaction(row.try_get("since")?)),
    };
    Ok(Some(Granted { owner, token: row.try_get("token")? }))
}

fn proof(row: &Row, owned: bool) -> Result<Proof, DriverError> {
    Ok(Proof { owned, in_recovery: row.try_get("in_recovery")?, now: row.try_get("now")? })
}

fn refuse_standby(row: &Row, target: &str) -> Result<()> {
    match row.try_get("in_recovery") {
        Ok(false) => Ok(()),
        Ok(true) => {
            let message = format!(
                "{target} is in recovery: a standby grants locks that the primary has granted to others; connect to the primary"
            );
            Err(Error::new(ErrorKind::Misconfigured, message))
        }
        Err(error) => Err(error::wrap(error, "ask whether the server is in recovery")),
    }
}

fn set_up_failed(error: DriverError, target: &str) -> Error {
    if error.code().is_some_and(|state| state.code() == "42704") {
        let message = format!("{target} lacks a setting that leases need: PostgreSQL 14 or newer is required");
        return error::with_state(Error::new(ErrorKind::Misconfigured, message), error);
    }
    error::wrap(error, "set up a session")
}
