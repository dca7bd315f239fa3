//! Names that try to be more than a name.

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    Instrumented, LockKey, LockerExt, LossCause, MemoryLocker,
    breaker::{BreakerConfig, CircuitBreaker},
    lease::{LeaseConfig, LeaseRunner},
    telemetry::Telemetry,
};

use crate::page::Page;

const TTL: Duration = Duration::from_secs(30);

const NAMES: [&str; 10] = [
    "'; DROP TABLE cs; --",
    "*/ SELECT pg_sleep(5) /*",
    "a\nlevel=error msg=x",
    "a\r\u{1b}[2K\u{7f}",
    "\0",
    "{x}y",
    "../../etc",
    "\u{202e}gnp.exe",
    "\u{2028} INFO forged",
    "%s%n",
];

const LEVELS: [&str; 5] = ["TRACE ", "DEBUG ", "INFO ", "WARN ", "ERROR "];

#[tokio::test(start_paused = true)]
async fn case_68_each_odd_name_is_a_key_of_its_own_and_each_event_one_line_with_the_name_escaped() {
    let (page, _subscriber) = Page::start();
    let store = MemoryLocker::new();
    let breaker = CircuitBreaker::new(store.peer(), BreakerConfig::new()).unwrap();
    let locker = Instrumented::new(breaker).explaining_waits(Duration::from_secs(1));
    let mut guards = Vec::new();
    for name in NAMES {
        guards.push(locker.try_acquire(name, TTL).await.unwrap().acquired().unwrap());
    }
    for (name, guard) in NAMES.into_iter().zip(guards) {
        assert!(locker.acquire_within(name, TTL, Duration::from_secs(2)).await.unwrap().is_contended());
        store.lose(name, LossCause::SessionEnded).unwrap();
        assert!(guard.ensure_valid().is_err());
    }
    let config = LeaseConfig::new().with_telemetry(Telemetry::new());
    let runner = LeaseRunner::new(Arc::new(store.peer()), config).unwrap();
    for name in NAMES {
        let _exit = runner.run(name, async |_term| Ok::<_, ()>(())).await.unwrap();
    }
    let page = page.text();
    for line in page.lines() {
        assert!(LEVELS.iter().any(|level| line.trim_start().starts_with(level)), "{line:?} is no line of ours");
        assert!(!line.contains(|c: char| c.is_control() || "\u{202e}\u{2028}".contains(c)), "{line:?}");
    }
    for name in NAMES {
        let seen = page.matches(&format!("{name:?}")).count();
        assert!(seen > 10, "{name:?} is there {seen} times: {page}");
    }
    let refused = LockKey::new("x".repeat(1 << 20)).unwrap_err().to_string();
    assert_eq!(refused, "invalid lock key (1048576 bytes): must be 1 to 512 bytes long");
}
