//! The shell process that owns a server and its folder.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::user::User;

/// What a supervisor runs for one kind of server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    /// Of the names of its folders.
    pub(crate) prefix: &'static str,
    /// For the shell. It finds its folder and the server's programs in the environment, makes the first, and answers `ready`.
    pub(crate) text: &'static str,
}

/// Starts, stops and cleans up one server. Its end of life is the end of the pipe: nothing outlives this process.
#[derive(Debug)]
pub(crate) struct Supervisor {
    child: Child,
    /// Closed first on drop. Rust opens it close-on-exec, so no other child process can hold it open.
    orders: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    root: PathBuf,
}

impl Supervisor {
    /// Starts a supervisor that has made a folder of its own.
    pub(crate) fn start(script: Script, bin: &Path, user: Option<User>) -> io::Result<Self> {
        let base = base_folder(user)?;
        loop {
            let name = format!("{}-{}-{}", script.prefix, std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let mut supervisor = Self::spawn(script, bin, user, base.join(name))?;
            // A folder of that name can be left from a machine crash and a process that had our id.
            match supervisor.reply()?.as_str() {
                "ready" => return Ok(supervisor),
                "taken" => {}
                other => return Err(io::Error::other(format!("the supervisor answered {other:?}"))),
            }
        }
    }

    /// Sends one order and waits for its answer.
    pub(crate) fn order(&mut self, order: &str) -> io::Result<String> {
        if order.contains('\n') {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an order is one line"));
        }
        let orders = self.orders.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(orders, "{order}")?;
        self.reply()
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn spawn(script: Script, bin: &Path, user: Option<User>, root: PathBuf) -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", script.text, "lock-testkit"])
            .env("LOCK_TESTKIT_ROOT", &root)
            .env("LOCK_TESTKIT_BIN", bin)
            .current_dir("/")
            // A Ctrl-C in the terminal is for the test; the supervisor has to outlive it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        // Settings of the caller's client programs, such as PGPORT and PGOPTIONS, are not ours.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("PG")) {
                command.env_remove(name);
            }
        }
        if let Some(user) = user {
            command.uid(user.uid).gid(user.gid);
        }
        let mut child = command.spawn()?;
        let orders = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        Ok(Self { child, orders, replies, root })
    }

    /// The next line it says.
    pub(crate) fn reply(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the supervisor has ended"));
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        drop(self.orders.take());
        // Waits until the server has ended and the folder is gone. There is nobody to tell of a failure here.
        let _ = self.child.wait();
    }
}

/// A folder with a short path (a socket path must fit in about 107 bytes) in which that user may make folders.
fn base_folder(user: Option<User>) -> io::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let open_to_all = |path: &Path| path.metadata().is_ok_and(|folder| folder.permissions().mode() & 0o003 == 0o003);
    [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into()]
        .into_iter()
        .find(|path| path.as_os_str().len() <= 60 && path.is_dir() && (user.is_none() || open_to_all(path)))
        .ok_or_else(|| io::Error::other("no folder for temporary files has a short path and is open to all users"))
}

static NEXT: AtomicU32 = AtomicU32::new(0);
