//! One task, nothing else under way: a pair of acquire and release against two bare `select 1` on one connection.

use std::sync::Arc;

use distributed_lock::{Backend, Fencing};
use lock_postgres::PostgresSharedSession;
use lock_testkit::{Cluster, StallProbe};
use tokio::time::Instant;
use tokio_postgres::{Client, Statement};

use crate::{
    Failure,
    report::{Report, median},
    servers::{self, STALL},
};

use super::subject::Locked;

/// In each round of the program; they are short, so that a stall spoils little.
const TURNS: usize = 10;
/// Pairs of each kind in a turn.
const PAIRS: u32 = 50;

/// Medians.
pub(super) struct Ratios {
    pub(super) floor_us: f64,
    pub(super) plain: f64,
    pub(super) fenced: f64,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn measure(cluster: &Cluster, rounds: usize, report: &mut Report) -> Result<Ratios, Failure> {
    let url = servers::url(cluster);
    let probe = StallProbe::start()?;
    let floor = Floor::connect(&url).await?;
    let locker = Arc::new(PostgresSharedSession::from_url(&url)?);
    let plain = Locked::new(Arc::clone(&locker) as _, Fencing::Off)?;
    let fenced = Locked::new(Arc::clone(&locker) as _, Fencing::On)?;
    // Connected, prepared, and past the plans that the server makes for a statement's first uses.
    for _ in 0..4 * PAIRS {
        floor.run().await?;
        plain.pair(0).await?;
        fenced.pair(0).await?;
    }

    let mut floors = Vec::new();
    let mut ratios: [Vec<f64>; 2] = Default::default();
    for turn in 0..rounds * TURNS {
        let mark = probe.mark();
        let mut times = [0.0; 3];
        for place in 0..3 {
            let kind = (turn + place) % 3;
            let start = Instant::now();
            for _ in 0..PAIRS {
                match kind {
                    0 => floor.run().await?,
                    1 => plain.pair(0).await?,
                    _ => fenced.pair(0).await?,
                }
            }
            times[kind] = start.elapsed().as_secs_f64() * 1e6 / f64::from(PAIRS);
        }
        let stalled = probe.longest_since(mark) > STALL;
        report.count(stalled);
        if !stalled {
            let [floor, plain, fenced] = times;
            floors.push(floor);
            ratios[0].push(plain / floor);
            ratios[1].push(fenced / floor);
        }
    }
    locker.close().await?;
    let [mut plain, mut fenced] = ratios;
    Ok(Ratios { floor_us: median(&mut floors), plain: median(&mut plain), fenced: median(&mut fenced) })
}

struct Floor {
    client: Client,
    statement: Statement,
}

impl Floor {
    async fn connect(url: &str) -> Result<Self, Failure> {
        let client = servers::connect(url).await?;
        let statement = client.prepare("select 1").await?;
        Ok(Self { client, statement })
    }

    async fn run(&self) -> Result<(), Failure> {
        for _ in 0..2 {
            let one: i32 = self.client.query_one(&self.statement, &[]).await?.get(0);
            assert_eq!(one, 1);
        }
        Ok(())
    }
}
