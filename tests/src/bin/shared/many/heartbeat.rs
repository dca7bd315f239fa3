//! A heartbeat round of all lanes: one proof of ownership of each, all sent at once, until the last one is answered.
//!
//! Left alone, each lane sends its heartbeats when its own are due, so that a round never comes at once and nobody outside sees it. But
//! a renewal is proved by a heartbeat of the whole lane, which goes at once, and the caller is told when it is confirmed. So one hold of
//! each lane is renewed, all at the same time: that is the round, at its worst alignment, from the first send to the moment at which the
//! deadline of the last hold has moved. Whether every lane was asked is read at the server, where the last statement of each must have
//! come after the round began.

use std::collections::{BTreeMap, HashMap};

use distributed_lock::{LockGuard, Ttl};
use lock_testkit::StallProbe;
use tokio::{task::JoinSet, time::Instant};
use tokio_postgres::Client;

use crate::{Failure, report::Report, servers::STALL};

use super::keys::Held;

/// In each round of the program.
const ROUNDS: usize = 20;

/// Renews in rounds, and gives the guards back.
pub(super) async fn measure(
    admin: &Client,
    probe: &StallProbe,
    lanes: &BTreeMap<i32, Vec<i64>>,
    guards: Vec<Held>,
    millis: &mut Vec<f64>,
    report: &mut Report,
) -> Result<Vec<Held>, Failure> {
    let mut guards: HashMap<i64, LockGuard> = guards.into_iter().collect();
    let pids: Vec<i32> = lanes.keys().copied().collect();
    for _ in 0..ROUNDS {
        let mut one_each = Vec::with_capacity(lanes.len());
        for id in lanes.values().filter_map(|ids| ids.first()) {
            one_each.push((*id, guards.remove(id).ok_or("a key without its guard")?));
        }
        let began = admin.query_one("select pg_catalog.clock_timestamp()::pg_catalog.text", &[]).await?;
        let began: String = began.get(0);
        let mark = probe.mark();
        let start = Instant::now();
        let renewed = renew(one_each).await?;
        let took = start.elapsed();
        let stalled = probe.longest_since(mark) > STALL;
        report.count(stalled);
        if !stalled {
            millis.push(took.as_secs_f64() * 1e3);
        }
        guards.extend(renewed);
        let asked: i64 = admin.query_one(ASKED_SINCE, &[&pids, &began]).await?.get(0);
        report.must(usize::try_from(asked)? == pids.len(), || {
            format!("a round of heartbeats asked {asked} of {} sessions", pids.len())
        });
    }
    Ok(guards.into_iter().collect())
}

async fn renew(guards: Vec<Held>) -> Result<Vec<Held>, Failure> {
    let mut renewing = JoinSet::new();
    for (id, mut guard) in guards {
        renewing.spawn(async move {
            guard.renew(Ttl::UNTIL_RELEASED).await?;
            Ok::<_, Failure>((id, guard))
        });
    }
    super::keys::all(renewing).await
}

const ASKED_SINCE: &str = "select pg_catalog.count(*) from pg_catalog.pg_stat_activity as a \
    where a.pid operator(pg_catalog.=) any ($1::pg_catalog.int4[]) \
    and a.query_start operator(pg_catalog.>) $2::pg_catalog.text::pg_catalog.timestamptz";
