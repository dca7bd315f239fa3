//! Waits that end where their lock is granted: the server's `lock_timeout` and the release of the holder before race each
//! other, and some waits fail although the session has the lock. Nothing may be left of them.
//!
//! `edge [--waits N] [--broken return-to-pool]`, the latter a waiter that takes the server's error at its word. Prints one
//! JSON line last. Exits 1 if anything was left on the server, or if one of the two outcomes was rarer than one in ten, so
//! that there was no race; 2 if called wrongly; 4 without a server.

mod granted_late;
mod lane;
mod sql;
mod waiter;

use std::{
    error::Error,
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use lock_postgres::{PostgresConfig, PostgresLocker};
use lock_testkit::{Cluster, Observer, postgres::StartError, wait::wait_until};
use tokio::time::sleep;

use crate::{
    lane::Lane,
    waiter::{Broken, Waiter},
};

/// Each with its id, frozen by golden vectors, so that a holder who knows nothing of the locker can take it.
const KEYS: [(&str, i64); 4] = [
    ("k", -267_060_044_214_003_201),
    ("a", -3_403_160_415_705_413_454),
    ("b", -6_696_661_348_568_117_906),
    ("order:42", -8_280_546_477_428_446_176),
];

/// On each key, in one round.
const WAITERS: u64 = 3;
const POOL_SIZE: usize = KEYS.len() * WAITERS as usize;
const WAIT: Duration = Duration::from_millis(5);
const TTL: Duration = Duration::from_secs(1);

/// A session that was destroyed is gone when its TTL is over and the server has looked for its client, all told.
const BOUND: Duration = Duration::from_secs(2);

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Default)]
struct Counts {
    started: AtomicU64,
    acquired: AtomicU64,
    timed_out: AtomicU64,
    errored_while_granted: Arc<AtomicU64>,
    ghosts: AtomicU64,
    /// Waits that failed for want of an answer and were repeated, which a busy machine can bring about.
    unanswered: AtomicU64,
}

fn main() -> ExitCode {
    let Some((waits, broken)) = parse(std::env::args().skip(1)) else {
        eprintln!("usage: edge [--waits NUMBER] [--broken return-to-pool]");
        return ExitCode::from(2);
    };
    let cluster = match Cluster::start() {
        Ok(cluster) => cluster,
        Err(error) => {
            eprintln!("edge: {error}");
            return ExitCode::from(if matches!(error, StartError::Missing(_)) { 4 } else { 1 });
        }
    };
    match measure(cluster, waits, broken) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("edge: {error}");
            ExitCode::FAILURE
        }
    }
}

/// How many waits, and whether by the broken waiter.
fn parse(mut arguments: impl Iterator<Item = String>) -> Option<(u64, bool)> {
    let (mut waits, mut broken) = (10_000, false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--waits" => waits = arguments.next()?.parse().ok().filter(|waits| *waits > 0)?,
            "--broken" if arguments.next()? == "return-to-pool" => broken = true,
            _ => return None,
        }
    }
    Some((waits, broken))
}

#[tokio::main]
async fn measure(cluster: Cluster, waits: u64, broken: bool) -> Result<bool, Failure> {
    let counts = Arc::new(Counts::default());
    let observer = Arc::new(Observer::connect(&cluster.admin_config("postgres")).await?);
    let waiter = if broken {
        Waiter::Broken(Broken { url: cluster.url(), free: Mutex::default() })
    } else {
        let counter = granted_late::Counter(Arc::clone(&counts.errored_while_granted));
        tracing::subscriber::set_global_default(counter)?;
        // Without the one session beside the pool, so that every session counts.
        Waiter::Product(PostgresLocker::new(
            &PostgresConfig::from_url(cluster.url()).with_pool_size(POOL_SIZE).with_watchdog(false),
        )?)
    };
    let waiter = Arc::new(waiter);

    let done = Arc::new(AtomicBool::new(false));
    let most = tokio::spawn(most_sessions(Arc::clone(&observer), Arc::clone(&done)));
    let lanes = KEYS.map(async |key| {
        let (counts, observer, waiter) = (Arc::clone(&counts), Arc::clone(&observer), Arc::clone(&waiter));
        Lane { key, holder: cluster.admin().await?, counts, observer, waiter }.run(waits).await
    });
    let [a, b, c, d] = lanes;
    tokio::try_join!(a, b, c, d)?;
    done.store(true, Ordering::SeqCst);
    let most = most.await??;

    // The holders have let go, and the pool is still open: nothing may be left but the beacons of its sessions.
    let mut left = Ok(Vec::new());
    let bare = wait_until(BOUND, "no lock is left", async || {
        left = observer.key_locks().await;
        left.as_ref().map_or(true, Vec::is_empty)
    });
    if bare.await.is_err() {
        let left = left?;
        eprintln!("edge: left at the end: {left:?}");
        counts.ghosts.fetch_add(left.len() as u64, Ordering::Relaxed);
    }
    waiter.close().await?;
    if let Err(error) = observer.quiet(BOUND).await {
        eprintln!("edge: after the close: {error}");
        counts.ghosts.fetch_add(1, Ordering::Relaxed);
    }
    Ok(report(waits, &counts, most))
}

fn report(waits: u64, counts: &Counts, most: usize) -> bool {
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (acquired, timed_out, ghosts) = (read(&counts.acquired), read(&counts.timed_out), read(&counts.ghosts));
    if most > POOL_SIZE {
        eprintln!("edge: {most} sessions at once, more than the {POOL_SIZE} of the pool");
    }
    let raced = acquired.min(timed_out) * 10 >= waits;
    if !raced {
        eprintln!("edge: an outcome was rarer than one in ten, so most waits did not race");
    }
    let answered = read(&counts.unanswered) * 10 <= waits;
    if !answered {
        eprintln!("edge: more than one wait in ten was not answered");
    }
    let (waited, late) = (acquired + timed_out, read(&counts.errored_while_granted));
    println!(
        r#"{{"waits":{waited},"acquired":{acquired},"timed_out":{timed_out},"errored_while_granted":{late},"ghosts":{ghosts}}}"#
    );
    ghosts == 0 && most <= POOL_SIZE && waited == waits && raced && answered
}

/// The most sessions that the server had at once, the kit's left out.
async fn most_sessions(observer: Arc<Observer>, done: Arc<AtomicBool>) -> Result<usize, tokio_postgres::Error> {
    let mut most = 0;
    while !done.load(Ordering::SeqCst) {
        most = most.max(observer.sessions().await?.len());
        sleep(Duration::from_millis(3)).await;
    }
    Ok(most)
}
