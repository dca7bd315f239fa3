//! Three replicas with three jobs each on one PostgreSQL: every job runs on one of them, the others stand by. Then a rolling
//! restart, one replica after the other, as a deployment does it.
//!
//! ```sh
//! DATABASE_URL=postgres://user@localhost/app cargo run -p examples --bin lease
//! cargo run -p lock-testkit --bin with-postgres -- cargo run -p examples --bin lease
//! ```
//!
//! Prints the timeline, and last for each job how long it had no leader at most, and how long it had two. Exits 1 if two ever
//! led at a time or a job found no leader in ten seconds, 4 without a database.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use distributed_lock::Backend;
use distributed_lock::lease::{LeaseConfig, LeaseRunner, Term};
use lock_postgres::PostgresSharedSession;
use rustix::time::{ClockId, clock_gettime};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::time::timeout;

const JOBS: [&str; 3] = ["billing", "cleanup", "report"];
const REPLICAS: usize = 3;
const LIMIT: Duration = Duration::from_secs(10);

/// How long all is quiet between two restarts.
const PAUSE: Duration = Duration::from_millis(300);

type Failure = Box<dyn Error + Send + Sync>;
type Lines = mpsc::UnboundedReceiver<(usize, String)>;

#[tokio::main]
async fn main() -> Result<ExitCode, Failure> {
    let Ok(url) = std::env::var("DATABASE_URL") else {
        eprintln!("lease: set DATABASE_URL, since processes share no memory; for a throw-away server:");
        eprintln!("cargo run -p lock-testkit --bin with-postgres -- cargo run -p examples --bin lease");
        return Ok(ExitCode::from(4));
    };
    match std::env::args().nth(1) {
        Some(number) => replica(&number, &url).await.map(|()| ExitCode::SUCCESS),
        None => rolling_restart().await,
    }
}

/// What a service does at its start, for as long as it runs, and at its shutdown.
async fn replica(number: &str, url: &str) -> Result<(), Failure> {
    // All jobs of this process on one session.
    let locker = Arc::new(PostgresSharedSession::from_url(url)?);
    let runner = LeaseRunner::new(Arc::clone(&locker) as _, LeaseConfig::new())?;
    // What an operator wants to know before the first failure: how long each kind can last.
    eprintln!("replica {number}: {}", runner.guarantees());

    let runs = JOBS.map(|job| {
        let runner = runner.clone();
        tokio::spawn(async move {
            say(job, "standby");
            runner.run(job, move |term| work(job, term)).await
        })
    });

    // A service waits for SIGTERM here; this one is told by the end of its standard input.
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;

    // Every job is told, has its grace, and gives its lease up as soon as it has ended.
    runner.close().await?;
    for run in runs {
        // How each run ended: `Closed`, with what its job returned.
        let _exit = run.await??;
    }
    Ok(locker.close().await?)
}

/// A job that can begin anew at any time: it goes on from what it finds.
async fn work(job: &'static str, term: Term) -> Result<(), Failure> {
    say(job, "leading");
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    loop {
        tokio::select! {
            // Lost, asked to step down, or shut down: end soon, and begin nothing new.
            _why = term.cancelled() => break,
            _ = tick.tick() => {
                // Right before each side effect. A resource that can check gets `term.fencing_token()` as well.
                term.ensure_valid()?;
                term.progress();
            }
        }
    }
    say(job, "ended");
    Ok(())
}

/// One line for the timeline, with a clock that all processes of one machine share.
fn say(job: &str, event: &str) {
    let now = clock_gettime(ClockId::Monotonic);
    println!("{} {job} {event}", now.tv_sec * 1_000_000 + now.tv_nsec / 1_000);
}

