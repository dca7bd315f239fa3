//! The log lines of the circuit breaker, with feature `tracing`. Alone in its program: tracing asks once for each line whether anybody
//! wants it, and another test could answer for this one.

#![cfg(feature = "tracing")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use distributed_lock::{
    ErrorKind, LockerExt, MemoryLocker, TokioClock,
    breaker::{BreakerConfig, CircuitBreaker},
};
use tokio::time::sleep;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

const TTL: Duration = Duration::from_secs(30);

/// Level and message of every event.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Message<'a>(&'a Lines, Level);

impl Visit for Message<'_> {
    fn record_debug(&mut self, _field: &Field, value: &dyn fmt::Debug) {
        self.0.0.lock().unwrap().push(format!("{} {value:?}", self.1));
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message(self, *event.metadata().level()));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn every_change_is_one_line_openings_are_warnings_and_no_lock_is_named() {
    let lines = Lines::default();
    let _default = tracing::subscriber::set_default(lines.clone());
    let config = BreakerConfig::new().with_min_samples(1);
    let locker = CircuitBreaker::with_clock(MemoryLocker::new(), config, TokioClock).unwrap();
    locker.get_ref().fail_next(ErrorKind::Unavailable);
    for _ in 0..10 {
        locker.try_acquire("canary", TTL).await.unwrap_err();
    }
    sleep(Duration::from_millis(501)).await;
    // The ping.
    locker.get_ref().fail_next(ErrorKind::Unavailable);
    locker.try_acquire("canary", TTL).await.unwrap_err();
    sleep(Duration::from_secs(1)).await;
    assert!(locker.try_acquire("canary", TTL).await.unwrap().acquired().is_some());
    let lines = lines.0.lock().unwrap().clone();
    let wanted = [
        ("WARN the circuit breaker before Memory is open for ", ": 1 of 1 calls failed within 10s"),
        ("INFO the circuit breaker before Memory is half-open: the store is probed by a ping", ""),
        ("WARN the circuit breaker before Memory is open for ", ": the ping that probed the store failed"),
        ("INFO the circuit breaker before Memory is half-open: the store is probed by a ping", ""),
        ("INFO the circuit breaker before Memory is closed: the store answered the ping", ""),
    ];
    assert_eq!(lines.len(), wanted.len(), "{lines:?}");
    for (line, (start, end)) in lines.iter().zip(wanted) {
        assert!(line.starts_with(start) && line.ends_with(end), "{line}");
    }
}
