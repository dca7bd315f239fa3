//! Who holds what is waited for: one look at the server's table of locks for all who ask at the same time.

use std::{collections::HashMap, sync::Arc};

use distributed_lock::{Error, Result};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::{Row, types::Type};

use crate::{
    core::Core,
    error,
    session::{Beacon, DriverError},
    sql_lanes as sql,
};

/// In one statement.
const MOST: usize = 500;

/// Of one id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Seen {
    /// Nobody has it, and nobody queues for it.
    Free,
    /// A lane has it, and nobody queues for it: its locker tells others of the release.
    Lane(Beacon),
    /// Others queue for it in the server, or somebody has it who tells nobody.
    Queued,
}

type Asked = (i64, oneshot::Sender<Result<Seen, Arc<Error>>>);

#[derive(Debug)]
pub(super) struct Looks(mpsc::UnboundedSender<Asked>);

impl Looks {
    /// What is asked is to be answered by [`answer_all`](Unanswered::answer_all).
    pub(super) fn new() -> (Self, Unanswered) {
        let (sender, unanswered) = mpsc::unbounded_channel();
        (Self(sender), Unanswered(unanswered))
    }

    /// Cancel safe. What it sees is of a time after the call.
    pub(super) async fn look(&self, id: i64) -> Result<Seen, Arc<Error>> {
        let (answer, seen) = oneshot::channel();
        let _ = self.0.send((id, answer));
        seen.await.unwrap_or_else(|_| Err(Arc::new(super::ended())))
    }
}

#[derive(Debug)]
pub(super) struct Unanswered(mpsc::UnboundedReceiver<Asked>);

impl Unanswered {
    /// Until nobody is left who could ask.
    pub(super) async fn answer_all(mut self, core: Arc<Core>) {
        let mut asked = Vec::new();
        while self.0.recv_many(&mut asked, MOST).await > 0 {
            let mut ids: Vec<_> = asked.iter().map(|(id, _)| *id).collect();
            ids.sort_unstable();
            ids.dedup();
            let looked = look(&core, &ids).await.map_err(Arc::new);
            for (id, answer) in asked.drain(..) {
                let seen = looked.as_ref().map(|seen| seen.get(&id).copied().unwrap_or(Seen::Queued));
                let _ = answer.send(seen.map_err(Arc::clone));
            }
        }
    }
}

async fn look(core: &Core, ids: &[i64]) -> Result<HashMap<i64, Seen>> {
    let doing = "look for the holders of keys";
    let Some(housekeeping) = &core.housekeeping else { return Ok(HashMap::new()) };
    let rows = housekeeping.ask(sql::LOOK, &[(&ids as _, Type::INT8_ARRAY)], doing).await?;
    rows.iter().map(read).collect::<Result<_, _>>().map_err(|error| error::wrap(error, doing))
}

fn read(row: &Row) -> Result<(i64, Seen), DriverError> {
    let (held, queued): (Option<bool>, Option<bool>) = (row.try_get("held")?, row.try_get("queued")?);
    let (ttl, random): (Option<i64>, Option<i64>) = (row.try_get("ttl")?, row.try_get("random")?);
    let beacon =
        ttl.zip(random).and_then(|(ttl, random)| Some(Beacon { ttl_millis: signed(ttl)?, random: signed(random)? }));
    let seen = match (held, queued, beacon) {
        (None, ..) | (Some(false), Some(false), _) => Seen::Free,
        (Some(true), Some(false), Some(beacon)) => Seen::Lane(beacon),
        _ => Seen::Queued,
    };
    Ok((row.try_get("id")?, seen))
}

/// The server shows the halves of a key without their sign.
fn signed(half: i64) -> Option<i32> {
    u32::try_from(half).ok().map(|half| i32::from_ne_bytes(half.to_ne_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_key_get_their_sign_back() {
        for half in [0, 1, -1, i32::MIN, i32::MAX] {
            let shown = i64::from(u32::from_ne_bytes(half.to_ne_bytes()));
            assert_eq!(signed(shown), Some(half));
        }
        assert_eq!(signed(-1), None);
    }
}
