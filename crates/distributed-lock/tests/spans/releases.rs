//! What becomes of a body when the release after it does not go well.

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use distributed_lock::{
    ErrorKind, Inspect, Instrumented, LockKey, LockerExt, LossCause, MemoryLocker, Scoped, ScopedLockerExt,
    breaker::{BreakerConfig, CircuitBreaker},
    lease::{LeaseConfig, LeaseExit, LeaseRunner, Term},
};

use crate::tracer::Traced;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Body {
    Ok,
    Err,
    Panics,
}

#[derive(Clone, Copy, Debug)]
enum Release {
    Ok,
    Slow,
    Lost,
    Fails,
}

/// What a body under the whole stack ends in, and all that is told of it.
async fn cell(body: Body, release: Release) {
    let cell = format!("{body:?} x {release:?}");
    let (traced, _subscriber) = Traced::start();
    let inner = Arc::new(MemoryLocker::new());
    let breaker = CircuitBreaker::new(Scoped::new(Arc::clone(&inner)), BreakerConfig::new()).unwrap();
    let locks = Instrumented::new(breaker);
    let store = Arc::clone(&inner);
    let run = tokio::spawn(async move {
        let work = async |_hold| {
            match release {
                Release::Ok => {}
                Release::Slow => store.delay(Duration::from_secs(5)),
                Release::Lost => assert!(store.lose("orders", LossCause::SessionEnded).unwrap()),
                Release::Fails => store.fail_next(ErrorKind::Unavailable),
            }
            match body {
                Body::Ok => Ok("packed"),
                Body::Err => Err("sold out"),
                Body::Panics => resume_unwind(Box::new("on purpose")),
            }
        };
        locks.with_lock("orders", work).await
    });
    let value = if body == Body::Ok { Ok("packed") } else { Err("sold out") };
    let failed = match run.await {
        Err(panicked) if body == Body::Panics => {
            assert_eq!(panicked.into_panic().downcast_ref::<&str>(), Some(&"on purpose"), "{cell}");
            None
        }
        Err(panicked) => panic!("{cell}: {panicked}"),
        Ok(Ok(returned)) => {
            assert_eq!(returned, value, "{cell}");
            None
        }
        Ok(Err(failed)) => {
            assert_eq!(failed.value, Some(value), "{cell}");
            Some(failed.error.kind())
        }
    };
    let (kind, warning) = match release {
        Release::Ok | Release::Slow => (None, None),
        Release::Lost => (Some(ErrorKind::Lost), Some("the lock was lost")),
        // Of a body that panics nobody is left to hear how its release went.
        Release::Fails => (Some(ErrorKind::Unavailable), (body != Body::Panics).then_some("a release failed")),
    };
    assert_eq!(failed, kind.filter(|_| body != Body::Panics), "{cell}");
    let lines = traced.lines();
    let warnings: Vec<_> = lines.iter().filter(|line| line.starts_with("WARN") || line.starts_with("ERROR")).collect();
    assert_eq!(warnings.len(), usize::from(warning.is_some()), "{cell}: {lines:?}");
    assert!(warnings.iter().all(|line| line.contains(warning.unwrap())), "{cell}: {warnings:?}");
    inner.delay(Duration::ZERO);
    assert!(inner.try_acquire("orders", Duration::from_secs(30)).await.unwrap().acquired().is_some(), "{cell}");
}

#[tokio::test(start_paused = true)]
async fn case_56_release_that_fails_hides_nothing_of_the_body_and_is_one_warning() {
    for body in [Body::Ok, Body::Err, Body::Panics] {
        for release in [Release::Ok, Release::Slow, Release::Lost, Release::Fails] {
            cell(body, release).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn case_56_step_down_is_told_once_a_term_and_is_no_warning() {
    let (traced, _subscriber) = Traced::start();
    let store = MemoryLocker::new();
    let runner = LeaseRunner::new(Arc::new(store.peer()), LeaseConfig::new()).unwrap();
    let mut terms = 0;
    let job = |term: Term| {
        terms += 1;
        let (last, store) = (terms == 3, store.peer());
        async move {
            if !last {
                assert!(store.request_step_down(&LockKey::new("job").unwrap()).await.unwrap());
                term.cancelled().await;
            }
            Ok::<_, ()>(())
        }
    };
    assert!(matches!(runner.run("job", job).await.unwrap(), LeaseExit::Finished(())));
    let lines = traced.lines();
    let told = |what: &str| lines.iter().filter(|line| line.starts_with("INFO") && line.contains(what)).count();
    assert_eq!((told("\"job\" leads"), told("\"job\" drains"), told("\"job\" ended its term")), (3, 2, 3), "{lines:?}");
    assert!(lines.iter().all(|line| !line.starts_with("WARN") && !line.starts_with("ERROR")), "{lines:?}");
}
