//! The two statements of every hold, in memory that stays from one to the next: the driver's future for a statement is more than a
//! kilobyte, which costs more to have and to give back than anything else of a grant's bookkeeping.

use std::{
    fmt,
    future::poll_fn,
    sync::{Arc, Mutex, PoisonError},
};

use tokio_postgres::{Client, Row, Statement};
use tokio_util::sync::ReusableBoxFuture;

use super::DriverError;

#[derive(Default)]
pub(super) struct Asking(Mutex<Option<ReusableBoxFuture<'static, Result<Row, DriverError>>>>);

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asking")
    }
}

impl Asking {
    /// The only row that a statement with this parameter answers. May be used by several at a time.
    pub(super) async fn one_row(
        &self,
        client: &Arc<Client>,
        statement: &Statement,
        id: i64,
    ) -> Result<Row, DriverError> {
        let asked = ask(Arc::clone(client), statement.clone(), id);
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut asking = match kept {
            Some(mut asking) => {
                asking.set(asked);
                asking
            }
            None => ReusableBoxFuture::new(asked),
        };
        let row = poll_fn(|cx| asking.poll(cx)).await;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(asking);
        row
    }
}

/// Owns what it needs while it runs, and nothing afterwards.
async fn ask(client: Arc<Client>, statement: Statement, id: i64) -> Result<Row, DriverError> {
    client.query_one(&statement, &[&id]).await
}
