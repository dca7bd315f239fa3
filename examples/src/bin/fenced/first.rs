//! The worker that is frozen: a process of its own that is stopped as a whole, or in memory a task that is not woken.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::Failure;
use crate::place::Place;
use crate::worker;
use crate::world::Locks;

pub(crate) enum First {
    Process { child: Child, pid: Pid },
    Task { wake: Option<oneshot::Sender<()>>, task: JoinHandle<Result<(), Failure>> },
}

/// What it says, line by line, until it has ended.
pub(crate) type Lines = mpsc::UnboundedReceiver<String>;

impl First {
    /// `places` as arguments.
    pub(crate) async fn start(locks: &Locks, account: &str, places: &[String]) -> Result<(Self, Lines), Failure> {
        let (say, lines) = mpsc::unbounded_channel();
        let Some(url) = locks.url() else {
            let names: Vec<_> = places.iter().map(String::as_str).collect();
            let (locker, places) = (locks.locker()?, Place::all_from(&names).await?);
            let (wake, woken) = oneshot::channel();
            let account = account.to_owned();
            let task = tokio::spawn(async move {
                // Also completes when nobody is left to wake it.
                let thinking = async { woken.await.unwrap_or_default() };
                let say = |line| say.send(line).unwrap_or_default();
                worker::first(locker, &account, &places, thinking, say).await
            });
            return Ok((Self::Task { wake: Some(wake), task }, lines));
        };
        // The URL in the environment and not in the arguments, which everybody can see.
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", account]).args(places).env("DATABASE_URL", url);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let pid = id.and_then(Pid::from_raw).ok_or("it has ended already")?;
        let mut output = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = output.next_line().await {
                if say.send(line).is_err() {
                    return;
                }
            }
        });
        Ok((Self::Process { child, pid }, lines))
    }

    pub(crate) fn freeze(&self) -> Result<(), Failure> {
        match self {
            Self::Process { pid, .. } => Ok(kill_process(*pid, Signal::STOP)?),
            // It thinks, and nothing wakes it.
            Self::Task { .. } => Ok(()),
        }
    }

    /// It goes on exactly where it was, and knows nothing.
    pub(crate) async fn wake(&mut self) -> Result<(), Failure> {
        match self {
            Self::Process { child, pid } => {
                kill_process(*pid, Signal::CONT)?;
                let mut input = child.stdin.take().ok_or("no input")?;
                Ok(input.write_all(b"\n").await?)
            }
            Self::Task { wake, .. } => {
                drop(wake.take());
                Ok(())
            }
        }
    }

    pub(crate) async fn ended(self) -> Result<(), Failure> {
        match self {
            Self::Process { mut child, .. } => {
                let status = child.wait().await?;
                if status.success() { Ok(()) } else { Err(format!("the first worker ended with {status}").into()) }
            }
            Self::Task { task, .. } => task.await?,
        }
    }
}
