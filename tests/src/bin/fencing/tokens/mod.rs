//! Tokens of one key, granted to many while everything around them breaks.

pub(crate) mod worker;

mod faults;
mod fleet;
mod judge;
mod report;
mod taker;
mod variants;
mod way;
mod witness;

use std::{collections::BTreeMap, path::Path};

use lock_testkit::{Cluster, wait_until};
use tests::lease::AMPLE;

use crate::{Failure, random::Random};

use self::{
    faults::{Counts, Saboteur},
    fleet::Fleet,
    judge::judge,
    report::Report,
    witness::{Mark, Reader, Record, Witness},
};

/// With its id, frozen by golden vectors.
const KEY: (&str, i64) = ("k", -267_060_044_214_003_201);

const PROCESSES: usize = 8;

/// From one fault to the next, in grants.
const BETWEEN_FAULTS: std::ops::Range<usize> = 50..400;

/// Each process has several sessions.
const CONNECTIONS: usize = 300;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) grants: usize,
    pub(crate) seed: u64,
    pub(crate) intruder: bool,
}

#[tokio::main]
pub(crate) async fn measure(plan: Plan) -> Result<Report, Failure> {
    let caught = variants::run().await?;
    let cluster = Cluster::builder().setting("max_connections", CONNECTIONS).start()?;
    let folder = tempfile::tempdir()?;
    let witness = folder.path().join("witness");
    // Makes the file.
    drop(Witness::open(&witness)?);
    let (records, faults) = disturb(plan, &cluster, &witness).await.inspect_err(|_| eprintln!("{}", cluster.log()))?;
    let verdict = judge(&records);
    if !verdict.regressions.is_empty() || !verdict.two_holders.is_empty() {
        eprintln!("fencing: what happened is in {}", folder.keep().display());
    }
    let mut by_way = BTreeMap::new();
    for record in records.iter().filter(|record| record.mark == Mark::Granted) {
        *by_way.entry(record.hold.way).or_default() += 1;
    }
    Ok(Report { plan, faults, by_way, verdict, caught, server: cluster.major_version() })
}

/// Until there were that many grants and every fault.
async fn disturb(plan: Plan, cluster: &Cluster, witness: &Path) -> Result<(Vec<Record>, Counts), Failure> {
    let url = format!("host={} port={} user=postgres dbname=postgres", cluster.socket_dir().display(), cluster.port());
    let mut reader = Reader::open(witness)?;
    let mut fleet = Fleet::start(PROCESSES, &url, witness, plan.seed)?;
    if plan.intruder {
        fleet.add_intruder()?;
    }
    let mut random = Random::new(plan.seed, u64::MAX);
    let mut saboteur = Saboteur::new(cluster, Random::new(plan.seed, u64::MAX - 1));
    while reader.grants < plan.grants || !saboteur.has_done_all() {
        let goal = reader.grants + random.within(BETWEEN_FAULTS);
        let mut failed = None;
        let reached = async || {
            failed = reader.catch_up().and_then(|()| fleet.check()).err();
            failed.is_some() || reader.grants >= goal
        };
        wait_until(AMPLE, "more grants", reached).await?;
        if let Some(failed) = failed {
            return Err(failed);
        }
        saboteur.strike(&mut fleet).await?;
    }
    fleet.stop().await?;
    Ok((reader.finish()?, saboteur.counts().clone()))
}
