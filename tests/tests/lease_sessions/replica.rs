//! One replica, and what its run says of itself.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use distributed_lock::{
    Hold, Locker, Release, Result,
    lease::{
        CancelReason, LeaseConfig, LeaseEvent, LeaseExit, LeaseGuarantees, LeaseRunner, LeaseState, LeaseWatch, Term,
        TermEnd,
    },
};
use lock_testkit::wait_until;
use tests::lease::locker::LockerKind;
use tokio::{task::JoinHandle, time::Instant};

use crate::{
    bench::{JOB, Work},
    referee::Referee,
    server::AMPLE,
};

/// One process, as far as the other one and the server can tell.
#[derive(Debug)]
pub(crate) struct Replica {
    kind: LockerKind,
    ttl: Duration,
    pub(crate) runner: LeaseRunner,
    pub(crate) locker: Arc<dyn Locker>,
    pub(crate) watch: LeaseWatch,
    referee: Referee,
    log: Log,
    ends: Arc<Mutex<Vec<TermEnd<&'static str, &'static str>>>>,
    run: Option<JoinHandle<Result<LeaseExit<&'static str, &'static str>>>>,
}

impl Replica {
    /// Contends from now on.
    pub(crate) fn start(
        name: &'static str,
        (kind, locker): (LockerKind, Arc<dyn Locker>),
        lease: LeaseConfig,
        referee: &Referee,
        job: impl Fn(Term) -> Work + Send + Sync + 'static,
    ) -> Self {
        let (log, ttl) = (Log::default(), lease.ttl);
        let runner = LeaseRunner::new(Arc::clone(&locker), log.hooked(lease)).unwrap();
        let watch = runner.watch(JOB).unwrap();
        let referee = referee.clone();
        let mut replica = Self { kind, ttl, runner, locker, watch, referee, log, ends: Arc::default(), run: None };
        replica.run(name, job);
        replica
    }

    /// Once more, after its run has ended.
    pub(crate) fn run(&mut self, name: &'static str, job: impl Fn(Term) -> Work + Send + Sync + 'static) {
        let (runner, ends, referee) = (self.runner.clone(), Arc::clone(&self.ends), self.referee.clone());
        let watched = move |term: Term| {
            let working = referee.begin(name, &term);
            let work = job(term);
            async move {
                // Dropped after the work.
                let _working = working;
                work.await
            }
        };
        let run = async move { runner.run_with(JOB, watched, |end| ends.lock().unwrap().push(end)).await };
        self.run = Some(tokio::spawn(run));
    }

    /// What its runner prints, for a standby that hears what there is to be heard.
    pub(crate) fn promised(&self) -> LeaseGuarantees {
        self.kind.heard(self.runner.guarantees(), self.ttl)
    }

    /// Waits until it leads and its job works.
    pub(crate) async fn leads(&self) -> Hold {
        let mut led = None;
        let leads = wait_until(AMPLE, "it leads", async || {
            if let LeaseState::Leading(hold) = self.watch.state() {
                led = hold.fencing_token().is_some_and(|token| self.referee.saw(token)).then_some(hold);
            }
            led.is_some()
        });
        leads.await.unwrap_or_else(|_| panic!("it does not lead: {:?}", self.log.lines()));
        led.unwrap()
    }

    /// Waits for an event, and says when it was.
    pub(crate) async fn event(&self, line: &str) -> Instant {
        self.nth_event(1, line).await
    }

    pub(crate) async fn nth_event(&self, n: usize, line: &str) -> Instant {
        let mut at = None;
        let seen = wait_until(AMPLE, "an event", async || {
            at = self.log.nth(n, line);
            at.is_some()
        });
        seen.await.unwrap_or_else(|_| panic!("there was no {line:?}: {:?}", self.log.lines()));
        at.unwrap()
    }

    /// What happened, in order, without attempts that a shared session found unanswered: it asks the server now and then while it stands
    /// by, and on a busy machine an answer may come too late.
    pub(crate) fn events(&self) -> Vec<String> {
        let mut lines = self.all_events();
        if self.kind == LockerKind::Shared {
            lines.retain(|line| line != "asked in vain: Unavailable");
        }
        lines
    }

