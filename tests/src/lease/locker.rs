//! The lockers that a runner can stand on.

use std::{fmt, sync::Arc, time::Duration};

use distributed_lock::{Bound, Locker, lease::LeaseGuarantees};
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresSharedSession};

use super::Failure;

/// What wakes a standby takes no longer.
const TOLD: Duration = Duration::from_millis(100);

/// Which one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LockerKind {
    /// A connection for each lock and each waiter.
    Postgres,
    /// Many locks on a few sessions.
    Shared,
}

impl LockerKind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Postgres, Self::Shared];

    /// As it is called in names of tests and in arguments.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Shared => "shared",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// How soon a runner of a test tries again. After a stop or a step-down others go first for twice as long, which is all that lets them
    /// where nobody queues: long enough for a busy machine to tell them.
    #[must_use]
    pub fn retry_interval(self) -> Duration {
        Duration::from_millis(match self {
            Self::Postgres => 100,
            Self::Shared => 500,
        })
    }

    /// What a runner promises, for standbys that can hear of a release and of the end of a session: the bounds of a shared session are
    /// those of one that hears nothing, which would hide that nobody was told. `ttl`: of its leases.
    #[must_use]
    pub fn heard(self, mut promised: LeaseGuarantees, ttl: Duration) -> LeaseGuarantees {
        if self == Self::Shared {
            promised.takeover_released = Bound::Within(TOLD);
            promised.takeover_killed = Bound::Within(TOLD);
            promised.takeover_frozen = Bound::Within(ttl + TOLD);
            promised.takeover_partitioned = Bound::Within(ttl + TOLD);
        }
        promised
    }

    /// One with these settings.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn open(self, config: &PostgresConfig) -> Result<Arc<dyn Locker>, Failure> {
        match self {
            Self::Postgres => Ok(Arc::new(PostgresLocker::new(config)?)),
            Self::Shared => Ok(Arc::new(PostgresSharedSession::new(config)?)),
        }
    }
}

impl fmt::Display for LockerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
