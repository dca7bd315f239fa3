//! What is to be done for those who wait, and the task that does it.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use distributed_lock::ErrorKind;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Desk, Housekeeping, Sender};
use crate::{jitter::jittered, watchdog};

/// From one failure to open the session, or one request, to the next attempt: doubled each time, the first with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What is to be done.
#[derive(Debug, Default)]
pub(super) struct List {
    /// By ticket, in the order in which they came.
    wanted: BTreeMap<u64, Want>,
    tickets: u64,
    /// Somebody of this locker holds, or held, a lock and is to hear requests.
    listens: bool,
    /// A task does it.
    working: bool,
}

/// Somebody waits for this id in the server's queue.
#[derive(Clone, Copy, Debug)]
struct Want {
    id: i64,
    sender: Sender,
    /// Whether it also asks the holder to step down, and when next.
    request: Option<Request>,
}

/// Repeated after pauses that double, until the wait is over: the holder may not have been listening yet.
#[derive(Clone, Copy, Debug)]
struct Request {
    due: Instant,
    pause: Duration,
    /// The backend that was asked first, and nobody after it; `None` if nobody could be asked so far.
    asked: Option<i32>,
}

/// Watches over one wait while it lives.
#[derive(Debug)]
pub(crate) struct Wanted {
    desk: Arc<Desk>,
    ticket: u64,
    pub(crate) sender: Sender,
}

impl Drop for Wanted {
    fn drop(&mut self) {
        // The task finds out when it next wakes.
        self.desk.list().wanted.remove(&self.ticket);
    }
}

impl Housekeeping {
    /// Hears what is sent to us from now on, if the settings say so. Does not wait.
    pub(crate) fn listen(&self) {
        if self.0.listens_to.is_none() {
            return;
        }
        if !std::mem::replace(&mut self.0.list().listens, true) {
            self.0.bell.notify_one();
        }
        Desk::work(&self.0);
    }

    /// Watches over a wait for this id, and asks the holder to step down, until the answer is dropped. Does not wait.
    pub(crate) fn want(&self, id: i64, asks: bool) -> Wanted {
        let mut list = self.0.list();
        list.tickets += 1;
        let ticket = list.tickets;
        let rings = asks || list.wanted.is_empty();
        let request = asks.then(|| Request { due: Instant::now(), pause: FIRST_PAUSE, asked: None });
        let sender = Sender::fresh();
        list.wanted.insert(ticket, Want { id, sender, request });
        drop(list);
        if rings {
            self.0.bell.notify_one();
        }
        if self.0.watchdog || asks {
            Desk::work(&self.0);
        }
        Wanted { desk: Arc::clone(&self.0), ticket, sender }
    }
}

impl Desk {
    /// Has the list worked off, on our own thread unless somebody does it already.
    fn work(desk: &Arc<Self>) {
        if std::mem::replace(&mut desk.list().working, true) {
            return;
        }
        let mut work = Working { desk: Arc::clone(desk), done: false };
        match desk.home() {
            Ok(home) => drop(home.spawn(async move {
                let desk = Arc::clone(&work.desk);
                // Both arms are cancel safe.
                tokio::select! {
                    biased;
                    () = desk.over.cancelled() => {}
                    () = work.work_off() => {}
                }
            })),
            Err(error) if error.kind() == ErrorKind::Closed => {}
            Err(error) => {
                tracing::warn!(
                    target: "lock_postgres",
                    %error,
                    "nobody watches over waits, asks holders to step down or hears such requests for now"
                );
            }
        }
    }

    /// Those that want something, if there is anything to do at all. Otherwise the task is at its end.
    fn next(&self) -> Option<Vec<(u64, Want)>> {
        let mut list = self.list();
        list.working = list.listens || !list.wanted.is_empty();
        list.working.then(|| list.wanted.iter().map(|(ticket, want)| (*ticket, *want)).collect())
    }

    /// Asks holders on behalf of the waiters whose time it is.
    async fn ask_holders(self: &Arc<Self>, wants: &[(u64, Want)]) {
        let now = Instant::now();
        for (ticket, want) in wants {
            let Some(request) = want.request.filter(|request| request.due <= now) else { continue };
            let asked = self.request_step_down(want.id, want.sender, request.asked).await.unwrap_or_else(|error| {
                tracing::debug!(target: "lock_postgres", %error, "a holder could not be asked to step down");
                None
            });
            if let Some(want) = self.list().wanted.get_mut(ticket) {
                let pause = self.interval.min(request.pause * 2);
                want.request =
                    Some(Request { due: Instant::now() + request.pause, pause, asked: request.asked.or(asked) });
            }
        }
    }

    async fn watch(self: &Arc<Self>, wants: &[(u64, Want)]) {
        let mut ids: Vec<_> = wants.iter().map(|(_, want)| want.id).collect();
        ids.sort_unstable();
        ids.dedup();
        match watchdog::round(self, &ids).await {
            Ok(allowed) => {
                let was_allowed = !self.not_allowed.swap(!allowed, Ordering::Relaxed);
                if was_allowed && !allowed {
                    tracing::warn!(target: "lock_postgres", "the watchdog may not see or end the sessions of a holder");
                }
            }
            Err(error) => tracing::debug!(target: "lock_postgres", %error, "the watchdog could not look"),
        }
    }
}

/// The task at work. Dropped, as without a runtime, it lets the next one begin.
struct Working {
    desk: Arc<Desk>,
    /// The list says so already.
    done: bool,
}

impl Drop for Working {
    fn drop(&mut self) {
        if !self.done {
            self.desk.list().working = false;
        }
    }
}

impl Working {
    async fn work_off(&mut self) {
        let desk = Arc::clone(&self.desk);
        let mut round = None;
        let mut failures = 0;
        while let Some(wants) = desk.next() {
            let due = wants.iter().filter_map(|(_, want)| want.request).map(|request| request.due).min();
            if due.is_some_and(|due| due <= Instant::now()) {
                desk.ask_holders(&wants).await;
                continue;
            }
            // Short waits need no session.
            let first = || Instant::now() + watchdog::SHORTEST_ROUND.max(jittered(desk.interval));
            round = (desk.watchdog && !wants.is_empty()).then(|| round.unwrap_or_else(first));
            let wakes = due.into_iter().chain(round).min();
            let listens = desk.list().listens;
            // All arms are cancel safe: the bell stays rung, the end of the session is kept.
            tokio::select! {
                biased;
                () = desk.bell.notified() => {}
                () = sleep_until(wakes.unwrap_or_else(Instant::now)), if wakes.is_some() => {
                    if round.is_some_and(|round| round <= Instant::now()) {
                        round = None;
                        desk.watch(&wants).await;
                    }
                }
                () = desk.lost(failures), if listens => {
                    match desk.reach().await {
                        Ok(_) => failures = 0,
                        Err(error) => {
                            failures += 1;
                            tracing::warn!(target: "lock_postgres", %error, failures, "what others send is not heard for now");
                        }
                    }
                }
            }
        }
        self.done = true;
    }
}

impl Desk {
    /// Completes when the session is to be opened: at once, or after a pause if that has failed so often before. Cancel safe, but
    /// the pause begins anew.
    async fn lost(&self, failures: u32) {
        match self.current() {
            Some(session) => session.ended.cancelled().await,
            None if failures == 0 => {}
            None => sleep(jittered(LONGEST_PAUSE.min(FIRST_PAUSE * 2_u32.saturating_pow(failures.min(10) - 1)))).await,
        }
    }
}
