//! The two-holder detector: an independent judge of mutual exclusion.
//!
//! A test enters right after it has acquired a lock and leaves right before it releases it. Who enters where somebody
//! is inside has found two holders at once. The judge shares nothing with the lock it judges.

mod store;

use std::fmt;
use std::sync::Arc;

use tokio_postgres::Config;

use store::{Memory, Postgres};

/// Watches that no two owners are inside for the same key. Clones watch together.
#[derive(Clone, Debug)]
pub struct Detector(Store);

#[derive(Clone, Debug)]
enum Store {
    Memory(Arc<Memory>),
    Postgres(Postgres),
}

/// The owner is inside until this is left or dropped.
#[derive(Debug)]
#[must_use = "dropping it leaves"]
pub struct Inside {
    detector: Detector,
    key: String,
    owner: String,
    has_left: bool,
}

/// Two holders at once: mutual exclusion was violated.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TwoHolders {
    /// For which key.
    pub key: String,
    /// Who was inside. `None` if they left before they could be asked for.
    pub inside: Option<String>,
    /// Who entered.
    pub entered: String,
}

/// Why nobody entered or left.
#[derive(Debug)]
#[non_exhaustive]
pub enum DetectorError {
    /// The database could not be asked: the detector saw nothing, so its silence proves nothing.
    Blind(Box<dyn std::error::Error + Send + Sync>),
    /// The owner who leaves was not inside any more: somebody else has removed them.
    NotInside {
        /// For which key.
        key: String,
        /// Who wanted to leave.
        owner: String,
    },
    /// The failure that this is all about.
    TwoHolders(TwoHolders),
}

impl Detector {
    /// A detector within this process.
    #[must_use]
    pub fn in_memory() -> Self {
        Self(Store::Memory(Arc::default()))
    }

    /// A detector across processes, in a table of that database. It makes the table if there is none.
    ///
    /// It has one session, in a task of the current runtime, which has to run as long as the detector is used.
    pub async fn in_postgres(config: &Config) -> Result<Self, DetectorError> {
        Ok(Self(Store::Postgres(Postgres::connect(config).await.map_err(DetectorError::Blind)?)))
    }

    /// Enters. If somebody is inside for the same key, it counts and returns [`DetectorError::TwoHolders`]. The owner's name
    /// has to be nobody else's.
    ///
    /// # Cancel safety
    /// Cancel safe: one who was cancelled while entering is not inside.
    pub async fn enter(&self, key: &str, owner: &str) -> Result<Inside, DetectorError> {
        // Made first, so that it leaves again whatever becomes of this future.
        let mut inside = Inside { detector: self.clone(), key: key.into(), owner: owner.into(), has_left: false };
        let entry = match &self.0 {
            Store::Memory(memory) => memory.enter(key, owner),
            Store::Postgres(postgres) => postgres.enter(key, owner).await.map_err(DetectorError::Blind)?,
        };
        match entry {
            Ok(()) => Ok(inside),
            Err(other) => {
                inside.has_left = true;
                Err(DetectorError::TwoHolders(TwoHolders { key: key.into(), inside: other, entered: owner.into() }))
            }
        }
    }

    /// How often two holders were found: by this detector and its clones, or by all that share the database's table.
    pub async fn violations(&self) -> Result<u64, DetectorError> {
        match &self.0 {
            Store::Memory(memory) => Ok(memory.violations()),
            Store::Postgres(postgres) => postgres.violations().await.map_err(DetectorError::Blind),
        }
    }
}

impl Inside {
    /// Leaves, and returns when that is done, so that an owner in another process can enter.
    pub async fn leave(mut self) -> Result<(), DetectorError> {
        self.has_left = true;
        let was_inside = match &self.detector.0 {
            Store::Memory(memory) => memory.leave(&self.key, &self.owner),
            Store::Postgres(postgres) => postgres.leave(&self.key, &self.owner).await.map_err(DetectorError::Blind)?,
        };
        let not_inside = || DetectorError::NotInside { key: self.key.clone(), owner: self.owner.clone() };
        was_inside.then_some(()).ok_or_else(not_inside)
    }
}

/// For bodies that are cancelled or panic. Later entries through the same detector come after it; an owner in another
/// process can overtake it, so across processes [`Inside::leave`] is needed before the lock is released.
impl Drop for Inside {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        match &self.detector.0 {
            Store::Memory(memory) => {
                memory.leave(&self.key, &self.owner);
            }
            Store::Postgres(postgres) => postgres.leave_later(&self.key, &self.owner),
        }
    }
}

impl fmt::Display for TwoHolders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inside = self.inside.as_deref().unwrap_or("somebody who left since");
        write!(f, "two holders of {:?}: {} entered while {inside} was inside", self.key, self.entered)
    }
}

impl std::error::Error for TwoHolders {}

impl fmt::Display for DetectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blind(_) => f.write_str("the detector did not reach its database"),
            Self::NotInside { key, owner } => write!(f, "{owner} left {key:?} and was not inside any more"),
            Self::TwoHolders(violation) => violation.fmt(f),
        }
    }
}

impl std::error::Error for DetectorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Blind(error) => Some(&**error),
            Self::NotInside { .. } | Self::TwoHolders(_) => None,
        }
    }
}
