//! The holds of one locker by their id in the server: for the reason of a contention, and for closing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use distributed_lock::{Contention, LockKey};

/// What the registry keeps of a hold.
#[derive(Debug)]
struct Entry<H> {
    id: i64,
    ticket: Ticket,
    key: LockKey,
    hold: Weak<H>,
}

/// Tells a hold from a later one of the same id. The server gives an id to one at a time, but a hold that it has ended can be listed
/// for longer, and even be listed after its successor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Ticket(u64);

#[derive(Debug)]
pub(crate) struct Registry<H>(Mutex<Entries<H>>);

#[derive(Debug)]
struct Entries<H> {
    /// In the order of their listing. No more than the locker has connections, so looking through them costs less than an index.
    list: Vec<Entry<H>>,
    last: u64,
}

impl<H> Default for Registry<H> {
    fn default() -> Self {
        Self(Mutex::new(Entries { list: Vec::new(), last: 0 }))
    }
}

impl<H> Entries<H> {
    /// The one listed last comes first.
    fn of(&self, id: i64) -> impl Iterator<Item = &Entry<H>> {
        self.list.iter().rev().filter(move |entry| entry.id == id)
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
        entries.list.push(Entry { id, ticket, key: key.clone(), hold });
        ticket
    }

    pub(crate) fn unlist(&self, ticket: Ticket) {
        let mut entries = self.entries();
        if let Some(at) = entries.list.iter().rposition(|entry| entry.ticket == ticket) {
            entries.list.remove(at);
        }
    }

    /// Why the server refused this id.
    pub(crate) fn why_contended(&self, id: i64, wanted: &LockKey) -> Contention {
        match self.entries().of(id).next() {
            None => Contention::Held,
            Some(entry) if entry.key == *wanted => Contention::HeldHere,
            Some(entry) => Contention::Collision { held: entry.key.clone(), wanted: wanted.clone() },
        }
    }

    /// The hold of this id, if it is one that can be told something.
    pub(crate) fn find(&self, id: i64) -> Option<Arc<H>> {
        self.entries().of(id).find_map(|entry| entry.hold.upgrade())
    }

    /// All holds that can be ended.
    pub(crate) fn all(&self) -> Vec<Arc<H>> {
        self.entries().list.iter().filter_map(|entry| entry.hold.upgrade()).collect()
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
        registry.unlist(ticket);
        assert_eq!(registry.why_contended(5, &key("a")), Contention::Held);
    }

    #[test]
    fn holds_of_one_id_come_and_go_in_any_order() {
        let registry = Registry::<()>::default();
        let hold = Arc::new(());
        for late_first in [false, true] {
            let late = late_first.then(|| registry.list(5, &key("a"), Weak::new()));
            let ticket = registry.list(5, &key("a"), Arc::downgrade(&hold));
            let late = late.unwrap_or_else(|| registry.list(5, &key("a"), Weak::new()));
            assert!(registry.find(5).is_some(), "the one that can be told something");
            registry.unlist(late);
            assert_eq!(registry.why_contended(5, &key("a")), Contention::HeldHere);
            assert_eq!(registry.all().len(), 1);
            registry.unlist(ticket);
            assert_eq!(registry.all().len(), 0);
        }
    }
}
