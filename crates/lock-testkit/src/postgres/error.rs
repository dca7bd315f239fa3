//! Why there is no server.

use std::{fmt, io};

use super::installation::Missing;

/// A cluster could not be started.
#[derive(Debug)]
pub enum StartError {
    /// This machine has no server binaries. Tests turn this into an ignored case, or a failed one where a server is
    /// required.
    Missing(Missing),
    /// The binaries are there and did not do their work.
    Failed {
        /// What was attempted.
        action: &'static str,
        /// What came of it.
        source: io::Error,
        /// The end of the server's log.
        log: String,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(missing) => missing.fmt(f),
            Self::Failed { action, source, log } => {
                write!(f, "could not {action}: {source}")?;
                if log.is_empty() { Ok(()) } else { write!(f, "; the server's log ends with:\n{log}") }
            }
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Missing(missing) => Some(missing),
            Self::Failed { source, .. } => Some(source),
        }
    }
}

impl From<Missing> for StartError {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}
