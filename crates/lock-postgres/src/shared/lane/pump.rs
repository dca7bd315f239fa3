//! Runs a lane on whatever thread has a reason to: the one that orders something, so that an idle lane sends at once and without a
//! change of threads; the runtime of those who order, when an answer is there; and the shared session's own thread, which is woken by
//! time and by nothing that an application could block.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering, fence},
    },
    time::{Duration, Instant},
};

use tokio::{
    runtime::{self, Handle},
    sync::Notify,
    time::sleep,
};

use tokio_util::sync::CancellationToken;

use super::{
    alarm::Alarm,
    parts::{DRIVING, Part, Running, Signals, WORK},
};
use crate::connect::{Readiness, SocketHandle};

/// How often our own thread looks after a lane that owns or awaits something, whoever else attends it.
const LOOK: Duration = Duration::from_millis(100);

/// How much later than the alarm it may wake.
const PUNCTUAL: Duration = Duration::from_millis(1);

pub(super) struct Pump {
    /// `None` once it has ended.
    running: Mutex<Option<Running>>,
    signals: Arc<Signals>,
    socket: SocketHandle,
    alarm: Arc<Alarm>,
    /// Until when our own thread sleeps.
    sleeps: Mutex<Instant>,
    /// It sleeps until the alarm, however long that is.
    dozes: AtomicBool,
    over: CancellationToken,
    attended: Mutex<Attended>,
    /// Some runtime waits for answers. Changed under the lock.
    is_attended: AtomicBool,
}

/// Which runtime waits for answers, beside our own thread.
#[derive(Default)]
struct Attended {
    by: Option<Arc<Notify>>,
    /// One that cannot.
    unfit: Option<runtime::Id>,
}

impl Pump {
    /// `work` asks the connection that `driving` polls. They must wait for nothing but the socket, the alarm, and what wakes them by
    /// itself.
    pub(super) fn start(
        work: impl Future<Output = ()> + Send + 'static,
        driving: impl Future<Output = ()> + Send + 'static,
        socket: SocketHandle,
        alarm: Arc<Alarm>,
    ) -> Arc<Self> {
        socket.go_direct();
        let signals = Arc::<Signals>::default();
        let pump = Arc::new(Self {
            running: Mutex::new(Some(Running {
                work: Part::new(work, WORK, &signals),
                driving: Part::new(driving, DRIVING, &signals),
            })),
            signals,
            socket,
            sleeps: Mutex::new(alarm.next()),
            alarm,
            dozes: AtomicBool::new(false),
            over: CancellationToken::new(),
            attended: Mutex::default(),
            is_attended: AtomicBool::new(false),
        });
        tokio::spawn(Guardian(Arc::clone(&pump)).guard());
        pump
    }

    /// Lets the lane see at once what it was told, unless it is full and that can wait for the next answer.
    pub(super) fn told(self: &Arc<Self>, can_wait: bool) {
        if !(can_wait && self.alarm.is_full()) {
            self.poll(WORK);
        }
    }

    /// Polls what is to be polled, or has whoever polls do so.
    fn poll(self: &Arc<Self>, what: u8) {
        loop {
            if let Some(turn) = Turn::take(self) {
                return turn.poll(what);
            }
            if self.signals.add_for_whoever_polls(what) {
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

    pub(super) fn is_over(&self) -> bool {
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
        self.signals.bell.notify_one();
    }

    /// Has the current runtime wait for answers, unless another one does.
    pub(super) fn attend(self: &Arc<Self>, own: &Handle) {
        if self.is_attended() {
            return;
        }
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
        self.is_attended.store(true, Ordering::Release);
        drop(attended);
        here.spawn(Attendant { pump: Arc::clone(self), of: here.id(), dismissed, fit: false }.attend());
        // Two would be one too many.
        self.signals.bell.notify_one();
    }

    /// Our own thread takes over.
    fn dismiss(&self) {
        let mut attended = self.attended();
        self.is_attended.store(false, Ordering::Release);
        if let Some(dismissed) = attended.by.take() {
            dismissed.notify_one();
        }
    }

    fn is_attended(&self) -> bool {
        self.is_attended.load(Ordering::Acquire)
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
        // Made only if it was taken, since its drop gives it back.
        pump.signals.take_turn().then(|| Self { pump, is_over: false })
    }

    fn poll(mut self, what: u8) {
        let pump = self.pump;
        let mut what = what;
        loop {
            let mut running = pump.running();
            let Some(parts) = running.as_mut() else { break };
            if parts.is_over(what) {
                drop(running);
                pump.end();
                break;
            }
            drop(running);
            if pump.signals.leave() {
                self.is_over = true;
                break;
            }
            what = pump.signals.take();
        }
        // Either we see until when it sleeps, or it sees the new alarm.
        fence(Ordering::SeqCst);
        let sooner = pump.alarm.next() + PUNCTUAL < *pump.sleeps();
        // Who waits for the socket does not know yet that it is full.
        if sooner || pump.socket.is_full() || (pump.alarm.is_busy() && pump.dozes.load(Ordering::SeqCst)) {
            pump.signals.bell.notify_one();
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
        self.pump.signals.clear();
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
                () = pump.signals.bell.notified() => {}
                () = ready_to_poll(&ready) => {}
                () = sleep(pause) => {}
            }
            pump.dozes.store(false, Ordering::SeqCst);
            let read_by_others = pump.alarm.answers() != answers;
            pump.socket.look();
            pump.poll(DRIVING | WORK);
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
        let mut dismissed = pin!(self.dismissed.notified());
        while !self.pump.is_over() {
            tokio::select! {
                biased;
                () = &mut dismissed => return,
                () = ready.ready() => self.pump.poll(DRIVING),
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
            self.pump.is_attended.store(false, Ordering::Release);
        }
        drop(attended);
        self.pump.signals.bell.notify_one();
    }
}

/// Without a readiness it never completes. Cancel safe.
async fn ready_to_poll(readiness: &Option<Readiness>) {
    match readiness {
        Some(readiness) => readiness.ready().await,
        None => std::future::pending().await,
    }
}
