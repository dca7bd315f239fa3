//! The ids that lanes hold or ask for: PostgreSQL would give a session its own lock again.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use distributed_lock::{Contention, LockKey};

#[derive(Clone, Debug, Default)]
pub(crate) struct Claims(Arc<Mutex<HashMap<i64, LockKey>>>);

/// An id that nobody else in the process asks a lane for. Dropped, it is free.
#[derive(Debug)]
pub(crate) struct Claim {
    claims: Claims,
    pub(crate) id: i64,
    pub(crate) key: LockKey,
}

impl Claims {
    fn map(&self) -> MutexGuard<'_, HashMap<i64, LockKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why not, if somebody has it.
    pub(crate) fn claim(&self, id: i64, key: &LockKey) -> Result<Claim, Contention> {
        match self.map().entry(id) {
            Entry::Occupied(held) if held.get() == key => Err(Contention::HeldHere),
            Entry::Occupied(held) => Err(Contention::Collision { held: held.get().clone(), wanted: key.clone() }),
            Entry::Vacant(free) => {
                free.insert(key.clone());
                Ok(Claim { claims: self.clone(), id, key: key.clone() })
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.map().remove(&self.id);
    }
}
