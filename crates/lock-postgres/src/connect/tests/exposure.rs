//! The warning about plaintext.

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex},
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

use super::super::{ConnectionString, leaves_the_machine, warn_of_plaintext};

#[test]
fn only_loopback_stays_on_the_machine() {
    for (address, leaves) in [
        ("127.0.0.1", false),
        ("127.9.9.9", false),
        ("::1", false),
        ("::ffff:127.0.0.1", false),
        ("10.0.0.1", true),
        ("192.168.1.1", true),
        ("0.0.0.0", true),
        ("fe80::1", true),
        ("::ffff:10.0.0.1", true),
    ] {
        assert_eq!(leaves_the_machine(address.parse().unwrap()), leaves, "{address}");
    }
}

#[test]
fn plaintext_warns_once_without_secrets() {
    let log = Log::default();
    let parsed: ConnectionString = "postgres://u:canary@db.example/d".parse().unwrap();
    tracing::subscriber::with_default(log.clone(), || {
        for _ in 0..3 {
            warn_of_plaintext(&parsed.targets[0]);
        }
    });
    let lines = log.0.lock().unwrap().clone();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN") && lines[0].contains("db.example:5432"), "{lines:?}");
    assert!(!lines[0].contains("canary"), "{lines:?}");
}

/// Keeps each event as one line.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