/// Starts the replicas, restarts each once, stops them, and judges the timeline.
async fn rolling_restart() -> Result<ExitCode, Failure> {
    let (lines, mut heard) = mpsc::unbounded_channel();
    let mut timeline = Timeline::default();
    let mut replicas = Vec::new();
    for number in 0..REPLICAS {
        replicas.push(Process::start(number, &lines)?);
    }
    timeline.until_all_lead(&mut heard, None).await?;
    for (number, replica) in replicas.iter_mut().enumerate() {
        timeline.listen(&mut heard, PAUSE).await;
        println!("replica={number} restarts");
        replica.stop()?;
        timeline.until_all_lead(&mut heard, Some(number)).await?;
        *replica = Process::start(number, &lines)?;
    }
    timeline.listen(&mut heard, PAUSE).await;
    for replica in &mut replicas {
        replica.stop()?;
    }
    timeline.listen(&mut heard, PAUSE).await;
    Ok(timeline.verdict())
}

/// A replica in a process of its own: this very program.
struct Process {
    child: Child,
    /// Closed to tell it to shut down.
    input: Option<ChildStdin>,
}

impl Process {
    fn start(number: usize, lines: &mpsc::UnboundedSender<(usize, String)>) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg(number.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let lines = lines.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if lines.send((number, line)).is_err() {
                    return;
                }
            }
        });
        Ok(Self { input: child.stdin.take(), child })
    }

    fn stop(&mut self) -> Result<(), Failure> {
        drop(self.input.take());
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("a replica ended with {status}").into()) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already is no failure.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// What the replicas said: for each job its terms.
#[derive(Default)]
struct Timeline {
    start: Option<i64>,
    jobs: BTreeMap<String, Vec<Led>>,
}

/// One term, in µs.
struct Led {
    replica: usize,
    from: i64,
    until: Option<i64>,
}

impl Timeline {
    fn hear(&mut self, replica: usize, line: &str) {
        let mut words = line.split(' ');
        let (Some(at), Some(job), Some(event)) = (words.next(), words.next(), words.next()) else { return };
        let Ok(at) = at.parse() else { return };
        let since = at - *self.start.get_or_insert(at);
        println!("t_ms={:<8.1} replica={replica} job={job:<8} event={event}", millis(since));
        let terms = self.jobs.entry(job.to_owned()).or_default();
        match event {
            "leading" => terms.push(Led { replica, from: at, until: None }),
            "ended" => {
                if let Some(term) = terms.iter_mut().rfind(|term| term.replica == replica) {
                    term.until = Some(at);
                }
            }
            _ => {}
        }
    }

    async fn listen(&mut self, heard: &mut Lines, pause: Duration) {
        let all = async {
            while let Some((replica, line)) = heard.recv().await {
                self.hear(replica, &line);
            }
        };
        // Ends by time: the replicas never stop talking by themselves.
        let _elapsed = timeout(pause, all).await;
    }

    /// Waits until each job runs on another replica than the one that has stopped.
    async fn until_all_lead(&mut self, heard: &mut Lines, stopped: Option<usize>) -> Result<(), Failure> {
        let leads = |terms: &Vec<Led>| terms.iter().any(|term| term.until.is_none() && Some(term.replica) != stopped);
        let all = async {
            while self.jobs.len() < JOBS.len() || !self.jobs.values().all(leads) {
                let Some((replica, line)) = heard.recv().await else { return };
                self.hear(replica, &line);
            }
        };
        timeout(LIMIT, all).await.map_err(|_| format!("a job has no leader after {LIMIT:?}").into())
    }

    /// From the end of each term to the start of the next; below zero both led.
    fn verdict(mut self) -> ExitCode {
        let mut ok = true;
        for (job, terms) in &mut self.jobs {
            terms.sort_unstable_by_key(|term| term.from);
            let gaps = terms.windows(2).map(|pair| pair[1].from - pair[0].until.unwrap_or(i64::MAX));
            let (shortest, longest) = gaps.fold((i64::MAX, 0), |(least, most), gap| (least.min(gap), most.max(gap)));
            let overlap = shortest.min(0).saturating_neg();
            println!(
                "job={job:<8} terms={} longest_gap_ms={:.1} overlap_ms={:.1}",
                terms.len(),
                millis(longest),
                millis(overlap)
            );
            ok &= overlap == 0;
        }
        if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn millis(micros: i64) -> f64 {
    Duration::from_micros(micros.unsigned_abs()).as_secs_f64() * 1e3
}
