//! The look at the server's clock, with made-up readings of both clocks: nobody but root can set a real one.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use distributed_lock::{Clock, SystemClock};

use super::Clocks;
use crate::{PostgresConfig, core::Core, logged::Log};

const MARGIN: Duration = Duration::from_millis(500);
const NS: Duration = Duration::from_nanos(1);
const SECOND: Duration = Duration::from_secs(1);

/// What becomes of the server's last reading.
type Step = fn(SystemTime) -> SystemTime;

#[derive(Clone, Debug)]
struct ManualClock(Arc<Mutex<Instant>>);

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        *self.0.lock().unwrap()
    }
}

/// One lease, whose heartbeats read both clocks.
struct Watched {
    core: Core,
    ours: ManualClock,
    theirs: SystemTime,
    clocks: Clocks,
    log: Log,
}

impl Watched {
    /// After one reading, which is compared with nothing.
    fn new() -> Self {
        let ours = ManualClock(Arc::new(Mutex::new(SystemClock.now())));
        let mut core = Core::new(&PostgresConfig::from_url("postgres://u@h/d")).unwrap();
        core.clock = Arc::new(ours.clone());
        // Years from ours: only differences count.
        let theirs = SystemTime::UNIX_EPOCH + SECOND * 1_000;
        let mut watched = Self { core, ours, theirs, clocks: Clocks::default(), log: Log::default() };
        assert_eq!(watched.read(Duration::ZERO, |theirs| theirs), None);
        watched
    }

    /// What is logged once this time has passed for us, and the server's clock shows that.
    fn read(&mut self, passed: Duration, server: impl FnOnce(SystemTime) -> SystemTime) -> Option<String> {
        self.read_after(passed, Duration::ZERO, server)
    }

    /// The same, by an answer that took so long.
    fn read_after(
        &mut self,
        passed: Duration,
        took: Duration,
        server: impl FnOnce(SystemTime) -> SystemTime,
    ) -> Option<String> {
        *self.ours.0.lock().unwrap() += passed;
        let sent = self.ours.now() - took;
        self.theirs = server(self.theirs);
        let before = self.log.lines().len();
        tracing::subscriber::with_default(self.log.clone(), || {
            self.clocks.compare(&self.core, sent, self.theirs, MARGIN);
        });
        let mut new = self.log.lines().split_off(before);
        assert!(new.len() <= 1, "{new:?}");
        new.pop()
    }
}

#[tokio::test]
async fn case_17_clocks_that_run_on_together_are_not_told_of() {
    let mut watched = Watched::new();
    for passed in [Duration::ZERO, Duration::from_millis(200), SECOND, SECOND * 5] {
        assert_eq!(watched.read(passed, |theirs| theirs + passed), None);
    }
    // A suspend of both, or a heartbeat after a long rest.
    let day = SECOND * 86_400;
    assert_eq!(watched.read(day, |theirs| theirs + day), None);
    // As far apart as the margin takes without asking, each time.
    for _ in 0..3 {
        assert_eq!(watched.read(SECOND, |theirs| theirs + SECOND + MARGIN / 2), None);
        assert_eq!(watched.read(SECOND, |theirs| theirs + SECOND - MARGIN / 2), None);
    }
}

/// Sent a second apart, answered by the server at once, and received together.
#[tokio::test]
async fn case_17_answers_that_come_late_and_together_are_no_step() {
    let mut watched = Watched::new();
    assert_eq!(watched.read_after(SECOND * 4, SECOND * 3, |theirs| theirs + SECOND), None);
    for sent_before in [2, 1] {
        assert_eq!(watched.read_after(Duration::ZERO, SECOND * sent_before, |theirs| theirs + SECOND), None);
    }
    // Nor do they hide one.
    let line = watched.read_after(SECOND, SECOND, |theirs| theirs + SECOND * 6).unwrap();
    assert!(line.contains("step=4s "), "{line}");
}

#[tokio::test]
async fn case_17_step_of_the_server_s_clock_is_told_once_with_its_size() {
    let hour = SECOND * 3_600;
    let mut watched = Watched::new();
    let steps: [(&str, Step); 6] = [
        ("250.000001ms", |theirs| theirs + SECOND + MARGIN / 2 + NS),
        ("250.000001ms", |theirs| theirs + SECOND - MARGIN / 2 - NS),
        ("120s", |theirs| theirs + SECOND * 121),
        ("120s", |theirs| theirs - SECOND * 119),
        // It stood still, as in a machine that was paused while ours ran on.
        ("1s", |theirs| theirs),
        ("2s", |theirs| theirs - SECOND),
    ];
    for (count, (size, step)) in steps.into_iter().enumerate() {
        let line = watched.read(SECOND, step).unwrap_or_else(|| panic!("a step of {size} is not told of"));
        assert!(line.starts_with("WARN") && line.contains("server's clock was stepped"), "{line}");
        assert!(line.contains(&format!("step={size} ")) && line.contains(&format!("steps={}", count + 1)), "{line}");
        // The new time is the one that counts from now on.
        assert_eq!(watched.read(hour, |theirs| theirs + hour), None);
    }
}
