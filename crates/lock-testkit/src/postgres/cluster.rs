//! One running server.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use std::{fmt, fs, hash};

use hash::{BuildHasher, RandomState};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::{Client, Config};

use super::builder::Builder;
use super::error::StartError;
use super::installation::Installation;
use crate::session;
use crate::supervisor::{Script, Supervisor};
use crate::user::User;
use crate::wait::wait_until_blocking;

/// A PostgreSQL server of its own, in a folder of its own under the folder for temporary files, reachable through
/// 127.0.0.1 and a unix socket. The superuser is `postgres`.
///
/// Dropping it stops the server and removes the folder. Both also go away, a moment later, when this process ends in any
/// other way, SIGKILL included.
///
/// Methods that start or stop block the thread: on a current-thread runtime they hold up everything else that runs there.
pub struct Cluster {
    installation: Installation,
    options: Builder,
    password: Option<String>,
    port: u16,
    root: PathBuf,
    user: Option<User>,
    server: Mutex<Server>,
    databases: AtomicU32,
}

struct Server {
    supervisor: Supervisor,
    pid: Option<u32>,
}

impl Cluster {
    /// Starts a cluster with default options.
    pub fn start() -> Result<Self, StartError> {
        Self::builder().start()
    }

    /// For a cluster with options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The cluster with default options that the tests of this process share, each in a database of its own: see
    /// [`Self::create_database`]. It stops with the process.
    pub fn shared() -> Result<&'static Self, &'static StartError> {
        static SHARED: OnceLock<Result<Cluster, StartError>> = OnceLock::new();
        SHARED.get_or_init(Self::start).as_ref()
    }

