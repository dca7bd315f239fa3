//! Requests to step down, as they travel through the server, and what else is heard of other lockers.

use std::{
    fmt,
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

/// Told of what is heard, beside the holds of the registry.
pub(crate) trait Hears: fmt::Debug + Send + Sync {
    /// Somebody asks the holder of this id to step down.
    fn step_down(&self, id: i64, sender: Sender);

    /// What was sent to one of its own channels about this id.
    fn hear(&self, channel: &str, id: i64);
}

/// Passes requests to step down on to the holds of this locker.
#[derive(Clone, Debug)]
pub(super) struct Ear {
    registry: Arc<Registry<Lease>>,
    beside: Option<Arc<dyn Hears>>,
    namespace: i32,
}

impl Ear {
    pub(super) fn new(registry: Arc<Registry<Lease>>, beside: Option<Arc<dyn Hears>>, namespace: i32) -> Self {
        Self { registry, beside, namespace }
    }

    pub(super) fn namespace(&self) -> i32 {
        self.namespace
    }

    /// Anybody may send anything, so whatever concerns none of ours is passed over.
    pub(super) fn hear(&self, notification: &Notification) {
        let (channel, payload) = (notification.channel(), notification.payload());
        if channel != sql::STEP_DOWN_CHANNEL {
            let about = read_parts(payload).filter(|(namespace, _)| *namespace == self.namespace);
            if let (Some((_, id)), Some(beside)) = (about, &self.beside) {
                beside.hear(channel, id);
            }
            return;
        }
        let Some((namespace, id, sender)) = read_payload(payload) else { return };
        if namespace != self.namespace {
            return;
        }
        if let Some(lease) = self.registry.find(id).filter(|lease| lease.waited_as != Some(sender)) {
            lease.record.request_step_down();
        }
        if let Some(beside) = &self.beside {
            beside.step_down(id, sender);
        }
    }
}

/// What is sent to `sql::STEP_DOWN_CHANNEL`.
pub(crate) fn payload(namespace: i32, id: i64, Sender(sender): Sender) -> String {
    format!("{namespace} {id} {sender}")
}

fn read_payload(text: &str) -> Option<(i32, i64, Sender)> {
    let (about, sender) = text.rsplit_once(' ')?;
    let (namespace, id) = read_parts(about)?;
    Some((namespace, id, Sender(sender.parse().ok()?)))
}

fn read_parts(text: &str) -> Option<(i32, i64)> {
    let (namespace, id) = text.split_once(' ')?;
    Some((namespace.parse().ok()?, id.parse().ok()?))
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
