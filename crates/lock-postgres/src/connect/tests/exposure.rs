//! The warning about plaintext.

use super::super::{ConnectionString, leaves_the_machine, warn_of_plaintext};
use crate::logged::Log;

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
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN") && lines[0].contains("db.example:5432"), "{lines:?}");
    assert!(!lines[0].contains("canary"), "{lines:?}");
}
