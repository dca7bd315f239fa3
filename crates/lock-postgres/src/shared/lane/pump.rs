//! Runs a lane on whatever thread has a reason to: the one that orders something, so that an idle lane sends at once and without a
//! change of threads; the runtime of those who order, when an answer is there; and the shared session's own thread, which is woken by
//! time and by nothing that an application could block.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering, fence},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use tokio::{
    runtime::{self, Handle},
    sync::Notify,
    time::sleep,
};

use tokio_util::sync::CancellationToken;

use super::alarm::Alarm;
use crate::connect::{Readiness, SocketHandle};

/// How often our own thread looks after a lane that owns or awaits something, whoever else attends it.
const LOOK: Duration = Duration::from_millis(100);

/// How much later than the alarm it may wake.
const PUNCTUAL: Duration = Duration::from_millis(1);

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The states of [`Pump::state`].
const AT_REST: u8 = 0;
/// Somebody polls the lane.
const POLLED: u8 = 1;
/// And is to do it once more.
const ONCE_MORE: u8 = 2;

pub(super) struct Pump {
    /// `None` once it has ended.
    running: Mutex<Option<Running>>,
    state: AtomicU8,
    socket: SocketHandle,
    alarm: Arc<Alarm>,
    /// Wakes our own thread.
    bell: Notify,
    /// Until when it sleeps.
    sleeps: Mutex<Instant>,
    /// It sleeps until the alarm, however long that is.
    dozes: AtomicBool,
    over: CancellationToken,
    attended: Mutex<Attended>,
}

/// Which runtime waits for answers, beside our own thread.
#[derive(Default)]
struct Attended {
    by: Option<Arc<Notify>>,
    /// One that cannot.
    unfit: Option<runtime::Id>,
}

impl Pump {
    /// `running` must wait for nothing but the socket, the alarm, and what wakes it by itself.
    pub(super) fn start(
        running: impl Future<Output = ()> + Send + 'static,
        socket: SocketHandle,
        alarm: Arc<Alarm>,
    ) -> Arc<Self> {
        socket.go_direct();
        let pump = Arc::new(Self {
            // Its turns are ours, and not those of the task on whose thread it happens to run.
            running: Mutex::new(Some(Box::pin(tokio::task::unconstrained(running)))),
            state: AtomicU8::new(AT_REST),
            socket,
            sleeps: Mutex::new(alarm.next()),
            alarm,
            bell: Notify::new(),
            dozes: AtomicBool::new(false),
            over: CancellationToken::new(),
            attended: Mutex::default(),
        });
        tokio::spawn(Guardian(Arc::clone(&pump)).guard());
        pump
    }

    /// Does something that the lane is to see, and lets it see it at once.
    pub(super) fn tell<T>(self: &Arc<Self>, what: impl FnOnce() -> T) -> T {
        let turn = Turn::take(self);
        let told = what();
        match turn {
            // Whoever has the next answer sees it. Nobody polls while we have the turn, so it is full still.
            Some(turn) if self.alarm.is_full() => turn.leave(),
            Some(turn) => turn.poll(),
            None => self.poll(),
        }
        told
    }

    /// Polls it, or has whoever does so do it once more.
    fn poll(self: &Arc<Self>) {
        loop {
            if let Some(turn) = Turn::take(self) {
                return turn.poll();
            }
            if self.state.compare_exchange(POLLED, ONCE_MORE, Ordering::AcqRel, Ordering::Acquire) != Err(AT_REST) {
                return;
            }
        }
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleeps(&self) -> MutexGuard<'_, Instant> {
        self.sleeps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attended(&self) -> MutexGuard<'_, Attended> {
        self.attended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Completes when the lane has ended, and its connection with it.
    pub(super) async fn ended(&self) {
        self.over.cancelled().await;
    }

    fn end(&self) {
        let running = self.running().take();
        drop(running);
        self.over.cancel();
        self.dismiss();
        self.bell.notify_one();
    }

    /// Has the current runtime wait for answers, unless another one does.
    pub(super) fn attend(self: &Arc<Self>, own: &Handle) {
        let mut attended = self.attended();
        if attended.by.is_some() {
            return;
        }
        let Ok(here) = Handle::try_current() else { return };
        if here.id() == own.id() || attended.unfit == Some(here.id()) {
            return;
        }
        let dismissed = Arc::new(Notify::new());
        attended.by = Some(Arc::clone(&dismissed));
        drop(attended);
        here.spawn(Attendant { pump: Arc::clone(self), of: here.id(), dismissed, fit: false }.attend());
        // Two would be one too many.
        self.bell.notify_one();
    }

    /// Our own thread takes over.
    fn dismiss(&self) {
        if let Some(dismissed) = self.attended().by.take() {
            dismissed.notify_one();
        }
    }

    fn is_attended(&self) -> bool {
        self.attended().by.is_some()
    }
}

/// Woken while somebody polls, it is polled once more; else our own thread does it.
impl Wake for Pump {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match self.state.compare_exchange(POLLED, ONCE_MORE, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(ONCE_MORE) => {}
            Err(_) => self.bell.notify_one(),
        }
    }
}

