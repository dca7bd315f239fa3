//! The lockers that a runner can stand on.

use std::{fmt, sync::Arc};

use distributed_lock::Locker;
use lock_postgres::PostgresConfig;

use super::Failure;

/// Which one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LockerKind {
    /// A connection for each lock and each waiter.
    Postgres,
    /// Many locks on a few sessions.
    Shared,
}

impl LockerKind {
    /// Those that this build has.
    pub const ALL: &'static [Self] = &[
        Self::Postgres,
        #[cfg(feature = "shared-session")]
        Self::Shared,
    ];

    /// As it is called in names of tests and in arguments.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Shared => "shared",
        }
    }

    /// The one of this name, if this build has it.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// One with these settings.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn open(self, config: &PostgresConfig) -> Result<Arc<dyn Locker>, Failure> {
        match self {
            Self::Postgres => Ok(Arc::new(lock_postgres::PostgresLocker::new(config)?)),
            #[cfg(feature = "shared-session")]
            Self::Shared => Ok(Arc::new(lock_postgres::PostgresSharedSession::new(config)?)),
            #[cfg(not(feature = "shared-session"))]
            Self::Shared => Err("this build has no shared session".into()),
        }
    }
}

impl fmt::Display for LockerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
