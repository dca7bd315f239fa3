//! Acquire and release of keys that nobody else wants, as many as go.
//!
//! With 256 tasks, each with a key of its own: the shared session against a pool of 16 connections and against Redis (`rslock`, which
//! mints no tokens), with fencing against the pool with fencing and the same Redis. All over unix sockets. With the tasks on one thread,
//! so that clients and server do not fight for the CPUs of a small machine, the figures are judged; those with as many threads as there
//! are CPUs, where tasks move between threads and whatever they touch with them, are printed beside.
//!
//! With one task: against two bare `select 1` on one connection, once with client and server on one CPU, so that a round trip has one
//! price, and once as the system likes to place them. The first is judged, since so was the floor that the limits come from.
//!
//! The kinds take turns within a round, each figure is the median of the rounds' ratios.

mod one;
mod subject;
mod tasks;

use distributed_lock::{Backend, Fencing};
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresSharedSession};
use lock_testkit::{Cluster, Redis, StallProbe, bench::on_one_cpu};
use std::sync::Arc;

use crate::{
    Failure,
    report::{Report, median},
    servers::{self, STALL},
};

use self::{
    one::Ratios,
    subject::{Locked, Subject},
};

pub(crate) const ROUNDS: usize = 40;

const POOL: f64 = 10.0;
const POOL_FENCED: f64 = 9.0;
const REDIS: f64 = 4.0;
const REDIS_FENCED: f64 = 2.5;
const FLOOR: f64 = 1.2;
const FLOOR_FENCED: f64 = 1.8;

pub(crate) fn measure(rounds: usize) -> Result<Report, Failure> {
    let mut report = Report::new("throughput", rounds);
    let redis = servers::start_redis()?;
    let pinned = on_one_cpu(|| {
        // The server's processes inherit the CPU.
        let cluster = servers::start(Cluster::builder())?;
        one::measure(&cluster, rounds, &mut report)
    })??;
    let cluster = servers::start(Cluster::builder())?;
    let free = one::measure(&cluster, rounds, &mut report)?;
    report.figure("one_floor_us", pinned.floor_us, 1);
    report.at_most("one_x_floor", pinned.plain, FLOOR);
    report.at_most("one_x_floor_fenced", pinned.fenced, FLOOR_FENCED);
    let Ratios { floor_us, plain, fenced } = free;
    report.figure("one_unpinned_floor_us", floor_us, 1);
    report.figure("one_unpinned_x_floor", plain, 3);
    report.figure("one_unpinned_x_floor_fenced", fenced, 3);
    let ratios = many(&cluster, &redis, (Threads::One, rounds), &mut report)?;
    let bounds =
        [("x_pool", POOL), ("x_redis", REDIS), ("x_pool_fenced", POOL_FENCED), ("x_redis_fenced", REDIS_FENCED)];
    for ((name, bound), ratio) in bounds.into_iter().zip(ratios) {
        report.at_least(name, ratio, bound);
    }
    let ratios = many(&cluster, &redis, (Threads::All, rounds), &mut report)?;
    let names = ["all_cpus_x_pool", "all_cpus_x_redis", "all_cpus_x_pool_fenced", "all_cpus_x_redis_fenced"];
    for (name, ratio) in names.into_iter().zip(ratios) {
        report.figure(name, ratio, 2);
    }
    Ok(report)
}

/// On which the tasks run.
#[derive(Clone, Copy)]
enum Threads {
    One,
    /// As many as there are CPUs.
    All,
}

/// The medians of the ratios, in the order of the bounds.
fn many(
    cluster: &Cluster,
    redis: &Redis,
    (threads, rounds): (Threads, usize),
    report: &mut Report,
) -> Result<[f64; 4], Failure> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let names = match threads {
        Threads::One => {
            runtime.worker_threads(1);
            ["pool_per_s", "pool_fenced_per_s", "redis_per_s", "shared_per_s", "shared_fenced_per_s"]
        }
        Threads::All => [
            "all_cpus_pool_per_s",
            "all_cpus_pool_fenced_per_s",
            "all_cpus_redis_per_s",
            "all_cpus_shared_per_s",
            "all_cpus_shared_fenced_per_s",
        ],
    };
    runtime.enable_all().build()?.block_on(compare(cluster, redis, rounds, (names, report)))
}

async fn compare(
    cluster: &Cluster,
    redis: &Redis,
    rounds: usize,
    (names, report): ([&'static str; 5], &mut Report),
) -> Result<[f64; 4], Failure> {
    let probe = StallProbe::start()?;
    let url = servers::url(cluster);
    let pool = Arc::new(PostgresLocker::new(&PostgresConfig::from_url(&url).with_pool_size(tasks::CONNECTIONS))?);
    let shared = Arc::new(PostgresSharedSession::from_url(&url)?);
    let subjects = [
        Subject::Locker(Locked::new(Arc::clone(&pool) as _, Fencing::Off)?),
        Subject::Locker(Locked::new(Arc::clone(&pool) as _, Fencing::On)?),
        Subject::redis(redis),
        Subject::Locker(Locked::new(Arc::clone(&shared) as _, Fencing::Off)?),
        Subject::Locker(Locked::new(Arc::clone(&shared) as _, Fencing::On)?),
    ]
    .map(Arc::new);
    // Connected, prepared, and past the plans that the server makes for a statement's first uses.
    for subject in &subjects {
        tasks::pairs_per_second(subject).await?;
    }

    let mut speeds: [Vec<f64>; 5] = Default::default();
    let mut ratios: [Vec<f64>; 4] = Default::default();
    for round in 0..rounds {
        let mark = probe.mark();
        let mut speed = [0.0; 5];
        for turn in 0..subjects.len() {
            let kind = (round + turn) % subjects.len();
            speed[kind] = tasks::pairs_per_second(&subjects[kind]).await?;
        }
        let stalled = probe.longest_since(mark) > STALL;
        report.count(stalled);
        if stalled {
            continue;
        }
        let [pool, pool_fenced, redis, shared, shared_fenced] = speed;
        let ratio = [shared / pool, shared / redis, shared_fenced / pool_fenced, shared_fenced / redis];
        speeds.iter_mut().zip(speed).for_each(|(speeds, speed)| speeds.push(speed));
        ratios.iter_mut().zip(ratio).for_each(|(ratios, ratio)| ratios.push(ratio));
    }
    pool.close().await?;
    shared.close().await?;

    for (name, mut speeds) in names.into_iter().zip(speeds) {
        report.figure(name, median(&mut speeds), 0);
    }
    Ok(ratios.map(|mut ratios| median(&mut ratios)))
}
