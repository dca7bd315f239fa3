//! What the wrappers add to an acquire and its release, as a share of one round trip to PostgreSQL of the same run.
//!
//! They stand around a locker that grants at once. The kinds take turns within a round, and each figure is the median of the rounds in
//! which the machine did not stall. Client and server run where the system places them, as those of a service do, over a unix socket;
//! that is judged. Beside it stands the same with both on one CPU, where a round trip is as short as it can be. Nobody listens; then, for
//! the figures that are told, a recorder of metrics and a subscriber that formats every span do. Prints one JSON line last. Exits 1 if the
//! share is over its limit, 2 if called wrongly, 3 if too many rounds are void, 4 without a server.

use std::{error::Error, fmt, process::ExitCode, sync::Arc, time::Duration};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Clock, Expiry, Guarantees, Instrumented, LockGuard,
    LockKey, Locker, Reach, Release, Result, SystemClock, Ttl,
    backend::{HoldRecord, LockHandle},
    breaker::{BreakerConfig, CircuitBreaker},
};
use lock_testkit::{
    Cluster, RoundTrip, StallProbe,
    bench::{self, median, on_one_cpu},
};
use metrics_util::debugging::DebuggingRecorder;
use tokio::time::Instant;

/// Of which at most one in ten may be void.
const ROUNDS: usize = 200;
/// Of those in which somebody listens, which take longer and have no limit.
const ROUNDS_TOLD: usize = 40;
const TRIPS: u32 = 100;
const PAIRS: u32 = 2_000;
/// A stall that makes a round void.
const STALL: Duration = Duration::from_millis(5);

/// Of a round trip.
const LIMIT: f64 = 0.05;

type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    bench::run("distributed-lock", "stack", || {
        let [quiet, told] = measure(&Cluster::start()?, [ROUNDS, ROUNDS_TOLD])?;
        // The server's processes inherit the CPU.
        let [pinned, _] = on_one_cpu(|| measure(&Cluster::start()?, [ROUNDS, 0]))??;
        verdict(&quiet, &told, &pinned)
    })
}

/// The wrappers under measurement, as a service would have them.
fn stack(inner: AtOnce) -> Result<impl Locker> {
    Ok(Instrumented::new(CircuitBreaker::new(inner, BreakerConfig::new())?))
}

/// With nobody listening, then with somebody.
#[tokio::main(flavor = "current_thread")]
async fn measure(cluster: &Cluster, [quiet, told]: [usize; 2]) -> Result<[Samples; 2], Failure> {
    let bench = Bench {
        probe: StallProbe::start()?,
        trip: RoundTrip::connect(&cluster.admin_config("postgres")).await?,
        bare: AtOnce::new(),
        stack: stack(AtOnce::new())?,
        key: LockKey::new("stack")?,
        options: AcquireOptions::new(Ttl::new(Duration::from_secs(30))?),
    };
    let quiet = bench.rounds(quiet).await?;
    let recorder = DebuggingRecorder::new();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::sink);
    let events = tracing_subscriber::fmt::format::FmtSpan::NEW | tracing_subscriber::fmt::format::FmtSpan::CLOSE;
    let _subscriber = tracing::subscriber::set_default(subscriber.with_span_events(events).finish());
    Ok([quiet, bench.rounds(told).await?])
}