/// The right to poll. Dropped in a panic, it ends the lane.
struct Turn<'a> {
    pump: &'a Arc<Pump>,
    /// Somebody else may have it by now.
    is_over: bool,
}

impl<'a> Turn<'a> {
    fn take(pump: &'a Arc<Pump>) -> Option<Self> {
        let taken = pump.state.compare_exchange(AT_REST, POLLED, Ordering::AcqRel, Ordering::Acquire);
        // Made only if it was taken, since its drop gives it back.
        taken.is_ok().then(|| Self { pump, is_over: false })
    }

    /// Polls only if somebody asked for it meanwhile.
    fn leave(mut self) {
        match self.pump.state.compare_exchange(POLLED, AT_REST, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => self.is_over = true,
            Err(_) => self.poll(),
        }
    }

    fn poll(mut self) {
        let pump = self.pump;
        let waker = Waker::from(Arc::clone(pump));
        let mut cx = Context::from_waker(&waker);
        loop {
            let mut running = pump.running();
            let Some(future) = running.as_mut() else { break };
            pump.state.swap(POLLED, Ordering::AcqRel);
            if let Poll::Ready(()) = future.as_mut().poll(&mut cx) {
                drop(running);
                pump.end();
                break;
            }
            drop(running);
            if pump.state.compare_exchange(POLLED, AT_REST, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                self.is_over = true;
                break;
            }
        }
        // Either we see until when it sleeps, or it sees the new alarm.
        fence(Ordering::SeqCst);
        let sooner = pump.alarm.next() + PUNCTUAL < *pump.sleeps();
        // Who waits for the socket does not know yet that it is full.
        if sooner || pump.socket.is_full() || (pump.alarm.is_busy() && pump.dozes.load(Ordering::SeqCst)) {
            pump.bell.notify_one();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // It has ended, or panicked, or was never polled: then nothing was told.
        if std::thread::panicking() {
            self.pump.end();
        }
        self.pump.state.store(AT_REST, Ordering::Release);
    }
}

/// Our own thread at work. Dropped with its runtime, it ends the lane.
struct Guardian(Arc<Pump>);

impl Guardian {
    async fn guard(self) {
        let pump = &self.0;
        let mut ready = None;
        while !pump.is_over() {
            let attended = pump.is_attended();
            if attended {
                ready = None;
            } else if ready.is_none() {
                ready = pump.socket.readiness().ok();
            }
            let busy = pump.alarm.is_busy();
            pump.dozes.store(!busy, Ordering::SeqCst);
            // Asked again, since somebody may have seen us awake.
            let busy = busy || pump.alarm.is_busy();
            let alarm = pump.alarm.next();
            *pump.sleeps() = alarm;
            fence(Ordering::SeqCst);
            // Asked again, since somebody may have set it meanwhile and seen that we sleep for less.
            let until_alarm = pump.alarm.until(pump.alarm.next().min(alarm));
            let pause = if busy && (attended || ready.is_none()) { until_alarm.min(LOOK) } else { until_alarm };
            let answers = pump.alarm.answers();
            // All arms are cancel safe: the bell stays rung, readiness stays.
            tokio::select! {
                biased;
                () = pump.bell.notified() => {}
                () = ready_to_poll(&ready) => {}
                () = sleep(pause) => {}
            }
            pump.dozes.store(false, Ordering::SeqCst);
            let read_by_others = pump.alarm.answers() != answers;
            pump.socket.look();
            pump.poll();
            // What we found to read was there for whoever attends the lane as well.
            if attended && !read_by_others && pump.alarm.answers() != answers && pause >= LOOK {
                pump.dismiss();
            }
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A task of the application's runtime.
struct Attendant {
    pump: Arc<Pump>,
    of: runtime::Id,
    dismissed: Arc<Notify>,
    fit: bool,
}

impl Attendant {
    async fn attend(mut self) {
        // Panics on a runtime that cannot wait for sockets.
        let Ok(ready) = self.pump.socket.readiness() else { return };
        self.fit = true;
        let ready = Some(ready);
        while !self.pump.is_over() {
            tokio::select! {
                biased;
                () = self.dismissed.notified() => return,
                () = ready_to_poll(&ready) => self.pump.poll(),
            }
        }
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        let mut attended = self.pump.attended();
        if !self.fit {
            attended.unfit = Some(self.of);
        }
        if attended.by.as_ref().is_some_and(|by| Arc::ptr_eq(by, &self.dismissed)) {
            attended.by = None;
        }
        drop(attended);
        self.pump.bell.notify_one();
    }
}

/// Without a readiness it never completes. Cancel safe.
async fn ready_to_poll(readiness: &Option<Readiness>) {
    match readiness {
        Some(readiness) => readiness.ready().await,
        None => std::future::pending().await,
    }
}
