//! Ten thousand keys of one process.
//!
//! Every statement of a session walks all the locks that it holds: with 10,000 each takes twenty times as long as with none. So the keys
//! are spread over sessions of a few hundred each, the lanes. How many there are is counted at the server, by who holds the keys.

pub(crate) mod memory;

mod heartbeat;
mod keys;
mod one_by_one;

use std::sync::Arc;

use distributed_lock::Backend;
use lock_postgres::PostgresSharedSession;
use lock_testkit::{Cluster, Observer, StallProbe, wait_until};
use tests::lease::AMPLE;

use crate::{
    Failure,
    report::{Report, median, percentile},
    servers::{self, STALL},
};

use self::keys::Keys;

pub(crate) const ROUNDS: usize = 20;
const KEYS: usize = 10_000;

/// Of the time that one session takes for them one by one.
const SHARE: f64 = 0.05;
const HEARTBEAT_MS: f64 = 50.0;
const BYTES: f64 = 1024.0;

/// A session takes a quarter of it unasked.
const LOCKS_PER_TRANSACTION: usize = 1024;

pub(crate) fn measure(rounds: usize) -> Result<Report, Failure> {
    let cluster = servers::start(Cluster::builder().setting("max_locks_per_transaction", LOCKS_PER_TRANSACTION))?;
    let mut report = run(&cluster, rounds)?;
    report.at_most("bytes_per_key", memory::per_key(&servers::url(&cluster))?, BYTES);
    Ok(report)
}

#[tokio::main]
async fn run(cluster: &Cluster, rounds: usize) -> Result<Report, Failure> {
    let url = servers::url(cluster);
    let observer = Observer::connect(&cluster.admin_config("postgres")).await?;
    let admin = cluster.admin().await?;
    let probe = StallProbe::start()?;
    let locker = Arc::new(PostgresSharedSession::from_url(&url)?);
    let keys = Keys::new(KEYS)?;
    // Connects the lanes.
    keys.release(keys.acquire(&locker).await?).await?;

    let mut report = Report::new("many", rounds);
    let (mut shares, mut shared, mut single, mut heartbeats) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let [mut lanes, mut fullest, mut sessions] = [0; 3];
    for _ in 0..rounds {
        let mark = probe.mark();
        all_free(&observer).await?;
        let one_by_one = one_by_one::take(&url, &keys.ids).await?.as_secs_f64() * 1e3;
        all_free(&observer).await?;
        let (guards, at_once) = keys.timed(&locker).await?;
        let at_once = at_once.as_secs_f64() * 1e3;
        let stalled = probe.longest_since(mark) > STALL;
        report.count(stalled);
        if !stalled {
            shares.push(at_once / one_by_one);
            shared.push(at_once);
            single.push(one_by_one);
        }
        let held = keys.by_session(&observer).await?;
        report.must(held.values().map(Vec::len).sum::<usize>() == KEYS, || "a key is not held at the server".into());
        lanes = lanes.max(held.len());
        fullest = held.values().map(Vec::len).max().unwrap_or_default().max(fullest);
        sessions = sessions.max(observer.sessions().await?.len());
        let guards = heartbeat::measure(&admin, &probe, &held, guards, &mut heartbeats, &mut report).await?;
        keys.release(guards).await?;
    }
    locker.close().await?;
    observer.quiet(AMPLE).await?;

    report.say("keys", KEYS);
    report.say("lanes", lanes);
    report.say("keys_per_lane_max", fullest);
    report.say("sessions", sessions);
    report.figure("one_by_one_ms", median(&mut single), 1);
    report.figure("at_once_ms", median(&mut shared), 1);
    report.figure("share_max", percentile(&mut shares, 100), 4);
    report.at_most("share", median(&mut shares), SHARE);
    report.figure("heartbeat_round_ms_p50", median(&mut heartbeats), 2);
    report.at_most("heartbeat_round_ms_p90", percentile(&mut heartbeats, 90), HEARTBEAT_MS);
    Ok(report)
}

/// The same keys are taken in turn, so those of before must be given back.
async fn all_free(observer: &Observer) -> Result<(), Failure> {
    let free = async || observer.key_locks().await.is_ok_and(|locks| locks.is_empty());
    Ok(wait_until(AMPLE, "no key is held", free).await?)
}
