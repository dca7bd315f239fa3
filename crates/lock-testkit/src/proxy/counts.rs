//! What was counted.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::wire::{Message, Seen};

/// PostgreSQL messages since the last reset, of all connections.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Counts {
    /// Messages of clients by type byte, such as `b'Q'` for a simple query, `b'P'` for a parse and `b'S'` for a sync. Requests
    /// for encryption, which have no type byte, are under `b's'` (TLS) and `b'g'` (GSSAPI).
    pub frontend: BTreeMap<u8, u64>,
    /// Sessions that were begun.
    pub startups: u64,
    /// Cancel requests, each on a connection of its own.
    pub cancels: u64,
    /// `ReadyForQuery` messages of servers: one at the end of each startup and one for each round trip.
    pub ready: u64,
    /// Connections whose messages could not be read, being encrypted or not PostgreSQL. The other counts lack theirs.
    pub opaque: u64,
}

impl Counts {
    /// Messages of that type byte.
    #[must_use]
    pub fn frontend(&self, kind: u8) -> u64 {
        self.frontend.get(&kind).copied().unwrap_or_default()
    }
}

/// The counts, and how many opaque connections are open, which a reset must not forget.
#[derive(Debug, Default)]
pub(super) struct Counter(Mutex<(Counts, u64)>);

impl Counter {
    pub(super) fn counts(&self) -> Counts {
        self.lock().0.clone()
    }

    pub(super) fn reset(&self) {
        let (counts, open) = &mut *self.lock();
        *counts = Counts { opaque: *open, ..Counts::default() };
    }

    pub(super) fn add(&self, seen: &[Seen]) {
        let (counts, open) = &mut *self.lock();
        for seen in seen {
            match seen.message {
                Message::Cancel => counts.cancels += 1,
                Message::Opaque => {
                    counts.opaque += 1;
                    *open += 1;
                }
                Message::Other => {}
                Message::Ready => counts.ready += 1,
                Message::Startup => counts.startups += 1,
                Message::Typed(kind) => *counts.frontend.entry(kind).or_default() += 1,
            }
        }
    }

    pub(super) fn opaque_closed(&self) {
        self.lock().1 -= 1;
    }

    /// Never held across an await.
    fn lock(&self) -> MutexGuard<'_, (Counts, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
