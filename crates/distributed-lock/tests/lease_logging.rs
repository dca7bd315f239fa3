//! The log lines of the lease runner, with feature `tracing`. Alone in its program: tracing asks once for each line whether anybody wants
//! it, and another test could answer for this one.

#![cfg(feature = "tracing")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "lease/support.rs"]
#[expect(dead_code, reason = "of what the lease tests share, this one needs little")]
mod support;

use std::fmt;

use distributed_lock::{
    LossCause, MemoryLocker,
    lease::{LeaseExit, Term},
};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

use self::support::{Log, bounded, replica};

/// Level and message of every event.
struct Lines(Log);

struct Message<'a>(&'a Log, Level);

impl Visit for Message<'_> {
    fn record_debug(&mut self, _field: &Field, value: &dyn fmt::Debug) {
        self.0.add(format!("{} {value:?}", self.1));
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
        event.record(&mut Message(&self.0, *event.metadata().level()));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn the_promises_are_logged_once_a_run_losses_as_warnings_and_names_escaped() {
    let log = Log::default();
    let _default = tracing::subscriber::set_default(Lines(log.clone()));
    let store = MemoryLocker::new();
    let runner = replica(&store);
    let mut terms = 0;
    let job = |term: Term| {
        terms += 1;
        let (first, store) = (terms == 1, store.peer());
        async move {
            if first {
                store.lose("a\njob", LossCause::SessionEnded).unwrap();
                term.cancelled().await;
            }
            Ok::<_, ()>(())
        }
    };
    assert!(matches!(bounded(runner.run("a\njob", job)).await.unwrap(), LeaseExit::Finished(())));
    let lines = log.lines();
    assert!(lines[0].starts_with(r#"INFO "a\njob" stands by; detection <= 13.1s"#), "{lines:?}");
    let told = r#"WARN "a\njob" drains: the lease is lost: the session that owned it ended"#;
    assert_eq!(lines[1..3], [r#"INFO "a\njob" leads"#, told]);
    assert!(lines[3].starts_with(r#"WARN "a\njob" ended its term: the job returned; told because"#), "{lines:?}");
    assert_eq!(lines[4..], [r#"INFO "a\njob" leads"#, r#"INFO "a\njob" ended its term: the job returned"#]);
}