    /// A URL of the superuser in the database `postgres`, over TCP.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_for("postgres", "postgres")
    }

    /// A URL over TCP. It has a password if the cluster asks for one and the user is the superuser.
    #[must_use]
    pub fn url_for(&self, user: &str, database: &str) -> String {
        let password = self.password_of(user).map(|password| format!(":{password}")).unwrap_or_default();
        let (user, database) = (percent_encode(user), percent_encode(database));
        format!("postgres://{user}{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// The password of the superuser, if the cluster asks for one.
    #[must_use]
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// The folder of the unix socket.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        &self.root
    }

    /// The port on 127.0.0.1, which is also in the name of the unix socket. It stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of the binaries this server was started from.
    #[must_use]
    pub fn bin_dir(&self) -> &Path {
        self.installation.bin_dir()
    }

    /// Such as 15.
    #[must_use]
    pub fn major_version(&self) -> u32 {
        self.installation.major_version()
    }

    /// The process id of the postmaster, `None` while the server is stopped.
    #[must_use]
    pub fn postmaster_pid(&self) -> Option<u32> {
        self.server().pid
    }

    /// What the server has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.root.join("log")).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    /// Connection settings of the superuser over the unix socket. The application name tells the kit's own sessions from
    /// those of what is tested: see [`crate::Observer`].
    #[must_use]
    pub fn admin_config(&self, database: &str) -> Config {
        let mut config = Config::new();
        config.host_path(&self.root).port(self.port).user("postgres").dbname(database);
        if let Some(password) = &self.password {
            config.password(password);
        }
        config.application_name(session::APPLICATION_NAME);
        config
    }

    /// A session of the superuser in the database `postgres`.
    pub async fn admin(&self) -> Result<Client, tokio_postgres::Error> {
        session::connect(&self.admin_config("postgres")).await
    }

    /// Makes an empty database with a name that is new on this server, and returns the name.
    pub async fn create_database(&self) -> Result<String, tokio_postgres::Error> {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.admin().await?.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        Ok(name)
    }

    /// A hot standby that replicates from this server, started with the same settings.
    pub fn standby(&self) -> Result<Self, StartError> {
        let password = self.password.as_ref().map(|password| format!(" password={password}")).unwrap_or_default();
        let source = format!("host={} port={} user=postgres{password}", quoted(&self.root), self.port);
        Self::build(self.installation.clone(), self.options.clone(), self.password.clone(), &format!("clone {source}"))
    }

    /// Stops the server in an orderly way: sessions are ended, data is written.
    pub fn stop(&self) -> io::Result<()> {
        self.server().stop("INT")
    }

    /// Stops the server as a crash would: sessions are cut without a word, recovery runs at the next start.
    pub fn stop_immediate(&self) -> io::Result<()> {
        self.server().stop("QUIT")
    }

    /// Starts the server again, after stopping it if it runs.
    pub fn restart(&self) -> io::Result<()> {
        let mut server = self.server();
        server.stop("INT")?;
        server.start(self.port)
    }

    /// Like [`Self::restart`], with an immediate stop.
    pub fn restart_immediate(&self) -> io::Result<()> {
        let mut server = self.server();
        server.stop("QUIT")?;
        server.start(self.port)
    }

    /// Ends one process of the server with SIGKILL, after which the server ends all sessions, recovers and goes on. `false` if it has no
    /// such process, so that nothing else is ever hit.
    pub fn kill_backend(&self, pid: i32) -> io::Result<bool> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // After the name in parentheses: the state, and the parent.
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        let Some(backend) = Pid::from_raw(pid).filter(|_| parent.is_some() && parent == self.postmaster_pid()) else {
            return Ok(false);
        };
        match kill_process(backend, Signal::KILL) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn create(installation: Installation, options: Builder) -> Result<Self, StartError> {
        let password = options.new_password();
        let order = format!("init {}", options.method());
        Self::build(installation, options, password, &order)
    }

    /// Makes the data folder by that order to the supervisor and starts the server on a free port.
    fn build(
        installation: Installation,
        options: Builder,
        password: Option<String>,
        order: &str,
    ) -> Result<Self, StartError> {
        let failed = |action, source| StartError::Failed { action, source, log: String::new() };
        let user = User::unprivileged().map_err(|error| failed("find a user to run PostgreSQL as", error))?;
        let supervisor = Supervisor::start(SCRIPT, installation.bin_dir(), user)
            .map_err(|error| failed("start the server's supervisor", error))?;
        let root = supervisor.root().to_owned();
        let server = Mutex::new(Server { supervisor, pid: None });
        let databases = AtomicU32::new(0);
        let mut cluster = Self { installation, options, password, port: 0, root, user, server, databases };
        cluster.populate(order).map_err(|error| cluster.failed("make the data folder", error))?;
        cluster.start_on_free_port().map_err(|error| cluster.failed("start the server", error))?;
        Ok(cluster)
    }

    fn populate(&self, order: &str) -> io::Result<()> {
        if let Some(password) = &self.password {
            self.write("password", password.as_bytes())?;
        }
        for (name, contents) in self.options.tls_files()? {
            self.write(name, &contents)?;
        }
        let status = self.server().supervisor.order(order)?;
        if status != "0" {
            return Err(io::Error::other(format!("exit status {status}")));
        }
        let data = self.root.join("data");
        fs::write(data.join("pg_hba.conf"), self.options.access_rules())?;
        let mut configuration = fs::OpenOptions::new().append(true).open(data.join("postgresql.conf"))?;
        configuration.write_all(self.options.configuration(&self.root).as_bytes())
    }

    /// Writes a file that the server's user owns and nobody else can read.
    fn write(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        let path = self.root.join(name);
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?.write_all(contents)?;
        self.user.map_or(Ok(()), |user| std::os::unix::fs::chown(&path, Some(user.uid), Some(user.gid)))
    }

    fn start_on_free_port(&mut self) -> io::Result<()> {
        // Another process can take the port before the server does, hence the repeats.
        let mut attempts = 10;
        loop {
            self.port = free_port()?;
            let seen = self.log().len();
            let started = self.server().start(self.port);
            attempts -= 1;
            let port_was_taken = started.is_err() && self.log()[seen..].contains("could not bind");
            if !port_was_taken || attempts == 0 {
                return started;
            }
        }
    }

    fn password_of(&self, user: &str) -> Option<&str> {
        self.password().filter(|_| user == "postgres")
    }

    fn failed(&self, action: &'static str, source: io::Error) -> StartError {
        let log = self.log();
        let lines: Vec<_> = log.lines().rev().take(15).collect();
        StartError::Failed { action, source, log: lines.into_iter().rev().collect::<Vec<_>>().join("\n") }
    }

    /// Not held across an await: nothing that takes it is async.
    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("root", &self.root).field("port", &self.port).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts the server and waits until it takes sessions.
    fn start(&mut self, port: u16) -> io::Result<()> {
        let pid = self.supervisor.order(&format!("start {port}"))?;
        self.pid = Some(pid.parse().map_err(io::Error::other)?);
        let status = self.supervisor.root().join("data/postmaster.pid");
        let is_ready = || {
            let status = fs::read_to_string(&status).unwrap_or_default();
            let lines: Vec<_> = status.lines().map(str::trim_end).collect();
            lines.first() == Some(&pid.as_str()) && lines.get(7) == Some(&"ready")
        };
        let mut ready = false;
        let waited = wait_until_blocking(START_DEADLINE, "the server takes sessions", || {
            ready = is_ready();
            ready || has_ended(&pid)
        });
        if ready {
            return Ok(());
        }
        self.stop("QUIT")?;
        match waited {
            Ok(()) => Err(io::Error::other("it ended at once")),
            Err(timed_out) => Err(io::Error::new(io::ErrorKind::TimedOut, timed_out)),
        }
    }

    fn stop(&mut self, signal: &str) -> io::Result<()> {
        if self.pid.take().is_some() {
            self.supervisor.order(&format!("stop {signal}"))?;
        }
        Ok(())
    }
}

/// Whether the supervisor's child has ended, as far as this system tells. Its entry stays until the supervisor collects it.
fn has_ended(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('Z'))
}

/// A port outside the range that systems pick from for outgoing connections, so that it stays free during a restart.
fn free_port() -> io::Result<u16> {
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let candidates = (0..1000_u16).map(|n| 15_000 + (RandomState::new().hash_one(n) % 15_000) as u16);
    candidates.into_iter().find(is_free).ok_or_else(|| io::Error::other("no port from 15000 to 29999 is free"))
}

fn percent_encode(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// A value in a connection string of keywords and values.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\\', "\\\\").replace('\'', "\\'"))
}

const SCRIPT: Script = Script { prefix: "lockpg", text: include_str!("supervisor.sh") };
const START_DEADLINE: Duration = Duration::from_secs(60);