    /// What happened, in order, with attempts that fail one after the other as one.
    pub(crate) fn all_events(&self) -> Vec<String> {
        let mut lines = self.log.lines();
        lines.dedup_by(|line, before| line == before && line.starts_with("asked in vain"));
        lines
    }

    /// The only term so far that a loss or a step-down ended.
    pub(crate) fn only_end(&self) -> TermEnd<&'static str, &'static str> {
        let ends = self.ends.lock().unwrap();
        let [end] = &ends[..] else { panic!("not one end: {ends:?}") };
        end.clone()
    }

    /// The first term that a loss or a step-down ended.
    pub(crate) fn first_end(&self) -> TermEnd<&'static str, &'static str> {
        self.ends.lock().unwrap().first().expect("no term has ended").clone()
    }

    pub(crate) fn has_no_end(&self) -> bool {
        self.ends.lock().unwrap().is_empty()
    }

    /// Waits until the run has ended.
    pub(crate) async fn exit(&mut self) -> LeaseExit<&'static str, &'static str> {
        let run = self.run.take().expect("it runs");
        tokio::time::timeout(AMPLE, run).await.expect("the run does not end").unwrap().unwrap()
    }

    /// Ends everything in order.
    pub(crate) async fn close(mut self) -> LeaseExit<&'static str, &'static str> {
        self.runner.close().await.unwrap();
        let exit = self.exit().await;
        self.locker.close().await.unwrap();
        exit
    }
}

/// Who led after a loss.
#[derive(Debug)]
pub(crate) struct Next {
    pub(crate) at: Instant,
    /// Whether it is the one that had lost it.
    pub(crate) again: bool,
}

/// Waits until one leads again after the first term of `former` was lost, which `standby` then is. The former leader contends beside the
/// standby, and where nobody queues it may be the first.
pub(crate) async fn next_leader(former: &mut Replica, standby: &mut Replica) -> Next {
    let (at, again) = tokio::select! {
        at = standby.event("leads") => (at, false),
        at = former.nth_event(2, "leads") => (at, true),
    };
    assert!(!again || former.kind == LockerKind::Shared, "it did not queue behind the standby");
    if again {
        std::mem::swap(former, standby);
    }
    Next { at, again }
}

/// What a run says of itself, each line with its time.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<(Instant, String)>>>);

impl Log {
    fn hooked(&self, lease: LeaseConfig) -> LeaseConfig {
        let log = self.clone();
        lease.with_hook(move |event| log.0.lock().unwrap().push((Instant::now(), line(event))))
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(_, line)| line.clone()).collect()
    }

    fn nth(&self, n: usize, line: &str) -> Option<Instant> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|(_, seen)| seen == line).nth(n - 1).map(|(at, _)| *at)
    }
}

/// An event in a few words.
fn line(event: &LeaseEvent<'_>) -> String {
    match event {
        LeaseEvent::AcquireFailed { error, retry_in: Some(_), .. } => format!("asked in vain: {:?}", error.kind()),
        LeaseEvent::AcquireFailed { error, retry_in: None, .. } => format!("refused: {:?}", error.kind()),
        LeaseEvent::Draining { reason: CancelReason::Lost(loss), .. } => format!("told: {:?}", loss.cause()),
        LeaseEvent::Draining { reason, .. } => format!("told: {reason:?}"),
        LeaseEvent::Leading { .. } => "leads".to_owned(),
        LeaseEvent::StandingBy { .. } => "stands by".to_owned(),
        LeaseEvent::TakingOver { .. } => "takes over".to_owned(),
        LeaseEvent::TermEnded { outcome, loss, release, .. } => {
            let loss = loss.map_or_else(|| "kept".to_owned(), |loss| format!("{:?}", loss.cause()));
            let release = match release {
                Ok(Release::Released) => "released".to_owned(),
                Ok(Release::Lapsed(_)) => "lapsed".to_owned(),
                Ok(Release::Lost(_)) => "lost".to_owned(),
                Err(error) => format!("{:?}", error.kind()),
            };
            format!("ended: {outcome:?}, {loss}, {release}")
        }
        other => other.to_string(),
    }
}
