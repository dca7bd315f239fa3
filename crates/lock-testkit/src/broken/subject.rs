use std::sync::Arc;

use async_trait::async_trait;
use distributed_lock::{LockKey, Locker, LossCause, Result, ScopedLocker};

use super::{
    Defect,
    locker::{BrokenLocker, Family},
    scoped::BrokenScoped,
};
use crate::conformance::{Missing, Store, Subject, Suite, Time};

/// The broken locker with this defect, for both suites.
#[must_use]
pub fn subject(defect: Defect) -> Arc<dyn Subject> {
    Arc::new(Broken(defect))
}

#[derive(Debug)]
struct Broken(Defect);

#[async_trait]
impl Subject for Broken {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn time(&self) -> Time {
        Time::Paused
    }
    fn suites(&self) -> &[Suite] {
        &[Suite::Locker, Suite::Scoped]
    }
    async fn open(&self) -> std::result::Result<Arc<dyn Store>, Missing> {
        Ok(Arc::new(BrokenStore { family: Arc::new(Family::new()), defect: self.0 }))
    }
}

#[derive(Debug)]
struct BrokenStore {
    family: Arc<Family>,
    defect: Defect,
}

#[async_trait]
impl Store for BrokenStore {
    async fn locker(&self) -> Result<Option<Arc<dyn Locker>>> {
        // Else the session locks would be kept apart in the same way.
        let defect = if self.defect == Defect::KeepsBodiesApart { Defect::Nothing } else { self.defect };
        Ok(Some(Arc::new(BrokenLocker::new(&self.family, defect))))
    }

    async fn scoped(&self) -> Result<Option<Arc<dyn ScopedLocker>>> {
        Ok(Some(Arc::new(BrokenScoped::new(BrokenLocker::new(&self.family, self.defect), self.defect))))
    }

    async fn lose(&self, key: &LockKey) -> Result<bool> {
        self.family.first.lose(key, LossCause::SessionEnded)
    }
}
