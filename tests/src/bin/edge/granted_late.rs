//! Counts the waits that failed although they were granted: the locker hides them, but says so for debugging.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

pub(crate) struct Counter(pub(crate) Arc<AtomicU64>);

impl Subscriber for Counter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == "lock_postgres"
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Matcher(&self.0));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Matcher<'a>(&'a AtomicU64);

impl Visit for Matcher<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" && format!("{value:?}").starts_with("a wait that timed out had been granted") {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}
