//! The holds of one locker by their id in the server: for the reason of a contention, and for closing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use distributed_lock::{Contention, LockKey};

/// What the registry keeps of a hold.
#[derive(Debug)]
struct Entry<H> {
    key: LockKey,
    ticket: Ticket,
    hold: Weak<H>,
}

/// Tells a hold from a later one of the same id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Ticket(u64);

#[derive(Debug)]
pub(crate) struct Registry<H>(Mutex<Entries<H>>);

#[derive(Debug)]
struct Entries<H> {
    by_id: BTreeMap<i64, Entry<H>>,
    last: u64,
}

impl<H> Default for Registry<H> {
    fn default() -> Self {
        Self(Mutex::new(Entries { by_id: BTreeMap::new(), last: 0 }))
    }
}

impl<H> Registry<H> {
    fn entries(&self) -> MutexGuard<'_, Entries<H>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a hold; a dead `Weak` is one that nobody but its own caller can end.
    pub(crate) fn list(&self, id: i64, key: &LockKey, hold: Weak<H>) -> Ticket {
        let mut entries = self.entries();
        entries.last += 1;
        let ticket = Ticket(entries.last);
        entries.by_id.insert(id, Entry { key: key.clone(), ticket, hold });
        ticket
    }

    pub(crate) fn unlist(&self, id: i64, ticket: Ticket) {
        let mut entries = self.entries();
        if entries.by_id.get(&id).is_some_and(|entry| entry.ticket == ticket) {
            entries.by_id.remove(&id);
        }
    }

    /// Why the server refused this id.
    pub(crate) fn why_contended(&self, id: i64, wanted: &LockKey) -> Contention {
        match self.entries().by_id.get(&id) {
            None => Contention::Held,
            Some(entry) if entry.key == *wanted => Contention::HeldHere,
            Some(entry) => Contention::Collision { held: entry.key.clone(), wanted: wanted.clone() },
        }
    }

    /// All holds that can be ended.
    pub(crate) fn all(&self) -> Vec<Arc<H>> {
        self.entries().by_id.values().filter_map(|entry| entry.hold.upgrade()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> LockKey {
        LockKey::new(name).unwrap()
    }

    #[test]
    fn case_07_two_names_with_one_id_contend_and_the_reason_names_both() {
        let registry = Registry::<()>::default();
        let ticket = registry.list(5, &key("a"), Weak::new());
        assert_eq!(registry.why_contended(5, &key("a")), Contention::HeldHere);
        let collision = registry.why_contended(5, &key("b"));
        assert_eq!(collision, Contention::Collision { held: key("a"), wanted: key("b") });
        assert!(collision.to_string().contains(r#""a""#) && collision.to_string().contains(r#""b""#));
        assert_eq!(registry.why_contended(6, &key("a")), Contention::Held);
        registry.unlist(5, ticket);
        assert_eq!(registry.why_contended(5, &key("a")), Contention::Held);
    }

    #[test]
    fn an_old_ticket_does_not_unlist_a_later_hold() {
        let registry = Registry::<()>::default();
        let old = registry.list(5, &key("a"), Weak::new());
        let hold = Arc::new(());
        registry.list(5, &key("a"), Arc::downgrade(&hold));
        registry.unlist(5, old);
        assert_eq!(registry.why_contended(5, &key("a")), Contention::HeldHere);
        assert_eq!(registry.all().len(), 1);
    }
}
