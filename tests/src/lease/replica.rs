//! One replica, in a process of its own: contends for its jobs, works while it leads, and says so on its standard output, each line
//! with the number of the job and the time.
//!
//! Orders come on its standard input: `stop` ends each run, after which it stands by again; `step_down` hands over; `block MS` has
//! a job block its thread; `shutdown` and `drop` end the runtime under the job, while the process lives. `SIGTERM` is a
//! restart, and so is the end of the orders: the runner is closed and the process ends.

use std::{
    convert::Infallible,
    future::poll_fn,
    io::BufRead,
    process::ExitCode,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    task::Poll,
    time::Duration,
};

use distributed_lock::{
    Backend, ErrorKind, Fairness,
    lease::{CancelReason, LeaseExit, LeaseRunner, Term},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use super::{Failure, clock, job, settings::Settings};

/// What makes a program a replica: its first argument.
pub const ARGUMENT: &str = "replica";

/// For how long the job is to block its thread at its next step, in ms.
static BLOCK: AtomicU64 = AtomicU64::new(0);

/// Runs as a replica, with the arguments behind the first.
#[must_use]
pub fn main(arguments: &[String]) -> ExitCode {
    let parsed = arguments.split_first().and_then(|(url, rest)| Some((url, Settings::parse(rest)?)));
    let Some((url, settings)) = parsed else {
        eprintln!("lease: a replica is started by the program itself");
        return ExitCode::from(2);
    };
    match serve(url, settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lease: replica: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What becomes of the runtime before its run has ended.
enum End {
    Dropped,
    ShutDown,
}

fn serve(url: &str, settings: Settings) -> Result<(), Failure> {
    let runtime = settings.runtime()?;
    let (orders, mut to_run) = mpsc::unbounded_channel();
    let (ends, mut end) = mpsc::unbounded_channel();
    let reading = std::thread::spawn(move || read_orders(&orders, &ends));
    let url = url.to_owned();
    // On a worker, where there are workers.
    let mut running: JoinHandle<Result<(), Failure>> =
        runtime.spawn(async move { run(&url, settings, &mut to_run).await });
    let ended = runtime.block_on(async {
        tokio::select! {
            ended = &mut running => Ok(ended),
            Some(end) = end.recv() => Err(end),
        }
    });
    match ended {
        Ok(ended) => return ended?,
        Err(End::Dropped) => drop(runtime),
        Err(End::ShutDown) => runtime.shutdown_background(),
    }
    println!("0 gone {}", clock::now());
    // The process lives on until its orders end.
    reading.join().map_err(|_panic| "the reader of orders panicked")?;
    Ok(())
}

async fn run(url: &str, settings: Settings, orders: &mut mpsc::UnboundedReceiver<Order>) -> Result<(), Failure> {
    let (locker, runner) = settings.runner(url)?;
    let (jobs, mut restart) = (0..settings.jobs, signal(SignalKind::terminate())?);
    // Many that work all the time would take the processor from those who measure.
    let pause = Duration::from_millis(if settings.jobs == 1 { 1 } else { 10 });
    let obey = async {
        loop {
            tokio::select! {
                _ = restart.recv() => return,
                order = orders.recv() => match order {
                    Some(Order::Stop) => jobs.clone().for_each(|number| _ = runner.stop(&job(number))),
                    Some(Order::StepDown) => jobs.clone().for_each(|number| _ = runner.step_down(&job(number))),
                    // Whoever gave the orders is gone.
                    None => return,
                },
            }
        }
    };
    // Where nobody queues, whoever stops is the first to try again: as after a step-down, others go first.
    let queues = locker.capabilities().fairness == Fairness::Fifo;
    let rest = if queues { Duration::ZERO } else { settings.lease().retry_interval * 2 };
    let runs: JoinSet<_> = jobs.clone().map(|number| contend(runner.clone(), Job { number, pause }, rest)).collect();
    let (ended, closed) = tokio::join!(runs.join_all(), async {
        obey.await;
        runner.close().await
    });
    closed?;
    locker.close().await?;
    ended.into_iter().try_for_each(|exit| match exit? {
        LeaseExit::Closed(_) => Ok(()),
        other => Err(format!("the run ended by itself: {other:?}").into()),
    })
}

/// One of the jobs, and how long it pauses between two steps.
#[derive(Clone, Copy, Debug)]
struct Job {
    number: usize,
    pause: Duration,
}

/// Until it is closed. Rests for so long after a stop.
async fn contend(runner: LeaseRunner, of: Job, rest: Duration) -> distributed_lock::Result<LeaseExit<(), Failure>> {
    loop {
        match runner.run(job(of.number), |term| work(of, term)).await {
            Ok(LeaseExit::Stopped(_)) => sleep(rest).await,
            // It was closed while it rested.
            Err(error) if error.kind() == ErrorKind::Closed => return Ok(LeaseExit::Closed(None)),
            other => return other,
        }
    }
}

/// Works in small steps, each only while the lease is proven.
async fn work(of: Job, term: Term) -> Result<(), Failure> {
    println!("{} leading {}", of.number, clock::now());
    let cancelled = term.cancelled();
    let now = clock::now();
    let mut steps = Steps { of, term, polled: AtomicI64::new(0), last: now, deadline: now, lost: true };
    tokio::pin!(cancelled);
    loop {
        tokio::select! {
            biased;
            _never = poll_fn(|_| steps.polled()) => {}
            reason = &mut cancelled => {
                steps.lost = matches!(reason, CancelReason::Lost(_));
                return Ok(());
            }
            () = sleep(of.pause) => {
                steps.block();
                steps.make();
            }
        }
    }
}

/// Says how the job ended. In its drop, since a job that wakes past its deadline is dropped without being polled again; there it works
/// once more if it may, as a job that cleans up.
struct Steps {
    of: Job,
    term: Term,
    /// When the job was last polled.
    polled: AtomicI64,
    last: i64,
    /// What the job could rely on at its last step.
    deadline: i64,
    lost: bool,
}

impl Steps {
    fn polled(&self) -> Poll<Infallible> {
        self.polled.store(clock::now(), Ordering::Relaxed);
        Poll::Pending
    }

    /// If it was told to.
    fn block(&self) {
        let blocks = BLOCK.swap(0, Ordering::Relaxed);
        if blocks > 0 {
            println!("{} blocks {}", self.of.number, clock::now());
            block(Duration::from_millis(blocks));
            let (now, valid) = (clock::now(), i64::from(self.term.ensure_valid().is_ok()));
            println!("{} wakes {now} {valid}", self.of.number);
        }
    }

    fn make(&mut self) {
        let step = clock::now();
        if let (Ok(()), Some(remaining)) = (self.term.ensure_valid(), self.term.remaining()) {
            self.last = step;
            self.deadline = step + clock::nanos(remaining);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a job that blocks its thread is what is tested")]
fn block(time: Duration) {
    std::thread::sleep(time);
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.make();
        let number = self.of.number;
        if self.lost {
            println!("{number} lost {} {}", clock::now(), self.deadline);
        }
        println!("{number} ended {} {} {}", clock::now(), self.last, self.polled.load(Ordering::Relaxed));
    }
}

enum Order {
    StepDown,
    Stop,
}

/// Reads to the end, on a thread, since standard input cannot be waited for.
fn read_orders(orders: &mpsc::UnboundedSender<Order>, ends: &mpsc::UnboundedSender<End>) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        // Nobody reads them once the runtime is gone.
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("stop", _) => _ = orders.send(Order::Stop),
            ("step_down", _) => _ = orders.send(Order::StepDown),
            ("block", millis) => BLOCK.store(millis.parse().unwrap_or(0), Ordering::Relaxed),
            ("shutdown", _) => _ = ends.send(End::ShutDown),
            ("drop", _) => _ = ends.send(End::Dropped),
            _ => return,
        }
    }
}
