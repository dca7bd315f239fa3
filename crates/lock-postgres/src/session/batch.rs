//! What only a session that owns many locks asks.

use std::pin::Pin;

use distributed_lock::{Error, ErrorKind};
use tokio_postgres::{Row, Statement, types::Type};

use super::{DriverError, Session};
use crate::{
    answer::beacon_taken,
    connect::{Connector, Opened},
    error,
    link::OwnLink,
    sql::{GRANTED, RECOVERY},
    sql_lanes as sql,
    world::WorldCell,
};

/// The driver's side of a session that is polled by somebody else.
pub(crate) type Driving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Prepared for one session, so that none of its statements is a long write.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    plain: Statement,
    fenced: Statement,
    gated: Statement,
    gated_fenced: Statement,
    give_back: Statement,
}

/// What is asked in one statement: none of the keys is in both, and none twice.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) give_back: Vec<i64>,
    pub(crate) take: Vec<i64>,
    pub(crate) fenced: bool,
    /// How many locks may be in the server's table, with those that are to be taken; `None` if that need not be asked.
    pub(crate) limit: Option<i64>,
}

/// Each in the order of its keys.
#[derive(Debug)]
pub(crate) struct BatchAnswer {
    pub(crate) unlocked: Vec<bool>,
    pub(crate) locked: Locked,
    /// The parts of the fencing token of all that were granted.
    pub(crate) token: Option<String>,
    /// Nothing of it is to be believed.
    pub(crate) in_recovery: bool,
}

#[derive(Debug)]
pub(crate) enum Locked {
    Tried(Vec<bool>),
    /// None was tried: so many locks are in the server's table.
    NoRoom(i64),
    /// None was tried: somebody else is in the gate.
    GateTaken,
}

impl BatchAnswer {
    fn read(row: &Row, gated: bool) -> Result<Self, DriverError> {
        let locked = match row.try_get("locked")? {
            Some(tried) => Locked::Tried(tried),
            None if gated => row.try_get::<_, Option<i64>>("in_use")?.map_or(Locked::GateTaken, Locked::NoRoom),
            None => Locked::Tried(Vec::new()),
        };
        let (unlocked, token, in_recovery) =
            (row.try_get("unlocked")?, row.try_get("token")?, row.try_get("in_recovery")?);
        Ok(Self { unlocked, locked, token, in_recovery })
    }
}

impl BatchAnswer {
    /// One key was tried.
    fn of_one(row: &Row) -> Result<Self, DriverError> {
        let text: &str = row.try_get("answer")?;
        let (granted, token) = match text.split_once(' ') {
            Some((_, token)) => (true, Some(token.to_owned())),
            None => (text == GRANTED, None),
        };
        let (locked, in_recovery) = (Locked::Tried(vec![granted]), text == RECOVERY);
        Ok(Self { unlocked: Vec::new(), locked, token, in_recovery })
    }

    /// One key was given back.
    fn of_none(row: &Row) -> Result<Self, DriverError> {
        let (unlocked, locked) = (vec![row.try_get("owned")?], Locked::Tried(Vec::new()));
        Ok(Self { unlocked, locked, token: None, in_recovery: false })
    }
}

/// How many locks the server's table has for one session, and in all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockTable {
    pub(crate) share: i64,
    pub(crate) capacity: i64,
}

impl Session {
    /// Opens one that is to own many locks, with what must be polled for anything to happen.
    pub(crate) async fn open_lane(
        connector: &Connector,
        idle: i32,
        world: &WorldCell,
    ) -> distributed_lock::Result<(Self, Driving, Batch, LockTable)> {
        let set_up = async |opened: Opened| {
            let target = opened.target.clone();
            let (link, driving) = OwnLink::undriven(opened);
            let mut driving: Driving = Box::pin(driving);
            let ready = async {
                let session = Self::set_up(link, &target, idle, world).await?;
                let (batch, table) = session.make_lane().await?;
                Ok((session, batch, table))
            };
            tokio::select! {
                biased;
                ready = ready => ready.map(|(session, batch, table)| (session, driving, batch, table)),
                () = &mut driving => {
                    let message = format!("{target} ended the session while it was set up");
                    Err(Error::new(ErrorKind::Unavailable, message))
                }
            }
        };
        connector.first(set_up).await
    }

    /// Makes it one that owns many locks.
    async fn make_lane(&self) -> distributed_lock::Result<(Batch, LockTable)> {
        let (keys, gated) = ([Type::INT8_ARRAY, Type::INT8_ARRAY], [Type::INT8_ARRAY, Type::INT8_ARRAY, Type::INT8]);
        let mark = [(&self.random as _, Type::INT4)];
        let client = self.client();
        let (row, plain, fenced, gated, gated_fenced, give_back) = tokio::try_join!(
            biased;
            client.query_typed_one(sql::MARK, &mark),
            client.prepare_typed(sql::BATCH, &keys),
            client.prepare_typed(sql::BATCH_FENCED, &keys),
            client.prepare_typed(sql::GATED_BATCH, &gated),
            client.prepare_typed(sql::GATED_BATCH_FENCED, &gated),
            client.prepare_typed(sql::GIVE_BACK, &[Type::INT8_ARRAY]),
        )
        .map_err(prepare_failed)?;
        if !row.try_get::<_, bool>("marked").map_err(prepare_failed)? {
            return Err(beacon_taken());
        }
        self.link.set_many_holders();
        let (share, capacity) =
            (row.try_get("share").map_err(prepare_failed)?, row.try_get("capacity").map_err(prepare_failed)?);
        Ok((Batch { plain, fenced, gated, gated_fenced, give_back }, LockTable { share, capacity }))
    }

    /// By what it is known as a session that owns many locks.
    pub(crate) fn mark(&self) -> i64 {
        i64::from(u32::from_ne_bytes(self.random.to_ne_bytes()))
    }

    /// Gives some keys back, then tries others.
    pub(crate) async fn run_batch(&self, batch: &Batch, keys: &Keys) -> Result<BatchAnswer, DriverError> {
        let Keys { give_back, take, fenced, limit } = keys;
        let one = &self.statements;
        match (give_back.as_slice(), take.as_slice(), limit) {
            // The server is quicker with these.
            ([], [id], None) => {
                let statement = if *fenced { &one.try_fenced } else { &one.try_lock };
                return BatchAnswer::of_one(&self.ask(statement, *id).await?);
            }
            ([id], [], None) => return BatchAnswer::of_none(&self.ask(&one.unlock, *id).await?),
            _ => {}
        }
        let row = match limit {
            None => {
                let statement = if *fenced { &batch.fenced } else { &batch.plain };
                self.client().query_one(statement, &[give_back, take]).await?
            }
            Some(limit) => {
                let statement = if *fenced { &batch.gated_fenced } else { &batch.gated };
                self.client().query_one(statement, &[give_back, take, limit]).await?
            }
        };
        BatchAnswer::read(&row, limit.is_some())
    }

    /// After a batch that failed in the middle: gives back those of its keys that the session has; which those were, and if that was so
    /// to the end.
    pub(crate) async fn give_back(&self, batch: &Batch, ids: &[i64]) -> Result<Vec<Option<bool>>, DriverError> {
        self.client().query_one(&batch.give_back, &[&ids]).await?.try_get("unlocked")
    }
}

fn prepare_failed(error: DriverError) -> Error {
    error::wrap(error, "prepare a session for many locks")
}
