//! Looks now and then whether the lanes still have each of their keys: a heartbeat proves the session, not one key of it that was
//! unlocked behind our back.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
    time::Duration,
};

use distributed_lock::Result;
use tokio::{sync::oneshot, time::sleep};
use tokio_postgres::types::Type;

use super::{
    lane::{Lane, Order, Ticket},
    lanes::Lanes,
};
use crate::{core::Core, error, jitter::jittered, sql_lanes as sql};

/// Heartbeats from one look to the next.
const ROUNDS: u32 = 3;

/// Until the lanes are gone.
pub(super) async fn keep_auditing(core: Arc<Core>, lanes: Weak<Lanes>) {
    loop {
        sleep(interval(&core)).await;
        let Some(lanes) = lanes.upgrade() else { return };
        if let Err(error) = audit(&core, &lanes.all()).await {
            tracing::debug!(target: "lock_postgres", %error, "the keys of the lanes could not be looked for");
        }
    }
}

fn interval(core: &Core) -> Duration {
    jittered(core.settings.session.heartbeat() * ROUNDS)
}

async fn audit(core: &Core, lanes: &[Arc<Lane>]) -> Result<()> {
    let Some(housekeeping) = &core.housekeeping else { return Ok(()) };
    let mut holds = HashMap::new();
    for lane in lanes {
        let (answer, listed) = oneshot::channel();
        // A lane that has ended has none.
        if lane.give(Order::List(answer)).is_ok() {
            let tickets: Vec<Ticket> = listed.await.unwrap_or_default();
            holds.extend(tickets.into_iter().map(|ticket| (ticket.0, (ticket, lane))));
        }
    }
    if holds.is_empty() {
        return Ok(());
    }
    let (ids, marks): (Vec<_>, Vec<_>) = holds.iter().map(|(id, (_, lane))| (*id, lane.mark())).unzip();
    let parameters = [(&ids as _, Type::INT8_ARRAY), (&marks as _, Type::INT8_ARRAY)];
    let doing = "look for the keys of the lanes";
    let rows = housekeeping.ask(sql::MISSING, &parameters, doing).await?;
    let missing: HashSet<i64> = rows
        .iter()
        .map(|row| row.try_get("id"))
        .collect::<Result<_, _>>()
        .map_err(|error| error::wrap(error, doing))?;
    for id in missing {
        if let Some((ticket, lane)) = holds.get(&id) {
            tracing::warn!(target: "lock_postgres", id, "a key of a lane was given back by somebody else");
            let _ = lane.give(Order::Missing(vec![*ticket]));
        }
    }
    Ok(())
}
