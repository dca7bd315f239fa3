//! The log lines of the provider `noop`. Alone in its program: tracing asks once for each line whether anybody wants it, and another
//! test could answer for this one.

#![expect(clippy::unwrap_used, reason = "a test whose own steps fail has failed")]

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use lock_connect::LockConfig;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// The warnings of one thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl Visit for Warnings {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        self.0.lock().unwrap().push(format!("{value:?}"));
    }
}

#[test]
fn each_noop_that_is_built_warns_in_the_log_and_no_other_locker_does() {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let noop = LockConfig::new("noop");
        assert!(warnings.0.lock().unwrap().is_empty(), "a configuration alone builds nothing");
        noop.locker().unwrap();
        noop.scoped_locker().unwrap();
        LockConfig::new("memory").locker().unwrap();
    });
    let line = "the provider noop locks nothing: any number of callers hold a key at once";
    assert_eq!(*warnings.0.lock().unwrap(), [line, line]);
}
