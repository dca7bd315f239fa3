//! A job that blocks the only thread on which its runner lives too, and its locker if that has none of its own.

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use distributed_lock::{LockerExt, LossCause, Release, Ttl, lease::Term};
use libtest_mimic::Trial;
use lock_testkit::wait_until_blocking;
use tests::lease::locker::LockerKind;
use tokio::{
    runtime::{Builder, Handle},
    sync::{Notify, oneshot},
    time::sleep,
};

use crate::{
    backend::SHORT_TTL,
    bench::{JOB, TTL, Work, lease, obedient, within},
    referee::{LastStep, Referee},
    replica::Replica,
    server::{Server, Watch, ms, shortened, trial},
};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    let mut trials = vec![
        trial(locker, "blocked::case_15_for_less_than_the_detection_bound_loses_nothing", for_a_while),
        trial(locker, "blocked::case_15_for_longer_than_its_lease_knows_that_it_is_over", for_longer),
    ];
    if locker == LockerKind::Shared {
        let outlives = "blocked::lock_until_released_outlives_a_runtime_that_is_blocked_for_three_t";
        trials.push(trial(locker, outlives, until_released));
    }
    trials
}

/// A runtime on one thread, which is none of the test's.
#[derive(Debug)]
struct OneThread {
    handle: Handle,
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl OneThread {
    fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (handle, (end, ended)) = (runtime.handle().clone(), oneshot::channel());
        let thread = std::thread::spawn(move || _ = runtime.block_on(ended));
        Self { handle, end, thread }
    }

    fn end(self) {
        self.end.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

#[derive(Debug)]
struct Blocked {
    thread: OneThread,
    leader: Replica,
    standby: Replica,
    referee: Referee,
    last: LastStep,
    go: Arc<Notify>,
    woke: Arc<Notify>,
}

impl Blocked {
    /// Told to go, its job blocks for so long, and asks its hold all the while.
    async fn start(server: &Server, time: Duration) -> Self {
        let (referee, last, go, woke) =
            (Referee::default(), LastStep::default(), Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (asked, told, tells) = (last.clone(), Arc::clone(&go), Arc::clone(&woke));
        let job = move |term: Term| -> Work {
            let (asked, told, tells) = (asked.clone(), Arc::clone(&told), Arc::clone(&tells));
            Box::pin(async move {
                told.notified().await;
                let blocked = wait_until_blocking(time, "nothing", || {
                    asked.step(&term.hold());
                    false
                });
                blocked.unwrap_err();
                tells.notify_one();
                term.cancelled().await;
                Ok("wound down")
            })
        };
        let (thread, config) = (OneThread::start(), shortened(server.config()));
        let leader = {
            let _entered = thread.handle.enter();
            server.start("leader", &config, lease(), &referee, job)
        };
        leader.leads().await;
        let standby = server.start("standby", &config, lease(), &referee, obedient);
        server.standbys(1).await;
        Self { thread, leader, standby, referee, last, go, woke }
    }

    async fn end(self, server: &Server) {
        let Self { thread, leader, standby, .. } = self;
        let _closed = (leader.close().await, standby.close().await);
        thread.end();
        server.quiet().await;
    }
}

/// That our own timers are late is no evidence of a loss.
async fn for_a_while(server: Server) {
    let blocked = Blocked::start(&server, ms(500)).await;
    let hold = blocked.leader.leads().await;
    blocked.go.notify_one();
    blocked.woke.notified().await;
    // A loss would have been found by then.
    sleep(blocked.leader.promised().detection).await;
    hold.ensure_valid().unwrap();
    assert_eq!(blocked.leader.events(), ["stands by", "leads"]);
    assert_eq!(blocked.standby.events(), ["stands by"]);
    blocked.end(&server).await;
}

/// The lease is given away by a timer of the server's or of a lane's, the hold says so before, and the run says so when its thread is free again: the job is dropped
/// where it waits next.
async fn for_longer(server: Server) {
    let blocked = Blocked::start(&server, TTL + ms(700)).await;
    let hold = blocked.leader.leads().await;
    let watch = Watch::start();
    blocked.go.notify_one();
    let promised = blocked.leader.promised();
    watch.at_within(blocked.standby.event("leads").await, within(promised.takeover_frozen), "the standby leads");
    hold.ensure_valid().unwrap_err();
    blocked.standby.leads().await;
    blocked.referee.ensure_stopped_before("standby", &blocked.last);
    blocked.woke.notified().await;
    // It has its place in the queue again.
    server.standbys(1).await;
    assert_eq!(blocked.leader.events()[2..], ["told: DeadlinePassed", "ended: Dropped, DeadlinePassed, lost"]);
    assert_eq!(blocked.leader.only_end().loss.unwrap().cause(), LossCause::DeadlinePassed);
    blocked.end(&server).await;
}

/// A job's lease has a TTL, which only its run renews. A lock without one is kept by its lane, on a thread of the locker's own.
async fn until_released(server: Server) {
    let (thread, config) = (OneThread::start(), shortened(server.config()));
    let [ours, theirs] = [&config; 2].map(|config| server.locker.open(config).unwrap());
    let locker = Arc::clone(&ours);
    let acquired = thread.handle.spawn(async move { locker.acquire(JOB, Ttl::UNTIL_RELEASED).await });
    let guard = acquired.await.unwrap().unwrap();
    let next = tokio::spawn({
        let theirs = Arc::clone(&theirs);
        async move { theirs.acquire(JOB, Ttl::UNTIL_RELEASED).await }
    });
    server.standbys(1).await;
    let hold = guard.hold();
    let blocked = thread.handle.spawn(async move {
        // Ends early if the hold does.
        let over = wait_until_blocking(SHORT_TTL * 3, "nothing", || hold.ensure_valid().is_err());
        over.unwrap_err();
    });
    blocked.await.unwrap();
    guard.ensure_valid().unwrap();
    assert!(!next.is_finished(), "two hold it");
    assert!(matches!(guard.release().await, Ok(Release::Released)));
    let guard = next.await.unwrap().unwrap();
    assert!(matches!(guard.release().await, Ok(Release::Released)));
    for locker in [ours, theirs] {
        locker.close().await.unwrap();
    }
    thread.end();
    server.quiet().await;
}
