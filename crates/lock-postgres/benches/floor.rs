//! What an uncontended acquire and its release cost, against the floor: two bare `select 1` on one connection.
//!
//! Client and server share one CPU, so that a round trip has one price. The kinds take turns within a round, and each figure
//! is the median of the rounds in which the machine did not stall. Prints one JSON line last, times in microseconds. Exits 1
//! if a ratio is over its limit or a pair is not two round trips, 2 if called wrongly, 3 if too many rounds are void, 4
//! without a server.

use std::{error::Error, fmt, process::ExitCode, time::Duration};

use distributed_lock::{AcquireOptions, Attempt, Backend, Fencing, LockKey, Locker, Ttl};
use lock_postgres::PostgresLocker;
use lock_testkit::{
    Cluster, Proxy, StallProbe,
    bench::{self, median, on_one_cpu},
};
use tokio::time::Instant;
use tokio_postgres::{Client, NoTls, Statement};

/// Of which at most one in ten may be void.
const ROUNDS: usize = 448;
/// Pairs of each kind in a round, which is short so that a stall spoils little.
const PAIRS: u32 = 50;
/// A stall that makes a round void.
const STALL: Duration = Duration::from_millis(5);

const LIMIT: f64 = 1.25;
const LIMIT_FENCED: f64 = 2.0;

type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    bench::run("lock-postgres", "floor", || on_one_cpu(|| measure(&Cluster::start()?))?)
}

#[tokio::main(flavor = "current_thread")]
async fn measure(cluster: &Cluster) -> Result<ExitCode, Failure> {
    let probe = StallProbe::start()?;
    let floor = Floor::connect(&cluster.url()).await?;
    let locker = PostgresLocker::from_url(&cluster.url())?;
    let (plain, fenced) = (Pair::new(&locker, Fencing::Off)?, Pair::new(&locker, Fencing::On)?);
    // Connected, prepared, and past the plans that the server makes for a statement's first uses.
    for _ in 0..4 * PAIRS {
        floor.run().await?;
        plain.run().await?;
        fenced.run().await?;
    }

    let mut samples: [Vec<f64>; 3] = Default::default();
    let mut void = 0;
    for round in 0..ROUNDS {
        let mark = probe.mark();
        let mut times = [0.0; 3];
        for turn in 0..3 {
            let kind = (round + turn) % 3;
            let start = Instant::now();
            for _ in 0..PAIRS {
                match kind {
                    0 => floor.run().await?,
                    1 => plain.run().await?,
                    _ => fenced.run().await?,
                }
            }
            times[kind] = start.elapsed().as_secs_f64() * 1e6 / f64::from(PAIRS);
        }
        if probe.longest_since(mark) >= STALL {
            void += 1;
            continue;
        }
        for (samples, time) in samples.iter_mut().zip(times) {
            samples.push(time);
        }
    }
    locker.close().await?;

    let trips = [round_trips(cluster, Fencing::Off).await?, round_trips(cluster, Fencing::On).await?];
    let figures = Figures { times: samples.map(|samples| median(&samples)), trips };
    if void * 10 > ROUNDS {
        eprintln!(
            "floor: the machine stalled in {void} of {ROUNDS} rounds; without a verdict, of the others: {figures}"
        );
        return Ok(ExitCode::from(3));
    }
    println!("{figures}");
    Ok(if figures.are_within_limits() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Of the floor, a pair and a fenced pair the time, and of the pairs the round trips.
struct Figures {
    times: [f64; 3],
    trips: [f64; 2],
}

impl Figures {
    fn ratios(&self) -> (f64, f64) {
        let [floor, pair, fenced] = self.times;
        (pair / floor, fenced / floor)
    }

    fn are_within_limits(&self) -> bool {
        let (ratio, ratio_fenced) = self.ratios();
        let fast = ratio <= LIMIT && ratio_fenced <= LIMIT_FENCED;
        if !fast {
            eprintln!("floor: must be at most {LIMIT} times the floor, and {LIMIT_FENCED} with fencing");
        }
        let trips = self.trips;
        let two_trips = trips == [2.0, 2.0];
        if !two_trips {
            eprintln!("floor: {trips:?} round trips a pair, without and with fencing: must be two");
        }
        fast && two_trips
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [floor, pair, fenced] = self.times;
        let (ratio, ratio_fenced) = self.ratios();
        let round_trips = self.trips[0].max(self.trips[1]);
        write!(f, r#"{{"floor_us":{floor:.1},"pair_us":{pair:.1},"pair_fenced_us":{fenced:.1},"#)?;
        write!(f, r#""ratio":{ratio:.3},"ratio_fenced":{ratio_fenced:.3},"round_trips":{round_trips}}}"#)
    }
}

/// A pair's, counted on the wire.
async fn round_trips(cluster: &Cluster, fencing: Fencing) -> Result<f64, Failure> {
    let proxy = Proxy::start(([127, 0, 0, 1], cluster.port()))?;
    let locker = PostgresLocker::from_url(&proxy.url(&cluster.url()))?;
    let pair = Pair::new(&locker, fencing)?;
    // Connects.
    pair.run().await?;
    proxy.reset_counts();
    for _ in 0..PAIRS {
        pair.run().await?;
    }
    let trips = proxy.round_trips().ok_or("the proxy could not read along")?;
    locker.close().await?;
    Ok(f64::from(u32::try_from(trips)?) / f64::from(PAIRS))
}

struct Floor {
    client: Client,
    statement: Statement,
}

impl Floor {
    async fn connect(url: &str) -> Result<Self, Failure> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
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

struct Pair<'a> {
    locker: &'a PostgresLocker,
    key: LockKey,
    options: AcquireOptions,
}

impl<'a> Pair<'a> {
    fn new(locker: &'a PostgresLocker, fencing: Fencing) -> Result<Self, Failure> {
        let options = AcquireOptions::new(Ttl::new(Duration::from_secs(30))?).with_fencing(fencing);
        Ok(Self { locker, key: LockKey::new("floor")?, options })
    }

    async fn run(&self) -> Result<(), Failure> {
        match self.locker.acquire_opts(&self.key, &self.options).await? {
            Attempt::Acquired(guard) => {
                assert_eq!(guard.fencing_token().is_some(), self.options.fencing == Fencing::On);
                Ok(guard.release().await?.exclusive()?)
            }
            Attempt::Contended(why) => Err(why.into()),
        }
    }
}
