//! The span of a term of the lease runner.

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    LossCause, MemoryLocker,
    lease::{LeaseConfig, LeaseExit, LeaseRunner, Term},
};
use tokio::time::sleep;

use crate::tracer::Traced;

#[tokio::test(start_paused = true)]
async fn job_runs_in_the_span_of_its_term_and_every_term_has_one() {
    let (traced, _subscriber) = Traced::start();
    let store = MemoryLocker::new();
    let runner = LeaseRunner::new(Arc::new(store.peer()), LeaseConfig::new().with_class("bill")).unwrap();
    let mut terms = 0;
    let job = |term: Term| {
        terms += 1;
        let (first, store) = (terms == 1, store.peer());
        async move {
            tracing::info!("at work");
            if first {
                store.lose("job", LossCause::SessionEnded).unwrap();
                term.cancelled().await;
            }
            sleep(Duration::from_secs(2)).await;
            Ok::<_, ()>(())
        }
    };
    assert!(matches!(runner.run("job", job).await.unwrap(), LeaseExit::Finished(())));
    let hangs = runner.run("job", async |_term| std::future::pending::<Result<(), ()>>().await);
    assert!(tokio::time::timeout(Duration::from_secs(7), hangs).await.is_err());
    let lines = traced.lines();
    assert_eq!(lines.iter().filter(|line| *line == "INFO in lease.term: at work").count(), 2, "{lines:?}");
    let terms: Vec<_> = lines.iter().filter(|line| line.starts_with("lease.term ")).collect();
    let term = |token: u32| format!(r#"lease.term under nothing: lock.key="job" lock.class="bill" token={token}"#);
    assert_eq!(terms, [&term(1), &term(2), &term(3)], "{lines:?}");
}
