//! What only a session that owns many locks asks.

use std::pin::Pin;

use distributed_lock::{Error, ErrorKind};
use smallvec::{SmallVec, smallvec};
use tokio_postgres::{
    Row, Statement,
    types::{ToSql, Type},
};

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
    reserve: Statement,
    unreserve: Statement,
    give_back: Statement,
}

/// What is asked in one statement: none of the keys is in both, and none twice.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) give_back: SmallVec<[i64; 1]>,
    pub(crate) take: SmallVec<[i64; 1]>,
    pub(crate) fenced: bool,
}

/// Each in the order of its keys.
#[derive(Debug)]
pub(crate) struct BatchAnswer {
    pub(crate) unlocked: SmallVec<[bool; 1]>,
    pub(crate) locked: SmallVec<[bool; 1]>,
    /// The parts of the fencing token of all that were granted.
    pub(crate) token: Option<String>,
    /// Nothing of it is to be believed.
    pub(crate) in_recovery: bool,
}

/// What came of asking for places in the server's table of locks.
#[derive(Debug)]
pub(crate) enum Places {
    /// So many blocks were reserved, and so many places were in use or reserved before.
    Reserved { blocks: i32, in_use: i64 },
    /// Somebody else is in the gate.
    GateTaken,
}

impl BatchAnswer {
    fn read(row: &Row) -> Result<Self, DriverError> {
        let (unlocked, locked): (Vec<_>, Vec<_>) = (row.try_get("unlocked")?, row.try_get("locked")?);
        let (token, in_recovery) = (row.try_get("token")?, row.try_get("in_recovery")?);
        Ok(Self { unlocked: unlocked.into(), locked: locked.into(), token, in_recovery })
    }

    /// One key was tried.
    fn of_one(row: &Row) -> Result<Self, DriverError> {
        let text: &str = row.try_get("answer")?;
        let (granted, token) = match text.split_once(' ') {
            Some((_, token)) => (true, Some(token.to_owned())),
            None => (text == GRANTED, None),
        };
        Ok(Self { unlocked: SmallVec::new(), locked: smallvec![granted], token, in_recovery: text == RECOVERY })
    }

    /// One key was given back.
    fn of_none(row: &Row) -> Result<Self, DriverError> {
        let unlocked = smallvec![row.try_get("owned")?];
        Ok(Self { unlocked, locked: SmallVec::new(), token: None, in_recovery: false })
    }
}

/// How many locks the server's table has for one session, and in all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockTable {
    pub(crate) share: i64,
    pub(crate) capacity: i64,
}

/// Of a block, at the most: fewer than a lane's keys, so that little of what is reserved stays empty.
const BLOCK: i64 = 64;

impl LockTable {
    /// Places that a session takes unasked: a quarter of its share.
    pub(crate) fn unasked(&self) -> i64 {
        self.share / 4
    }

    /// Places that are reserved at a time.
    pub(crate) fn block(&self) -> i64 {
        self.share.min(BLOCK)
    }
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
        let keys = [Type::INT8_ARRAY, Type::INT8_ARRAY];
        let room = [Type::INT8, Type::INT8, Type::INT4, Type::INT8, Type::INT8];
        let mark = [(&self.random as _, Type::INT4)];
        let client = self.client();
        let (row, plain, fenced, reserve, unreserve, give_back) = tokio::try_join!(
            biased;
            client.query_typed_one(sql::MARK, &mark),
            client.prepare_typed(sql::BATCH, &keys),
            client.prepare_typed(sql::BATCH_FENCED, &keys),
            client.prepare_typed(sql::RESERVE, &room),
            client.prepare_typed(sql::UNRESERVE, &[Type::INT4, Type::INT4]),
            client.prepare_typed(sql::GIVE_BACK, &[Type::INT8_ARRAY, Type::INT4]),
        )
        .map_err(prepare_failed)?;
        if !row.try_get::<_, bool>("marked").map_err(prepare_failed)? {
            return Err(beacon_taken());
        }
        self.link.set_many_holders();
        let (share, capacity) =
            (row.try_get("share").map_err(prepare_failed)?, row.try_get("capacity").map_err(prepare_failed)?);
        Ok((Batch { plain, fenced, reserve, unreserve, give_back }, LockTable { share, capacity }))
    }

    /// By what it is known as a session that owns many locks.
    pub(crate) fn mark(&self) -> i64 {
        i64::from(u32::from_ne_bytes(self.random.to_ne_bytes()))
    }

    /// Gives some keys back, then tries others.
    pub(crate) async fn run_batch(&self, batch: &Batch, keys: &Keys) -> Result<BatchAnswer, DriverError> {
        let (give_back, take) = (keys.give_back.as_slice(), keys.take.as_slice());
        let one = &self.statements;
        let both: [&(dyn ToSql + Sync); 2] = [&give_back, &take];
        // The server is quicker with one key alone. The driver's future is large, hence only one of them.
        let (statement, parameters): (_, &[&(dyn ToSql + Sync)]) = match (give_back, take) {
            ([], [id]) => (if keys.fenced { &one.try_fenced } else { &one.try_lock }, &[id]),
            ([id], []) => (&one.unlock, &[id]),
            _ => (if keys.fenced { &batch.fenced } else { &batch.plain }, &both),
        };
        let row = self.client().query_one(statement, parameters).await?;
        match (give_back, take) {
            ([], [_]) => BatchAnswer::of_one(&row),
            ([_], []) => BatchAnswer::of_none(&row),
            _ => BatchAnswer::read(&row),
        }
    }

    /// Reserves up to so many blocks beside those that the session has, while no more than half of the table is in use or reserved.
    pub(crate) async fn reserve(
        &self,
        batch: &Batch,
        table: &LockTable,
        (has, wanted): (i32, i64),
    ) -> Result<Places, DriverError> {
        let (block, half, unasked) = (table.block(), table.capacity / 2, table.unasked());
        let row = self.client().query_one(&batch.reserve, &[&block, &half, &has, &wanted, &unasked]).await?;
        Ok(match (row.try_get::<_, Option<i64>>("in_use")?, row.try_get::<_, Option<i32>>("taken")?) {
            (Some(in_use), blocks) => Places::Reserved { blocks: blocks.unwrap_or(0), in_use },
            (None, _) => Places::GateTaken,
        })
    }

    /// Keeps so many of the blocks that it has.
    pub(crate) async fn unreserve(&self, batch: &Batch, keeps: i32, has: i32) -> Result<(), DriverError> {
        self.client().query_one(&batch.unreserve, &[&keeps, &has]).await.map(drop)
    }

    /// After a statement that failed in the middle: gives back those of its keys that the session has; which those were, and if that was
    /// so to the end. Where the blocks are given that it is to have, also the marks of others.
    pub(crate) async fn give_back(
        &self,
        batch: &Batch,
        ids: &[i64],
        blocks: Option<i32>,
    ) -> Result<Vec<Option<bool>>, DriverError> {
        self.client().query_one(&batch.give_back, &[&ids, &blocks]).await?.try_get("unlocked")
    }
}

fn prepare_failed(error: DriverError) -> Error {
    error::wrap(error, "prepare a session for many locks")
}
