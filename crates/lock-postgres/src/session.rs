//! One PostgreSQL connection of ours that can own advisory locks: opened, set up, and asked.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use distributed_lock::Result;
use tokio_postgres::{
    Client, IsolationLevel, Row, Statement, Transaction,
    types::{ToSql, Type},
};

use crate::{
    answer::{Answer, Before, Limits, Proof, answer, beacon_taken, before, proof},
    error,
    keeper::Keeper,
    link::{Borrowed, Link},
    sql,
    timer::Timer,
    timing::{Timing, server_millis},
    world::refuse_standby,
};

mod asking;
mod batch;
mod opening;
mod ttl;

use asking::Asking;
pub(crate) use batch::{Batch, BatchAnswer, Keys, LockTable, Places};
use opening::initialize;
use ttl::SessionTtl;

pub(crate) type DriverError = tokio_postgres::Error;

/// A session that is ready for lock statements.
#[derive(Debug)]
pub(crate) struct Session {
    // Before the link, so that nobody talks to a connection that is ending.
    keeper: SessionKeeper,
    link: Link,
    random: i32,
    timer: Timer,
    asking: Asking,
    statements: Statements,
    /// What only a session of ours has; a borrowed one keeps its settings, and has a beacon only with a lock.
    own: Option<Own>,
}

/// Stops with the session.
#[derive(Debug)]
struct SessionKeeper(Arc<Keeper>);

impl Drop for SessionKeeper {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Prepared once, so that a grant and a release are one write each.
#[derive(Debug)]
struct Statements {
    try_lock: Statement,
    try_fenced: Statement,
    heartbeat: Statement,
    heartbeat_in_transaction: Statement,
    unlock: Statement,
    renew: Statement,
}

#[derive(Debug)]
struct Own {
    /// The limits that the session had before we set its own.
    inherited: Limits,
    ttl: SessionTtl,
}

/// The key of the two-int space that tells whether this session still owns what it took: the TTL in ms, and 32 random bits.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
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

/// How giving back a lock went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unlocked {
    /// It was owned to the end, and the session owns nothing.
    Clean,
    /// It was owned to the end, but the session cannot be used any more.
    Spent,
    NotOurs,
}

/// What a lock statement asks for.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) id: i64,
    pub(crate) scope: Scope,
    /// The idle limit of a holder, in ms.
    pub(crate) idle: i32,
    pub(crate) fenced: bool,
}

impl Session {
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

    /// For a hold with this timing. No other session has it, but for a chance of one in 2^32 for each with the same TTL. The server
    /// is quicker with what it had before, so it stays the same from hold to hold.
    pub(crate) fn beacon(&self, timing: &Timing) -> Beacon {
        Beacon { ttl_millis: server_millis(timing.ttl()), random: self.random }
    }

