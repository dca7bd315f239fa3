//! Where the password comes from if it is not in the connection string. It is asked for before each attempt at a server, so that
//! one that was changed, or that expires, needs no restart.

use std::{
    error::Error as StdError,
    fmt,
    fs::{self, File},
    future::Future,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use distributed_lock::{Error, ErrorKind};
use tokio::task::spawn_blocking;
use tokio_util::task::AbortOnDropHandle;

/// More than the server accepts.
const LONGEST: usize = 64 * 1024;

type BoxError = Box<dyn StdError + Send + Sync>;

type Asked = Pin<Box<dyn Future<Output = Result<String, BoxError>> + Send>>;

/// What gives the password. Shown without it.
#[derive(Clone)]
pub(crate) enum PasswordSource {
    File(PasswordFile),
    Callback(PasswordCallback),
}

#[derive(Clone)]
pub(crate) struct PasswordFile {
    path: PathBuf,
    /// Once for all connections: a pool opens many.
    warned: Arc<AtomicBool>,
}

#[derive(Clone)]
pub(crate) struct PasswordCallback(Arc<dyn Fn() -> Asked + Send + Sync>);

/// Why there is no password. Has nothing of what was read or given.
#[derive(Debug)]
pub(super) struct PasswordError {
    source: String,
    fault: Fault,
}

#[derive(Debug)]
pub(super) enum Fault {
    Callback(BoxError),
    Empty,
    NotAFile,
    Nul,
    Panicked,
    Read(io::Error),
    Runtime,
    TooLong,
    WritableByAll,
}

impl PasswordSource {
    /// As in a configuration.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::File(_) => "password_file",
            Self::Callback(_) => "password_callback",
        }
    }

    /// The password of now. Cancel safe: a callback is dropped with this.
    pub(super) async fn fetch(&self) -> Result<Vec<u8>, PasswordError> {
        let given = match self {
            Self::File(file) => file.read().await,
            Self::Callback(callback) => callback.ask().await,
        };
        given.and_then(usable).map_err(|fault| PasswordError { source: self.to_string(), fault })
    }
}

impl fmt::Display for PasswordSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "password_file {:?}", file.path),
            Self::Callback(_) => f.write_str("password_callback"),
        }
    }
}

impl fmt::Debug for PasswordSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PasswordFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, warned: Arc::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    async fn read(&self) -> Result<Vec<u8>, Fault> {
        let file = self.clone();
        // A file system can hang: the caller's time goes on.
        spawn_blocking(move || file.read_blocking()).await.map_err(|_ended| Fault::Runtime)?
    }

    pub(super) fn read_blocking(&self) -> Result<Vec<u8>, Fault> {
        // Before it is opened, which for a pipe can take for ever.
        if !fs::metadata(&self.path).map_err(Fault::Read)?.is_file() {
            return Err(Fault::NotAFile);
        }
        let file = File::open(&self.path).map_err(Fault::Read)?;
        self.check_mode(file.metadata().map_err(Fault::Read)?.permissions().mode())?;
        let mut password = Vec::new();
        file.take(LONGEST as u64 + 3).read_to_end(&mut password).map_err(Fault::Read)?;
        // Editors put one there, as does `echo`.
        let newline = if password.ends_with(b"\r\n") { 2 } else { usize::from(password.ends_with(b"\n")) };
        password.truncate(password.len() - newline);
        Ok(password)
    }

    /// What others can write is refused, since no set-up needs that. What others can read is only warned of: containers have their
    /// secrets mounted with such modes, chosen by the platform, where no other user is.
    fn check_mode(&self, mode: u32) -> Result<(), Fault> {
        if mode & 0o002 != 0 {
            return Err(Fault::WritableByAll);
        }
        if mode & 0o077 != 0 && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                path = ?self.path,
                mode = format_args!("{:o}", mode & 0o777),
                "others than its owner can read the password file, or its group can change it: chmod 600 it, \
                 unless a container's platform mounts it so"
            );
        }
        Ok(())
    }
}

impl PasswordCallback {
    pub(crate) fn new<F, A, E>(callback: F) -> Self
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<String, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let callback = Arc::new(callback);
        Self(Arc::new(move || {
            let callback = Arc::clone(&callback);
            Box::pin(async move { callback().await.map_err(Into::into) })
        }))
    }

    /// In a task of its own: its panic ends there, and where there are more threads our time goes on while it blocks.
    async fn ask(&self) -> Result<Vec<u8>, Fault> {
        let asked = AbortOnDropHandle::new(tokio::spawn((self.0)()));
        match asked.await {
            Ok(answer) => answer.map(String::into_bytes).map_err(Fault::Callback),
            // Not as the source: it repeats what the panic said.
            Err(ended) if ended.is_panic() => Err(Fault::Panicked),
            Err(_cancelled) => Err(Fault::Runtime),
        }
    }
}

fn usable(password: Vec<u8>) -> Result<Vec<u8>, Fault> {
    match &password[..] {
        [] => Err(Fault::Empty),
        long if long.len() > LONGEST => Err(Fault::TooLong),
        bytes if bytes.contains(&0) => Err(Fault::Nul),
        _ => Ok(password),
    }
}

impl PasswordError {
    /// A file in a state that only its owner can change is `Misconfigured`. A callback's error is `Unavailable`, unless it is of our
    /// own type and `Denied`.
    pub(super) fn kind(&self) -> ErrorKind {
        match &self.fault {
            Fault::Callback(error) => match error.downcast_ref::<Error>().map(Error::kind) {
                Some(ErrorKind::Denied) => ErrorKind::Denied,
                _ => ErrorKind::Unavailable,
            },
            Fault::Read(error) => match error.kind() {
                io::ErrorKind::NotFound
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::NotADirectory => ErrorKind::Misconfigured,
                _ => ErrorKind::Unavailable,
            },
            Fault::Panicked | Fault::Runtime => ErrorKind::Unavailable,
            Fault::Empty | Fault::NotAFile | Fault::Nul | Fault::TooLong | Fault::WritableByAll => {
                ErrorKind::Misconfigured
            }
        }
    }

    /// What caused it.
    pub(super) fn into_cause(self) -> Option<BoxError> {
        match self.fault {
            Fault::Callback(error) => Some(error),
            Fault::Read(error) => Some(error.into()),
            _ => None,
        }
    }

    pub(super) fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.fault {
            Fault::Callback(error) => Some(&**error),
            Fault::Read(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for PasswordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let says = match &self.fault {
            Fault::Callback(_) => "failed; the source says why",
            Fault::Empty => "gave an empty password; it must give the whole of it at once, a file by a rename",
            Fault::NotAFile => "is not a regular file, which could be read again at each connect",
            Fault::Nul => "gave a password with a NUL byte, which the server cannot have",
            Fault::Panicked => "panicked; the panic's own message says where",
            Fault::Read(error) => match error.kind() {
                io::ErrorKind::NotFound => "is not there; check the path",
                io::ErrorKind::PermissionDenied => "may not be read by this process; check its owner and mode",
                _ => "could not be read; the source says why",
            },
            Fault::Runtime => "was not asked to the end, since the runtime ended",
            Fault::TooLong => "gave more than 64 KiB, which the server takes for no password",
            Fault::WritableByAll => "can be written by everybody; take that right away (chmod o-w)",
        };
        write!(f, "{} {says}", self.source)
    }
}