fn verdict(quiet: &Samples, told: &Samples, pinned: &Samples) -> Result<ExitCode, Failure> {
    let figures = Figures { quiet: quiet.medians(), told: told.medians(), pinned: pinned.medians() };
    if quiet.void * 10 > ROUNDS {
        let void = quiet.void;
        eprintln!(
            "stack: the machine stalled in {void} of {ROUNDS} rounds; without a verdict, of the others: {figures}"
        );
        return Ok(ExitCode::from(3));
    }
    println!("{figures}");
    let share = figures.quiet.share();
    if share < LIMIT {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("stack: {share:.4} of a round trip: must be less than {LIMIT}");
    Ok(ExitCode::FAILURE)
}

struct Bench<L> {
    probe: StallProbe,
    trip: RoundTrip,
    bare: AtOnce,
    stack: L,
    key: LockKey,
    options: AcquireOptions,
}

/// Of a round trip, a bare pair and a pair through the stack, in ns, and how many rounds were void.
#[derive(Default)]
struct Samples {
    times: [Vec<f64>; 3],
    void: usize,
}

impl<L: Locker> Bench<L> {
    async fn rounds(&self, rounds: usize) -> Result<Samples, Failure> {
        let mut samples = Samples::default();
        self.round(0).await?;
        for round in 0..rounds {
            let mark = self.probe.mark();
            let times = self.round(round).await?;
            if self.probe.longest_since(mark) >= STALL {
                samples.void += 1;
                continue;
            }
            for (samples, time) in samples.times.iter_mut().zip(times) {
                samples.push(time);
            }
        }
        Ok(samples)
    }

    async fn round(&self, number: usize) -> Result<[f64; 3], Failure> {
        let mut times = [0.0; 3];
        for turn in 0..3 {
            let kind = (number + turn) % 3;
            let start = Instant::now();
            let times_done = match kind {
                0 => {
                    for _ in 0..TRIPS {
                        self.trip.run().await?;
                    }
                    TRIPS
                }
                1 => self.pairs(&self.bare).await?,
                _ => self.pairs(&self.stack).await?,
            };
            times[kind] = start.elapsed().as_secs_f64() * 1e9 / f64::from(times_done);
        }
        Ok(times)
    }

    async fn pairs(&self, locker: &impl Locker) -> Result<u32, Failure> {
        for _ in 0..PAIRS {
            match locker.acquire_opts(&self.key, &self.options).await? {
                Attempt::Acquired(guard) => guard.release().await?.exclusive()?,
                Attempt::Contended(why) => return Err(why.into()),
            }
        }
        Ok(PAIRS)
    }
}

impl Samples {
    fn medians(&self) -> Medians {
        let [trip, bare, stack] = &self.times;
        Medians { trip: median(trip), bare: median(bare), stack: median(stack) }
    }
}

struct Medians {
    trip: f64,
    bare: f64,
    stack: f64,
}

impl Medians {
    fn overhead(&self) -> f64 {
        self.stack - self.bare
    }

    fn share(&self) -> f64 {
        self.overhead() / self.trip
    }
}

struct Figures {
    quiet: Medians,
    told: Medians,
    pinned: Medians,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quiet, told, pinned } = self;
        write!(
            f,
            r#"{{"round_trip_ns":{:.0},"pair_bare_ns":{:.0},"pair_ns":{:.0},"#,
            quiet.trip, quiet.bare, quiet.stack
        )?;
        write!(f, r#""overhead_ns":{:.0},"share":{:.4},"#, quiet.overhead(), quiet.share())?;
        write!(f, r#""told_overhead_ns":{:.0},"told_share":{:.4},"#, told.overhead(), told.share())?;
        let (trip, overhead) = (pinned.trip, pinned.overhead());
        write!(
            f,
            r#""pinned_round_trip_ns":{trip:.0},"pinned_overhead_ns":{overhead:.0},"pinned_share":{:.4}}}"#,
            pinned.share()
        )
    }
}

/// Grants at once whatever is asked for: no store, and no more work than a guard needs.
#[derive(Debug)]
struct AtOnce {
    id: BackendId,
    clock: Arc<dyn Clock>,
}

impl AtOnce {
    fn new() -> Self {
        Self { id: BackendId::fresh(), clock: Arc::new(SystemClock) }
    }
}

impl fmt::Display for AtOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtOnce")
    }
}

#[async_trait]
impl Backend for AtOnce {
    fn id(&self) -> BackendId {
        self.id
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(Expiry::Client, Reach::Process)
    }
    fn guarantees(&self) -> Guarantees {
        Guarantees::NONE
    }
    async fn ping(&self) -> Result<()> {
        Ok(())
    }
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Locker for AtOnce {
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        let record = HoldRecord::draft(self.id, key.clone(), Arc::clone(&self.clock)).open();
        Ok(Attempt::Acquired(LockGuard::new(record.hold(), options.ttl, Nothing)))
    }
}

#[derive(Debug)]
struct Nothing;

#[async_trait]
impl LockHandle for Nothing {
    async fn renew(&mut self, _ttl: Ttl) -> Result<()> {
        Ok(())
    }
    async fn release(&mut self) -> Result<Release> {
        Ok(Release::Released)
    }
    fn abandon(&mut self) {}
}
