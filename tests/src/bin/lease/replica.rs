//! One replica, in a process of its own: contends for the job, works while it leads, and says so on its standard output, each
//! line with the time.
//!
//! Orders come on its standard input: `stop` ends the run, after which it stands by again; `step_down` hands over. `SIGTERM` is a
//! restart: the runner is closed and the process ends.

use std::{io::BufRead, process::ExitCode, sync::Arc, time::Duration};

use distributed_lock::{
    Backend,
    lease::{CancelReason, LeaseConfig, LeaseExit, LeaseRunner, Term},
};
use lock_postgres::{PostgresConfig, PostgresLocker};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::sleep,
};

use crate::{Failure, clock};

/// What makes this program a replica.
pub(crate) const ARGUMENT: &str = "replica";

pub(crate) const JOB: &str = "job";

/// The times that a mode measures with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) query_timeout: Duration,
}

impl Times {
    pub(crate) fn arguments(self) -> [String; 4] {
        [self.ttl, self.grace, self.heartbeat, self.query_timeout].map(|time| time.as_millis().to_string())
    }

    fn parse(arguments: &[String]) -> Option<Self> {
        let [ttl, grace, heartbeat, query_timeout] = arguments else { return None };
        let time = |text: &String| text.parse().ok().map(Duration::from_millis);
        Some(Self {
            ttl: time(ttl)?,
            grace: time(grace)?,
            heartbeat: time(heartbeat)?,
            query_timeout: time(query_timeout)?,
        })
    }
}

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let parsed = arguments.split_first().and_then(|(url, times)| Some((url, Times::parse(times)?)));
    let Some((url, times)) = parsed else {
        eprintln!("lease: a replica is started by the program itself");
        return ExitCode::from(2);
    };
    match run(url, times) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lease: replica: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(url: &str, times: Times) -> Result<(), Failure> {
    let config = PostgresConfig::from_url(url)
        .with_pool_size(2)
        .with_heartbeat_interval(times.heartbeat)
        .with_query_timeout(times.query_timeout);
    let locker = Arc::new(PostgresLocker::new(&config)?);
    let config = LeaseConfig::new()
        .with_ttl(times.ttl)
        .with_grace(times.grace)
        // After a loss it is to stand by again soon.
        .with_retry_interval(Duration::from_millis(100));
    let runner = LeaseRunner::new(Arc::clone(&locker) as _, config)?;
    let mut restart = signal(SignalKind::terminate())?;
    let mut orders = orders();
    let obey = async {
        loop {
            tokio::select! {
                _ = restart.recv() => return,
                order = orders.recv() => match order.as_deref() {
                    Some("stop") => _ = runner.stop(JOB),
                    Some("step_down") => _ = runner.step_down(JOB),
                    // Whoever gave the orders is gone.
                    _ => return,
                },
            }
        }
    };
    let contend = async {
        loop {
            match runner.run(JOB, work).await {
                Ok(LeaseExit::Stopped(_)) => {}
                other => return other,
            }
        }
    };
    let (ended, closed) = tokio::join!(contend, async {
        obey.await;
        runner.close().await
    });
    closed?;
    locker.close().await?;
    match ended? {
        LeaseExit::Closed(_) => Ok(()),
        other => Err(format!("the run ended by itself: {other:?}").into()),
    }
}

/// Works in small steps, each only while the lease is proven.
async fn work(term: Term) -> Result<(), Failure> {
    println!("leading {}", clock::now());
    let mut steps = Steps { last: clock::now(), deadline: clock::now(), lost: true };
    let cancelled = term.cancelled();
    tokio::pin!(cancelled);
    loop {
        tokio::select! {
            biased;
            reason = &mut cancelled => {
                steps.lost = matches!(reason, CancelReason::Lost(_));
                return Ok(());
            }
            () = sleep(Duration::from_millis(1)) => {
                let step = clock::now();
                if let (Ok(()), Some(remaining)) = (term.ensure_valid(), term.remaining()) {
                    steps.last = step;
                    steps.deadline = step + clock::nanos(remaining);
                }
            }
        }
    }
}

/// Says how the job ended. In its drop, since a job that wakes past its deadline is dropped without being polled again.
struct Steps {
    last: i64,
    /// What the job could rely on at its last step.
    deadline: i64,
    lost: bool,
}

impl Drop for Steps {
    fn drop(&mut self) {
        if self.lost {
            println!("lost {} {}", clock::now(), self.deadline);
        }
        println!("ended {} {}", clock::now(), self.last);
    }
}

/// Reads on a thread, since standard input cannot be waited for.
fn orders() -> mpsc::UnboundedReceiver<String> {
    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    orders
}
