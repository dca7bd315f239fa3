//! Throw-away Redis servers from the program installed on this machine: what our figures are compared with.

use std::{
    env, fmt, fs,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    supervisor::{Script, Supervisor},
    user::User,
    wait::wait_until_blocking,
};

/// A Redis server of its own, without persistence, in a folder of its own under the folder for temporary files, reachable through a
/// unix socket alone.
///
/// Dropping it ends the server and removes the folder. Both also go away, a moment later, when this process ends in any other way,
/// SIGKILL included.
#[derive(Debug)]
pub struct Redis {
    supervisor: Supervisor,
    pid: u32,
}

/// There is no server.
#[derive(Debug)]
pub enum StartError {
    /// `redis-server` is not installed. Tests turn this into an ignored case, or a failed one where a server is required.
    Missing {
        /// The folders that were searched.
        looked_in: Vec<PathBuf>,
    },
    /// It is, and did not start.
    Failed {
        /// Why.
        source: io::Error,
        /// What it logged.
        log: String,
    },
}

impl Redis {
    /// Starts one. Blocks the thread for a moment.
    ///
    /// # Errors
    /// If it is not installed, or does not start.
    pub fn start() -> Result<Self, StartError> {
        let bin = find()?;
        let failed = |source| StartError::Failed { source, log: String::new() };
        let user = User::unprivileged().map_err(failed)?;
        let mut supervisor = Supervisor::start(SCRIPT, &bin, user).map_err(failed)?;
        let pid = supervisor.reply().and_then(|pid| pid.parse().map_err(io::Error::other)).map_err(failed)?;
        let redis = Self { supervisor, pid };
        let answers = wait_until_blocking(START_DEADLINE, "the server answers", || redis.answers());
        answers.map_err(|timed_out| StartError::Failed {
            source: io::Error::new(io::ErrorKind::TimedOut, timed_out),
            log: fs::read_to_string(redis.folder().join("log")).unwrap_or_default(),
        })?;
        Ok(redis)
    }

    /// For clients that know the scheme `redis+unix`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// The unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder().join("socket")
    }

    /// The process id of the server.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn folder(&self) -> &Path {
        self.supervisor.root()
    }

    fn answers(&self) -> bool {
        let ask = || -> io::Result<bool> {
            let mut stream = UnixStream::connect(self.socket())?;
            stream.set_read_timeout(Some(START_DEADLINE))?;
            stream.write_all(b"PING\r\n")?;
            let mut answer = [0; PONG.len()];
            stream.read_exact(&mut answer)?;
            Ok(answer == *PONG)
        };
        ask().unwrap_or(false)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { looked_in } => {
                let folders: Vec<_> = looked_in.iter().map(|folder| folder.display().to_string()).collect();
                write!(f, "no Redis server (redis-server); looked in {}", folders.join(", "))
            }
            Self::Failed { source, log } => {
                write!(f, "could not start Redis: {source}")?;
                if log.is_empty() { Ok(()) } else { write!(f, "; its log:\n{log}") }
            }
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Missing { .. } => None,
            Self::Failed { source, .. } => Some(source),
        }
    }
}

/// The folder of the program: in `PATH`, or where Debian puts it, which is not in everybody's.
fn find() -> Result<PathBuf, StartError> {
    let path = env::var_os("PATH").unwrap_or_default();
    let looked_in: Vec<_> =
        env::split_paths(&path).chain(["/usr/bin".into()]).filter(|path| path.is_absolute()).collect();
    let found = looked_in.iter().find(|folder| folder.join("redis-server").is_file()).cloned();
    found.ok_or(StartError::Missing { looked_in })
}

const SCRIPT: Script = Script { prefix: "lockredis", text: include_str!("redis/supervisor.sh") };
const START_DEADLINE: Duration = Duration::from_secs(20);
const PONG: &[u8; 7] = b"+PONG\r\n";
