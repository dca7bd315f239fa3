use std::{borrow::Cow, fmt, time::Duration};

/// A promised upper bound.
///
/// ```
/// use std::time::Duration;
/// use distributed_lock::Bound;
///
/// assert_eq!(Bound::Within(Duration::from_millis(100)).to_string(), "<= 100ms");
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bound {
    /// Never later than this.
    Within(Duration),
    /// No promise.
    Unbounded,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Within(limit) => write!(f, "<= {limit:?}"),
            Self::Unbounded => f.write_str("unbounded"),
        }
    }
}

/// How long something of ours can stay in the store after its future or guard is gone.
///
/// ```
/// use std::time::Duration;
/// use distributed_lock::{Bound, Cleanup};
///
/// let mut cleanup = Cleanup::NONE;
/// cleanup.live = Bound::Within(Duration::from_millis(100));
/// assert_eq!(cleanup.cut_holder, Bound::Unbounded);
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Cleanup {
    /// After a drop in a process that lives and reaches the store.
    pub live: Bound,
    /// After a waiter was frozen or cut off, counted from the moment the key could have been granted to it.
    pub cut_waiter: Bound,
    /// After a holder was frozen or cut off.
    pub cut_holder: Bound,
}

impl Cleanup {
    /// No promise at all; fill the public fields.
    pub const NONE: Self = Self { live: Bound::Unbounded, cut_waiter: Bound::Unbounded, cut_holder: Bound::Unbounded };
}

/// Which store a locker talks to. Locks of different worlds do not exclude each other.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub struct World {
    /// What identifies the server.
    pub server: String,
    /// The database or key space in it.
    pub database: String,
}

impl World {
    /// The world of this server and database.
    ///
    /// ```
    /// use distributed_lock::World;
    ///
    /// assert_eq!(World::new("7001", "shop").to_string(), r#"server 7001, database "shop""#);
    /// ```
    pub fn new(server: impl Into<String>, database: impl Into<String>) -> Self {
        Self { server: server.into(), database: database.into() }
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {}, database {:?}", self.server, self.database)
    }
}

/// What a locker promises in numbers, computed from its live settings for its default TTL. Kinds are in
/// [`Capabilities`](crate::Capabilities).
///
/// ```
/// use distributed_lock::{Backend, MemoryLocker};
///
/// println!("{}", MemoryLocker::new().guarantees());
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Guarantees {
    /// The default TTL that the numbers are for: a bound that is not less than it is as much more for a longer one. `None` where none of
    /// them depends on it.
    pub ttl: Option<Duration>,
    /// Loss until the holder is told, while its process runs.
    pub detection: Bound,
    /// Longest time an old and a new holder can both work.
    pub overlap: Bound,
    /// What stays in the store after a drop, and for how long.
    pub cleanup: Cleanup,
    /// Takeover by a waiter after a release.
    pub takeover_released: Bound,
    /// Takeover by a waiter after the holder's process was killed.
    pub takeover_killed: Bound,
    /// Takeover by a waiter after the holder froze or was suspended.
    pub takeover_frozen: Bound,
    /// Takeover by a waiter after the holder was cut off.
    pub takeover_partitioned: Bound,
    /// Which store this is; `None` before the first contact, and where the store has no identity.
    pub world: Option<World>,
    /// What the numbers do not say.
    pub notes: Vec<Cow<'static, str>>,
}

impl Guarantees {
    /// No promise at all; fill the public fields.
    pub const NONE: Self = Self {
        ttl: None,
        detection: Bound::Unbounded,
        overlap: Bound::Unbounded,
        cleanup: Cleanup::NONE,
        takeover_released: Bound::Unbounded,
        takeover_killed: Bound::Unbounded,
        takeover_frozen: Bound::Unbounded,
        takeover_partitioned: Bound::Unbounded,
        world: None,
        notes: Vec::new(),
    };
}

/// One line, fit for a start-up log.
impl fmt::Display for Guarantees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cleanup { live, cut_waiter, cut_holder } = self.cleanup;
        write!(f, "detection {}, overlap {}, ", self.detection, self.overlap)?;
        write!(f, "cleanup: live {live}, cut waiter {cut_waiter}, cut holder {cut_holder}, ")?;
        write!(f, "takeover: released {}, killed {}, ", self.takeover_released, self.takeover_killed)?;
        write!(f, "frozen {}, partitioned {}", self.takeover_frozen, self.takeover_partitioned)?;
        if let Some(world) = &self.world {
            write!(f, ", {world}")?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "; {note}"))
    }
}