    /// Who keeps its leases.
    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper.0
    }

    /// Bounds a statement; `None` if the server does not answer in time.
    pub(crate) async fn within<T>(&self, limit: Duration, statement: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        self.timer.within(limit, statement).await
    }

    fn client(&self) -> &Client {
        self.link.client()
    }

    /// What this statement answers for this id.
    async fn ask(&self, statement: &Statement, id: i64) -> Result<Row, DriverError> {
        match self.link.shared_client() {
            Some(client) => self.asking.one_row(client, statement, id).await,
            None => Box::pin(self.client().query_one(statement, &[&id])).await,
        }
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
        let Scope::Session(beacon) = ask.scope else {
            return Box::pin(self.try_in_transaction(ask)).await;
        };
        let Statements { try_lock, try_fenced, .. } = &self.statements;
        let statement = if ask.fenced { try_fenced } else { try_lock };
        match &self.own {
            Some(own) if own.ttl.is(ask.idle) => answer(&self.ask(statement, ask.id).await?, ask.scope),
            Some(own) => Box::pin(self.exchange_and_try(own, ask, beacon, statement)).await,
            None => Box::pin(self.try_borrowed(ask, beacon, statement)).await,
        }
    }

    async fn exchange_and_try(
        &self,
        own: &Own,
        ask: &Ask,
        beacon: Beacon,
        statement: &Statement,
    ) -> Result<Answer, DriverError> {
        let old = Beacon { ttl_millis: own.ttl.now(), ..beacon };
        let key: [&(dyn ToSql + Sync); 1] = [&ask.id];
        // In this order and in one write.
        let (exchanged, row) = tokio::join!(
            biased;
            self.exchange(old, beacon, ask.idle),
            self.client().query_one(statement, &key),
        );
        match exchanged?.owned {
            true => answer(&row?, ask.scope),
            false => Ok(Answer::Refused(beacon_taken())),
        }
    }

    async fn try_borrowed(&self, ask: &Ask, beacon: Beacon, statement: &Statement) -> Result<Answer, DriverError> {
        let Beacon { ttl_millis, random } = beacon;
        let idle = ask.idle.to_string();
        let row = self.client().query_one(statement, &[&ask.id, &ttl_millis, &random, &idle]).await?;
        let mut answer = answer(&row, ask.scope)?;
        if let Answer::Granted(granted) = &mut answer {
            granted.idle_before = Some(row.try_get("idle_before")?);
        }
        Ok(answer)
    }

    async fn try_in_transaction(&self, ask: &Ask) -> Result<Answer, DriverError> {
        let statement = if ask.fenced { sql::TRY_IN_TRANSACTION_FENCED } else { sql::TRY_IN_TRANSACTION };
        let idle = ask.idle.to_string();
        let parameters = [(&ask.id as _, Type::INT8), (&idle as _, Type::TEXT)];
        // In this order and in one write.
        let (begun, tried) = tokio::join!(
            biased;
            self.client().batch_execute(sql::BEGIN),
            self.client().query_typed_one(statement, &parameters),
        );
        // Outside a transaction the lock would end with its statement.
        begun?;
        answer(&tried?, ask.scope)
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
        let statement = match (&self.own, ask.fenced) {
            (Some(_), false) => sql::WAIT,
            (Some(_), true) => sql::WAIT_FENCED,
            (None, false) => sql::WAIT_BORROWED,
            (None, true) => sql::WAIT_BORROWED_FENCED,
        };
        let ahead = [(&idle as _, Type::TEXT)];
        let parameters = [
            (&ask.id as _, Type::INT8),
            (&lock_timeout as _, Type::TEXT),
            (&beacon.ttl_millis as _, Type::INT4),
            (&beacon.random as _, Type::INT4),
        ];
        // A session of ours had its beacon for the try before the wait.
        let parameters = if self.own.is_some() { &parameters[..2] } else { &parameters[..] };
        // In this order and in one write.
        let (ahead, waited) = tokio::join!(
            biased;
            self.client().query_typed_one(sql::BEFORE_WAIT, &ahead),
            self.client().query_typed_one(statement, parameters),
        );
        Ok((before(&ahead?)?, waited.and_then(|row| answer(&row, ask.scope))))
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
        Ok((before(&ahead?)?, waited.and_then(|row| answer(&row, ask.scope))))
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

    /// After a try that was contended: back to a session that owns nothing. `false` if it cannot be used any more.
    pub(crate) async fn leave_try(&self, scope: Scope) -> Result<bool, DriverError> {
        match scope {
            Scope::Session(beacon) => self.rest(beacon).await,
            Scope::Transaction => self.client().batch_execute(sql::ROLLBACK).await.map(|()| true),
        }
    }

    /// Back to the TTL of a session of ours that owns nothing, from that of a hold. `false` if it is without a beacon now.
    async fn rest(&self, beacon: Beacon) -> Result<bool, DriverError> {
        match self.own.as_ref().and_then(|own| own.ttl.to_rest()) {
            Some(rest) => {
                let exchanged = self.exchange(beacon, Beacon { ttl_millis: rest, ..beacon }, rest).await?;
                Ok(exchanged.owned)
            }
            None => Ok(true),
        }
    }

    /// After a wait that failed: whether the session owns nothing and waits for nothing. Puts back what the wait changed.
    pub(crate) async fn leave_wait(&self, scope: Scope, before: &Before) -> Result<bool, DriverError> {
        if scope == Scope::Transaction {
            // A transaction that is rolled back owns nothing.
            return self.leave_try(scope).await;
        }
        let idle = [(&before.idle as _, Type::TEXT)];
        // In this order and in one write.
        let (proof, put_back, rested) = tokio::join!(
            biased;
            self.client().query_typed_one(sql::PROVE_CLEAN, &idle),
            self.after_wait(scope, before),
            self.leave_try(scope),
        );
        let proof = proof?;
        put_back?;
        // The beacon of a session of ours is one.
        Ok(rested? && proof.try_get::<_, i64>("locks")? == i64::from(self.own.is_some()))
    }

    /// After a body ran statements of its own on a session of ours: takes back whatever it left in it, its locks included. `false` if
    /// the session cannot be used any more.
    pub(crate) async fn reset(&mut self) -> Result<bool, DriverError> {
        let Some(own) = &mut self.own else { return Ok(true) };
        let client = self.link.client();
        let beacon = Beacon { ttl_millis: own.ttl.at_rest, random: self.random };
        let forget = sql::forget(beacon.ttl_millis);
        // In this order and in one write.
        let ((), initialized) = tokio::try_join!(biased; client.batch_execute(&forget), initialize(client, beacon))?;
        let Some(initialized) = initialized else { return Ok(false) };
        (self.statements, *own) = initialized;
        Ok(true)
    }

    /// What the statements of a body in the lock's transaction are to run under, where a session of ours has other limits.
    pub(crate) fn inherited(&self) -> Option<&Limits> {
        self.own.as_ref().map(|own| &own.inherited)
    }

    /// Proves ownership. `idle` is the limit of the session, or of its transaction, from now on, in ms.
    pub(crate) async fn prove(&self, owner: Owner, idle: i32) -> Result<Proof, DriverError> {
        let text = idle.to_string();
        match owner {
            Owner::Session(Beacon { ttl_millis, random }) => {
                let row = self.client().query_one(&self.statements.heartbeat, &[&ttl_millis, &random, &text]).await?;
                if let Some(own) = &self.own {
                    own.ttl.set(own.ttl.now(), idle);
                }
                proof(&row, row.try_get("had")? && row.try_get("has")?)
            }
            Owner::Transaction(since) => {
                let row = self.client().query_one(&self.statements.heartbeat_in_transaction, &[&text]).await?;
                proof(&row, row.try_get::<_, SystemTime>("since")? == since)
            }
        }
    }

    /// Proves ownership while the beacon is exchanged for one of another TTL.
    pub(crate) async fn exchange(&self, old: Beacon, new: Beacon, idle: i32) -> Result<Proof, DriverError> {
        let text = idle.to_string();
        let parameters: [&(dyn ToSql + Sync); 5] = [&old.ttl_millis, &old.random, &new.ttl_millis, &new.random, &text];
        let row = self.client().query_one(&self.statements.renew, &parameters).await?;
        if let Some(own) = &self.own {
            // One that failed is destroyed.
            own.ttl.set(new.ttl_millis, idle);
        }
        proof(&row, row.try_get("had")? && row.try_get("has")?)
    }

    /// Gives back the lock, so that the session owns nothing. A borrowed session gets back the idle limit it had before; that of a
    /// transaction ends with it.
    pub(crate) async fn unlock(
        &self,
        id: i64,
        owner: Owner,
        idle_before: Option<&str>,
    ) -> Result<Unlocked, DriverError> {
        // On the heap, as all that is not the common way, so that a release stays a small future.
        match (owner, &self.own) {
            (Owner::Session(_), Some(own)) if own.ttl.to_rest().is_none() => {
                unlocked(&self.ask(&self.statements.unlock, id).await?)
            }
            (Owner::Session(beacon), Some(_)) => Box::pin(self.unlock_and_rest(id, beacon)).await,
            (Owner::Session(beacon), None) => Box::pin(self.unlock_borrowed(id, beacon, idle_before)).await,
            (Owner::Transaction(since), _) => Box::pin(self.commit(since)).await,
        }
    }

    async fn unlock_and_rest(&self, id: i64, beacon: Beacon) -> Result<Unlocked, DriverError> {
        // In this order and in one write.
        let (row, rested) = tokio::join!(biased; self.ask(&self.statements.unlock, id), self.rest(beacon));
        match unlocked(&row?)? {
            Unlocked::Clean if !rested.is_ok_and(|rested| rested) => Ok(Unlocked::Spent),
            how => Ok(how),
        }
    }

    async fn unlock_borrowed(
        &self,
        id: i64,
        Beacon { ttl_millis, random }: Beacon,
        idle_before: Option<&str>,
    ) -> Result<Unlocked, DriverError> {
        let idle_before = idle_before.unwrap_or_default();
        let parameters: [&(dyn ToSql + Sync); 4] = [&id, &ttl_millis, &random, &idle_before];
        unlocked(&self.client().query_one(&self.statements.unlock, &parameters).await?)
    }

    /// Ends the transaction that owns the lock, and says whether it was the one that began then.
    async fn commit(&self, since: SystemTime) -> Result<Unlocked, DriverError> {
        // In this order and in one write.
        let (proof, committed) = tokio::join!(
            biased;
            self.client().query_typed_one(sql::PROVE_TRANSACTION, &[]),
            self.client().batch_execute(sql::COMMIT),
        );
        let proof = proof?;
        committed?;
        let owned = proof.try_get::<_, SystemTime>("since")? == since;
        Ok(if owned { Unlocked::Clean } else { Unlocked::NotOurs })
    }
}

fn unlocked(row: &Row) -> Result<Unlocked, DriverError> {
    Ok(if row.try_get("owned")? { Unlocked::Clean } else { Unlocked::NotOurs })
}
