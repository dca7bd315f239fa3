//! One job, three replicas: one leads, the others stand by, and one of them takes over when the leader stops.
//!
//! ```sh
//! cargo run -p examples --bin singleton
//! DATABASE_URL=postgres://user@localhost/app cargo run -p examples --bin singleton
//! ```
//!
//! Prints what happens as it happens, and last how long the job had no leader and how long it had two. Exits 1 if nobody
//! takes over in ten seconds, or if two lead at once.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distributed_lock::{Hold, Locker, LockerExt, Ran};
use examples::{Event, Referee};
use tokio::sync::watch;

const JOB: &str = "nightly-report";

/// How long a leader that vanished keeps the others out.
const TTL: Duration = Duration::from_secs(10);

/// What the job gets to end in after it was told to.
const GRACE: Duration = Duration::from_secs(1);

/// How long the first leader works before it is stopped.
const TERM: Duration = Duration::from_millis(500);

const LIMIT: Duration = Duration::from_secs(10);

/// What each replica does, on a machine of its own in real life. It returns when it is stopped; after a loss it stands by again.
async fn replica(
    number: usize,
    locker: Arc<dyn Locker>,
    mut stop: watch::Receiver<bool>,
    referee: Arc<Referee>,
) -> distributed_lock::Result<()> {
    loop {
        referee.saw(number, Event::Standby);
        // Both arms are cancel safe: a wait that is dropped leaves nothing at the store.
        let mut guard = tokio::select! {
            guard = locker.acquire(JOB, TTL) => guard?,
            () = told(&mut stop) => {
                referee.saw(number, Event::Stopped);
                return Ok(());
            }
        };
        referee.saw(number, Event::Leading);
        // Renews the lock while the job runs. On a loss the job is told, gets its grace, and is dropped if that is not enough.
        let work = job(guard.hold(), stop.clone());
        let ran = guard.run(GRACE, work).await;
        referee.saw(number, Event::Stopped);
        match ran? {
            Ran::Lost { loss, .. } => eprintln!("replica {number}: {loss}"),
            // The job has ended, so now another replica may begin.
            Ran::Done(()) => return Ok(guard.release().await?.exclusive()?),
        }
    }
}

/// Does some work on each tick until it is told to end.
async fn job(hold: Hold, mut stop: watch::Receiver<bool>) {
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    loop {
        tokio::select! {
            () = told(&mut stop) => return,
            () = hold.cancelled() => return,
            _ = tick.tick() => {
                // Cheap and local, so it is asked before every side effect. A resource that can check a fencing token gets
                // `hold.fencing_token()` as well.
                if hold.ensure_valid().is_err() {
                    return;
                }
            }
        }
    }
}

/// Completes when the replica is to stop, also because whoever could say so is gone.
async fn told(stop: &mut watch::Receiver<bool>) {
    let _told_or_gone = stop.wait_for(|stop| *stop).await;
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let lockers = examples::lockers(3)?;
    for locker in &lockers {
        locker.ping().await?;
    }
    let referee = Arc::new(Referee::new());
    let mut replicas = Vec::new();
    for (number, locker) in lockers.iter().cloned().enumerate() {
        let (stop, stopped) = watch::channel(false);
        replicas.push((stop, tokio::spawn(replica(number, locker, stopped, Arc::clone(&referee)))));
    }

    let Some(first) = referee.leader(1, LIMIT).await else {
        eprintln!("nobody leads after {LIMIT:?}");
        return Ok(ExitCode::FAILURE);
    };
    tokio::time::sleep(TERM).await;
    replicas[first].0.send_replace(true);
    let Some(second) = referee.leader(2, LIMIT).await else {
        eprintln!("nobody took over in {LIMIT:?}");
        return Ok(ExitCode::FAILURE);
    };

    // The present leader goes last, so that nobody else takes over on the way out.
    replicas.swap(second, lockers.len() - 1);
    for (stop, task) in replicas {
        stop.send_replace(true);
        task.await??;
    }
    for locker in lockers {
        locker.close().await?;
    }
    match referee.verdict() {
        Some(verdict) => {
            println!("{verdict}");
            Ok(if verdict.overlap.is_zero() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        None => Ok(ExitCode::FAILURE),
    }
}
