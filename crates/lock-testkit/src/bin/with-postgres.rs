//! Runs a command with `DATABASE_URL` set to a fresh PostgreSQL server, which is gone afterwards.

use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use lock_testkit::postgres::{Cluster, StartError};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::timeout;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    arguments.next_if(|argument| argument == "--");
    let Some(program) = arguments.next() else {
        eprintln!("usage: with-postgres [--] COMMAND [ARGUMENT...]");
        eprintln!("Runs COMMAND with DATABASE_URL set to a fresh PostgreSQL server that is gone afterwards.");
        return ExitCode::from(USAGE);
    };
    // Signals are caught from here on, so that the server has ended before this process does.
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => return failure(&format!("could not listen for signals: {error}")),
    };
    let cluster = match tokio::task::spawn_blocking(Cluster::start).await {
        Ok(Ok(cluster)) => cluster,
        Ok(Err(StartError::Missing(missing))) => {
            eprintln!("with-postgres: {missing}");
            eprintln!("Install them, on Debian and Ubuntu with: apt-get install postgresql");
            eprintln!("Or name the folder that holds them: LOCK_TEST_PG_BIN=/folder/with/initdb");
            return ExitCode::from(MISSING);
        }
        Ok(Err(error)) => return failure(&error.to_string()),
        Err(error) => return failure(&error.to_string()),
    };
    run(program, arguments.collect(), &cluster.url(), &mut signals).await
}

async fn run(program: OsString, arguments: Vec<OsString>, url: &str, signals: &mut Signals) -> ExitCode {
    let mut command = Command::new(&program);
    command.args(arguments).env("DATABASE_URL", url);
    // On a terminal the command stays in the terminal's foreground group, and a Ctrl-C reaches it by itself. Elsewhere it
    // gets a group of its own, so that a signal can be passed on to all that it started.
    let is_interactive = std::io::stdin().is_terminal();
    if !is_interactive {
        command.process_group(0);
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("with-postgres: {}: {error}", program.to_string_lossy());
            return ExitCode::from(if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE });
        }
    };
    let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let signal = tokio::select! {
        status = child.wait() => return status.map_or(ExitCode::FAILURE, code_of),
        signal = signals.next() => signal,
    };
    let Some(group) = group else { return ExitCode::FAILURE };
    let send = |signal| if is_interactive { kill_process(group, signal) } else { kill_process_group(group, signal) };
    if !(is_interactive && signal == Signal::INT) {
        // It can have ended meanwhile.
        let _ = send(signal);
    }
    let status = end(&mut child, signals).await;
    if !is_interactive {
        // What the command started and left behind ends with it.
        let _ = send(Signal::KILL);
    }
    status.map_or(ExitCode::FAILURE, code_of)
}

/// Waits for the command after a signal was passed on; a second signal or too long a wait kills it.
async fn end(child: &mut Child, signals: &mut Signals) -> std::io::Result<ExitStatus> {
    tokio::select! {
        ended = timeout(PATIENCE, child.wait()) => if let Ok(status) = ended { return status },
        _ = signals.next() => {}
    }
    child.kill().await?;
    child.wait().await
}

/// As a shell reports it: 128 and the number for an end by a signal.
fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn failure(reason: &str) -> ExitCode {
    eprintln!("with-postgres: {reason}");
    ExitCode::FAILURE
}

struct Signals {
    hangup: unix::Signal,
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            hangup: unix::signal(SignalKind::hangup())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
        })
    }

    /// The next signal, also one that came before the call.
    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.hangup.recv() => Signal::HUP,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
        }
    }
}

const USAGE: u8 = 2;
const MISSING: u8 = 4;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
const PATIENCE: Duration = Duration::from_secs(10);
