//! The processes that take the key.

use std::{path::Path, process::Stdio};

use tests::lease::AMPLE;
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use crate::Failure;

use super::worker::{ARGUMENT, INTRUDER};

/// Dropped, it kills them.
#[derive(Debug)]
pub(super) struct Fleet {
    /// Of each: server, witness, seed.
    arguments: [String; 3],
    processes: Vec<Child>,
    /// Were started, all told.
    started: usize,
}

impl Fleet {
    pub(super) fn start(count: usize, url: &str, witness: &Path, seed: u64) -> Result<Self, Failure> {
        let arguments = [url.to_owned(), witness.display().to_string(), seed.to_string()];
        let mut fleet = Self { arguments, processes: Vec::new(), started: 0 };
        for _ in 0..count {
            let process = fleet.spawn(&[])?;
            fleet.processes.push(process);
        }
        Ok(fleet)
    }

    pub(super) fn add_intruder(&mut self) -> Result<(), Failure> {
        let process = self.spawn(&[INTRUDER])?;
        self.processes.push(process);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.processes.len()
    }

    /// Kills one and starts another in its place.
    pub(super) async fn replace(&mut self, nth: usize) -> Result<(), Failure> {
        let process = self.processes.get_mut(nth).ok_or("no such process")?;
        // Waits for its end.
        process.kill().await?;
        self.processes[nth] = self.spawn(&[])?;
        Ok(())
    }

    /// An error if one of them ended by itself.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        for process in &mut self.processes {
            if let Some(status) = process.try_wait()? {
                return Err(format!("a process ended with {status}").into());
            }
        }
        Ok(())
    }

    pub(super) async fn stop(mut self) -> Result<(), Failure> {
        for process in &mut self.processes {
            drop(process.stdin.take());
        }
        for mut process in self.processes {
            let status = timeout(AMPLE, process.wait()).await.map_err(|_elapsed| "a process does not end")??;
            if !status.success() {
                return Err(format!("a process ended with {status}").into());
            }
        }
        Ok(())
    }

    fn spawn(&mut self, kind: &[&str]) -> Result<Child, Failure> {
        let number = self.started;
        self.started += 1;
        let mut program = Command::new(std::env::current_exe()?);
        program.arg(ARGUMENT).args(&self.arguments).arg(number.to_string()).args(kind);
        Ok(program.stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true).spawn()?)
    }
}
