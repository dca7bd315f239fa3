//! Many keys in one statement.

use tokio_postgres::{
    Row, Statement,
    types::{ToSql, Type},
};

use super::{DriverError, Session};
use crate::{error, sql};

/// Prepared for one session.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    plain: Statement,
    fenced: Statement,
}

/// Each in the order of its keys.
#[derive(Debug)]
pub(crate) struct BatchAnswer {
    pub(crate) unlocked: Vec<bool>,
    pub(crate) locked: Vec<bool>,
    /// The parts of the fencing token of all that were granted.
    pub(crate) token: Option<String>,
    /// Nothing of it is to be believed.
    pub(crate) in_recovery: bool,
}

impl BatchAnswer {
    fn read(row: &Row) -> Result<Self, DriverError> {
        Ok(Self {
            unlocked: row.try_get("unlocked")?,
            locked: row.try_get("locked")?,
            token: row.try_get("token")?,
            in_recovery: row.try_get("in_recovery")?,
        })
    }
}

impl Session {
    pub(crate) async fn prepare_batch(&self) -> distributed_lock::Result<Batch> {
        let types = [Type::INT8_ARRAY, Type::INT8_ARRAY];
        let (plain, fenced) = tokio::try_join!(
            self.client().prepare_typed(sql::BATCH, &types),
            self.client().prepare_typed(sql::BATCH_FENCED, &types),
        )
        .map_err(|error| error::wrap(error, "prepare a session for many locks"))?;
        Ok(Batch { plain, fenced })
    }

    /// Gives some keys back, then tries others, none of them twice.
    pub(crate) async fn run_batch(
        &self,
        batch: &Batch,
        give_back: &[i64],
        take: &[i64],
        fenced: bool,
    ) -> Result<BatchAnswer, DriverError> {
        let statement = if fenced { &batch.fenced } else { &batch.plain };
        let keys: [&(dyn ToSql + Sync); 2] = [&give_back, &take];
        BatchAnswer::read(&self.client().query_one(statement, &keys).await?)
    }
}
