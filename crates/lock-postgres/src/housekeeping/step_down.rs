//! Requests to step down, as they travel through the server.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use tokio_postgres::Notification;

use crate::{lease::Lease, registry::Registry, sql};

/// Who sent a request: one wait, or an operator. Whoever is granted the lock just when its own request arrives is not meant by it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Sender(u64);

impl Sender {
    /// One who waits for nothing.
    pub(crate) const OPERATOR: Self = Self(0);

    pub(super) fn fresh() -> Self {
        // The keys of a `RandomState` come from the system, and each one has others.
        Self(RandomState::new().hash_one(()).max(1))
    }
}

/// Passes requests to step down on to the holds of this locker.
#[derive(Clone, Debug)]
pub(super) struct Ear {
    registry: Arc<Registry<Lease>>,
    namespace: i32,
}

impl Ear {
    pub(super) fn new(registry: Arc<Registry<Lease>>, namespace: i32) -> Self {
        Self { registry, namespace }
    }

    pub(super) fn namespace(&self) -> i32 {
        self.namespace
    }

    /// Anybody may send anything, so whatever is no request to one of ours is passed over.
    pub(super) fn hear(&self, notification: &Notification) {
        if notification.channel() != sql::STEP_DOWN_CHANNEL {
            return;
        }
        let Some((namespace, id, sender)) = read_payload(notification.payload()) else { return };
        let lease =
            self.registry.find(id).filter(|lease| namespace == self.namespace && lease.waited_as != Some(sender));
        if let Some(lease) = lease {
            lease.record.request_step_down();
        }
    }
}

/// What is sent to `sql::STEP_DOWN_CHANNEL`.
pub(crate) fn payload(namespace: i32, id: i64, Sender(sender): Sender) -> String {
    format!("{namespace} {id} {sender}")
}

fn read_payload(text: &str) -> Option<(i32, i64, Sender)> {
    let mut parts = text.split(' ');
    let (namespace, id) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let sender = Sender(parts.next()?.parse().ok()?);
    parts.next().is_none().then_some((namespace, id, sender))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_read_back_and_others_are_passed_over() {
        for (namespace, id, sender) in [(0, 0, 0), (i32::MIN, i64::MAX, u64::MAX), (i32::MAX, i64::MIN, 7)] {
            let sender = Sender(sender);
            assert_eq!(read_payload(&payload(namespace, id, sender)), Some((namespace, id, sender)));
        }
        for foreign in ["", " ", "1", "1 2", "1 2 ", " 1 2", "1 2 3 4", "one 2 3", "1  2 3", "2147483648 1 1", "1 2 -1"]
        {
            assert_eq!(read_payload(foreign), None, "{foreign:?}");
        }
    }
}
