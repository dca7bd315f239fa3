//! Waits that end where their lock is granted: the server's `lock_timeout` and the release of the holder before race each
//! other, and some waits fail although the session has the lock. Nothing may be left of them.
//!
//! `edge [--waits N] [--broken return-to-pool]`, the latter a waiter that takes the server's error at its word. Prints one
//! JSON line last. Exits 1 if anything was left on the server, or if one of the two outcomes was rarer than one in ten, so
//! that there was no race; 2 if called wrongly; 4 without a server.

use std::{
    error::Error,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use distributed_lock::{Attempt, Backend, Contention, ErrorKind, LockerExt};
use lock_postgres::{PostgresConfig, PostgresLocker};
use lock_testkit::{
    Cluster, Observer,
    postgres::StartError,
    wait::{TimedOut, wait_until},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_postgres::{Client, NoTls, Row};

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
        Waiter::Product(PostgresLocker::new(&PostgresConfig::from_url(cluster.url()).with_pool_size(POOL_SIZE))?)
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

    // The holders have let go, and the pool is still open: nothing may be left, beacons included.
    let mut left = Ok(Vec::new());
    let bare = wait_until(BOUND, "no lock is left", async || {
        left = observer.advisory_locks().await;
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
    let line = serde_json::json!({
        "waits": acquired + timed_out,
        "acquired": acquired,
        "timed_out": timed_out,
        "errored_while_granted": read(&counts.errored_while_granted),
        "ghosts": ghosts,
    });
    println!("{line}");
    ghosts == 0 && most <= POOL_SIZE && acquired + timed_out == waits && raced && answered
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

/// One key, its holder, and those who wait for it.
struct Lane {
    key: (&'static str, i64),
    holder: Client,
    counts: Arc<Counts>,
    observer: Arc<Observer>,
    waiter: Arc<Waiter>,
}

impl Lane {
    async fn run(&self, waits: u64) -> Result<(), Failure> {
        let mut delay = WAIT;
        loop {
            // A foreign try, and once the waits of the last round are over also the proof that nothing is left of them.
            if self.take().await?.is_err() {
                self.counts.ghosts.fetch_add(1, Ordering::Relaxed);
                self.evict().await?;
                continue;
            }
            let first = self.counts.started.fetch_add(WAITERS, Ordering::Relaxed);
            let waiters = waits.saturating_sub(first).min(WAITERS);
            if waiters == 0 {
                return self.free().await;
            }
            let acquired = self.round(waiters, delay).await?;
            // Steered to where half of the waits are granted.
            let step = Duration::from_micros(100);
            delay = if acquired * 2 > waiters { delay + step } else { delay.saturating_sub(step) }.min(WAIT * 4);
        }
    }

    /// How many of the waits were granted when the holder lets go after this long.
    async fn round(&self, waiters: u64, delay: Duration) -> Result<u64, Failure> {
        let release = Instant::now() + delay;
        let mut waits = JoinSet::new();
        for _ in 0..waiters {
            let (waiter, counts, key) = (Arc::clone(&self.waiter), Arc::clone(&self.counts), self.key);
            waits.spawn(async move { waiter.wait(key, &counts).await });
        }
        tokio::task::spawn_blocking(move || pause_until(release)).await?;
        self.free().await?;
        let mut acquired = 0;
        while let Some(granted) = waits.join_next().await {
            acquired += u64::from(granted??);
        }
        self.counts.acquired.fetch_add(acquired, Ordering::Relaxed);
        self.counts.timed_out.fetch_add(waiters - acquired, Ordering::Relaxed);
        Ok(acquired)
    }

    async fn take(&self) -> Result<Result<(), TimedOut>, Failure> {
        let mut error = None;
        let taken = wait_until(BOUND, "the key is free", async || match ask(&self.holder, TRY, self.key.1).await {
            Ok(row) => row.get(0),
            Err(failed) => {
                error = Some(failed);
                true
            }
        });
        let taken = taken.await;
        error.map_or(Ok(taken), |error| Err(error.into()))
    }

    async fn free(&self) -> Result<(), Failure> {
        let held: bool = ask(&self.holder, UNLOCK, self.key.1).await?.get(0);
        if held { Ok(()) } else { Err("the holder did not hold its key".into()) }
    }

    /// Ends the sessions that own the key, so that the next round can run.
    async fn evict(&self) -> Result<(), Failure> {
        for lock in self.observer.holders(self.key.1).await? {
            if let Some(pid) = lock.pid {
                self.observer.terminate(pid).await?;
            }
        }
        Ok(())
    }
}

/// To the fraction of a millisecond that the race is about; the runtime's timer knows whole ones only.
#[expect(clippy::disallowed_methods, reason = "the delay is the scenario")]
fn pause_until(end: Instant) {
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
}

enum Waiter {
    Product(PostgresLocker),
    Broken(Broken),
}

impl Waiter {
    /// Waits once and gives back at once what it was granted; whether it was.
    async fn wait(&self, key: (&str, i64), counts: &Counts) -> Result<bool, Failure> {
        let locker = match self {
            Self::Product(locker) => locker,
            Self::Broken(broken) => return broken.wait(key.1, counts).await,
        };
        loop {
            match locker.acquire_within(key.0, TTL, WAIT).await {
                Ok(Attempt::Acquired(guard)) => {
                    guard.release().await?.exclusive()?;
                    return Ok(true);
                }
                Ok(Attempt::Contended(Contention::WaitElapsed)) => return Ok(false),
                // Destroyed sessions keep their places until the server has let go of them. No wait, so none is counted.
                Ok(Attempt::Contended(Contention::NoConnection)) => {}
                Ok(Attempt::Contended(why)) => return Err(format!("unexpected contention: {why}").into()),
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    counts.unanswered.fetch_add(1, Ordering::Relaxed);
                    eprintln!("edge: repeated: {error}");
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn close(&self) -> Result<(), Failure> {
        match self {
            Self::Product(locker) => locker.close().await?,
            Self::Broken(broken) => broken.free.lock().unwrap_or_else(PoisonError::into_inner).clear(),
        }
        Ok(())
    }
}

/// A pool whose sessions come back also after a wait that failed, with whatever they own.
struct Broken {
    url: String,
    free: Mutex<Vec<Client>>,
}

impl Broken {
    async fn wait(&self, id: i64, counts: &Counts) -> Result<bool, Failure> {
        loop {
            let client = self.reserve().await?;
            let waited = Self::wait_on(&client, id, counts).await;
            // Ended by us because it owned another key that it should not.
            if waited.as_ref().is_err_and(|error| client.is_closed() || has_state(error, "57P01")) {
                continue;
            }
            let granted = waited?;
            self.free.lock().unwrap_or_else(PoisonError::into_inner).push(client);
            return Ok(granted);
        }
    }

    async fn wait_on(client: &Client, id: i64, counts: &Counts) -> Result<bool, tokio_postgres::Error> {
        match ask(client, LOCK, id).await {
            Ok(_) => {
                ask(client, UNLOCK, id).await?;
                Ok(true)
            }
            Err(error) if has_state(&error, "55P03") => {
                // Looked up for the figure only.
                let owned: i64 = ask(client, OWNED, id).await?.get(0);
                counts.errored_while_granted.fetch_add(u64::from(owned > 0), Ordering::Relaxed);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn reserve(&self) -> Result<Client, Failure> {
        let free = || self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        while let Some(client) = free() {
            if !client.is_closed() {
                return Ok(client);
            }
        }
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(&format!("set lock_timeout = {}", WAIT.as_millis())).await?;
        Ok(client)
    }
}

fn has_state(error: &tokio_postgres::Error, state: &str) -> bool {
    error.code().is_some_and(|code| code.code() == state)
}

async fn ask(client: &Client, statement: &str, id: i64) -> Result<Row, tokio_postgres::Error> {
    client.query_typed_one(statement, &[(&id, tokio_postgres::types::Type::INT8)]).await
}

const TRY: &str = "select pg_catalog.pg_try_advisory_lock($1::pg_catalog.int8)";
const LOCK: &str = "select pg_catalog.pg_advisory_lock($1::pg_catalog.int8)::pg_catalog.text";
const UNLOCK: &str = "select pg_catalog.pg_advisory_unlock($1::pg_catalog.int8)";
const OWNED: &str = "select pg_catalog.count(*) from pg_catalog.pg_locks as l \
    where l.locktype operator(pg_catalog.=) 'advisory'::pg_catalog.text and l.granted \
    and l.pid operator(pg_catalog.=) pg_catalog.pg_backend_pid() and l.objsubid operator(pg_catalog.=) 1::pg_catalog.int2 \
    and ((l.classid::pg_catalog.int8 operator(pg_catalog.<<) 32) operator(pg_catalog.|) l.objid::pg_catalog.int8) \
    operator(pg_catalog.=) $1::pg_catalog.int8";

/// Counts the waits that failed although they were granted: the locker hides them, but says so for debugging.
mod granted_late {
    use std::{
        fmt::Debug,
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
    };

    use tracing::{
        Event, Metadata, Subscriber,
        field::{Field, Visit},
        span::{Attributes, Id, Record},
    };

    pub(crate) struct Counter(pub(crate) Arc<AtomicU64>);

    impl Subscriber for Counter {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.is_event() && metadata.target() == "lock_postgres"
        }

        fn event(&self, event: &Event<'_>) {
            event.record(&mut Matcher(&self.0));
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    struct Matcher<'a>(&'a AtomicU64);

    impl Visit for Matcher<'_> {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            if field.name() == "message" && format!("{value:?}").starts_with("a wait that timed out had been granted") {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
