//! A job that blocks the only thread on which its locker and its runner live too.

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use distributed_lock::{LossCause, lease::Term};
use libtest_mimic::Trial;
use lock_testkit::wait_until_blocking;
use tokio::{
    runtime::{Builder, Handle},
    sync::{Notify, oneshot},
    time::sleep,
};

use crate::{
    bench::{TTL, Work, lease, obedient, within},
    referee::{LastStep, Referee},
    replica::Replica,
    server::{Server, Watch, ms, shortened, trial},
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("blocked::case_15_for_less_than_the_detection_bound_loses_nothing", for_a_while),
        trial("blocked::case_15_for_longer_than_its_lease_knows_that_it_is_over", for_longer),
    ]
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
            Replica::start("leader", &config, lease(), &referee, job)
        };
        leader.leads().await;
        let standby = Replica::start("standby", &config, lease(), &referee, obedient);
        server.waiters(1).await;
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
    sleep(blocked.leader.runner.guarantees().detection).await;
    hold.ensure_valid().unwrap();
    assert_eq!(blocked.leader.events(), ["stands by", "leads"]);
    assert_eq!(blocked.standby.events(), ["stands by"]);
    blocked.end(&server).await;
}

/// The server's timer gives the lease away, the hold says so before, and the run says so when its thread is free again: the job is dropped
/// where it waits next.
async fn for_longer(server: Server) {
    let blocked = Blocked::start(&server, TTL + ms(700)).await;
    let hold = blocked.leader.leads().await;
    let watch = Watch::start();
    blocked.go.notify_one();
    let promised = blocked.leader.runner.guarantees();
    watch.at_within(blocked.standby.event("leads").await, within(promised.takeover_frozen), "the standby leads");
    hold.ensure_valid().unwrap_err();
    blocked.standby.leads().await;
    blocked.referee.ensure_stopped_before("standby", &blocked.last);
    blocked.woke.notified().await;
    // It has its place in the queue again.
    server.waiters(1).await;
    assert_eq!(blocked.leader.events()[2..], ["told: DeadlinePassed", "ended: Dropped, DeadlinePassed, lost"]);
    assert_eq!(blocked.leader.only_end().loss.unwrap().cause(), LossCause::DeadlinePassed);
    blocked.end(&server).await;
}
