//! The shared session of another process.

use std::{process::Stdio, sync::Arc};

use distributed_lock::Backend;
use lock_postgres::PostgresSharedSession;
use lock_testkit::Detector;
use tokio::{process::Command, task::JoinSet};

use crate::Failure;

use super::{
    contender::{Contender, Time, Wait, Way},
    kind::Kind,
};

/// What makes the program such a process: its first argument.
pub(crate) const ARGUMENT: &str = "elsewhere";

/// Starts it, and gives what each of its tasks waited for.
pub(super) async fn run(url: String, tasks: usize, time: Time) -> Result<Vec<Vec<Wait>>, Failure> {
    let numbers = [tasks.to_string(), time.from.to_string(), time.until.to_string()];
    let process = Command::new(std::env::current_exe()?)
        .arg(ARGUMENT)
        .arg(url)
        .args(numbers)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let output = process.wait_with_output().await?;
    if !output.status.success() {
        return Err(format!("the other process ended with {}", output.status).into());
    }
    let mut waits = vec![Vec::new(); tasks];
    for line in String::from_utf8(output.stdout)?.lines() {
        let numbers: Vec<i64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [task, asked, granted] = numbers[..] else { return Err(format!("the other process said {line:?}").into()) };
        waits.get_mut(usize::try_from(task)?).ok_or("no such task")?.push(Wait { asked, granted });
    }
    Ok(waits)
}

/// Contends, then prints every wait with the number of its task.
#[tokio::main]
pub(crate) async fn run_as_process(arguments: &[String]) -> Result<(), Failure> {
    let [url, tasks, from, until] = arguments else { return Err("it is started by the program itself".into()) };
    let time = Time { from: from.parse()?, until: until.parse()? };
    let locker = Arc::new(PostgresSharedSession::from_url(url)?);
    let detector = Detector::in_postgres(&url.parse()?).await?;
    let mut contending = JoinSet::new();
    for task in 0..tasks.parse()? {
        let contender = Contender {
            name: Kind::SharedThere.nth(task),
            way: Way::Shared(Arc::clone(&locker)),
            detector: detector.clone(),
            time,
        };
        contending.spawn(async move { contender.run().await.map(|waits| (task, waits)) });
    }
    while let Some(ended) = contending.join_next().await {
        let (task, waits) = ended??;
        for Wait { asked, granted } in waits {
            println!("{task} {asked} {granted}");
        }
    }
    Ok(locker.close().await?)
}
