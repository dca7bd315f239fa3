//! What a held key costs in memory, as whoever runs the program pays for it: by how much the process grows, its share of the lanes and
//! whatever the allocator wastes included.
//!
//! Not by an allocator that counts: its counters, which all threads share, would slow down what the other modes measure. A process of its
//! own, since one that has freed memory takes it again without growing, and in waves, so that those who ask at the same time are not
//! taken for what is held.

use std::{
    process::{Command, Stdio},
    sync::Arc,
};

use distributed_lock::{LockGuard, LockerExt, Ttl};
use lock_postgres::PostgresSharedSession;
use tokio::task::JoinSet;

use crate::Failure;

/// What makes the program such a process: its first argument.
pub(crate) const ARGUMENT: &str = "memory";

/// Held before it counts, so that what the first lanes bring with them is there.
const BEFORE: usize = 2_048;
const COUNTED: usize = 10_000;
const WAVE: usize = 100;

/// In bytes.
pub(super) fn per_key(url: &str) -> Result<f64, Failure> {
    let output = Command::new(std::env::current_exe()?)
        .arg(ARGUMENT)
        .arg(url)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("the process that holds keys ended with {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse::<f64>()? / COUNTED as f64)
}

/// Prints by how many bytes it grew.
#[tokio::main]
pub(crate) async fn run_as_process(arguments: &[String]) -> Result<(), Failure> {
    let [url] = arguments else { return Err("it is started by the program itself".into()) };
    let locker = Arc::new(PostgresSharedSession::from_url(url)?);
    let mut guards = Vec::with_capacity(BEFORE + COUNTED);
    hold(&locker, BEFORE, &mut guards).await?;
    let before = anonymous()?;
    hold(&locker, BEFORE + COUNTED, &mut guards).await?;
    println!("{}", anonymous()?.saturating_sub(before));
    Ok(())
}

async fn hold(locker: &Arc<PostgresSharedSession>, count: usize, guards: &mut Vec<LockGuard>) -> Result<(), Failure> {
    while guards.len() < count {
        let mut wave = JoinSet::new();
        for number in guards.len()..count.min(guards.len() + WAVE) {
            let locker = Arc::clone(locker);
            wave.spawn(async move { locker.acquire(format!("memory:{number}"), Ttl::UNTIL_RELEASED).await });
        }
        while let Some(guard) = wave.join_next().await {
            guards.push(guard??);
        }
    }
    Ok(())
}

/// Bytes in memory that belong to no file.
fn anonymous() -> Result<u64, Failure> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).ok_or("no such line")?;
    Ok(line.trim().trim_end_matches("kB").trim_end().parse::<u64>()? * 1024)
}
