//! The machine with a clock, a lock, and those who watch it; and the permits that tell it how calls ended, however they end.

use std::{
    future::Future,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::watch;

use super::{
    BreakerConfig, BreakerCounts, BreakerState, BreakerWatch, log,
    machine::{Admission, Generation, Machine},
    measured,
    outcome::Outcome,
};
use crate::{
    Clock, Error, ErrorKind, Result,
    answered::Asked,
    telemetry::{Metric, Telemetry},
};

#[derive(Debug)]
pub(super) struct Gate {
    /// What it stands before, for the log.
    name: String,
    clock: Box<dyn Clock>,
    inside: Mutex<Inside>,
    /// The machine's generation while answers count for something, else [`NONE`]: asked at the start of every release. Changed under the
    /// lock.
    observing: AtomicU64,
    states: watch::Sender<BreakerState>,
}

const NONE: u64 = u64::MAX;

#[derive(Debug)]
struct Inside {
    machine: Machine,
    telemetry: Telemetry,
}

/// What a call that was let in carries.
#[derive(Debug)]
pub(super) enum Admitted {
    /// The call's own permit, and one for a ping beside it where that is due.
    Pass(Permit, Option<Ping>),
    /// The store is to be pinged first.
    Probe(Ping),
}

impl Gate {
    pub(super) fn new(name: String, config: BreakerConfig, clock: impl Clock) -> Self {
        let seed = RandomState::new().hash_one(());
        let machine = Machine::new(config, seed, clock.now());
        let observing = AtomicU64::new(machine.observing().map_or(NONE, Generation::number));
        let inside = Mutex::new(Inside { machine, telemetry: Telemetry::OFF });
        Self { name, clock: Box::new(clock), inside, observing, states: watch::Sender::new(BreakerState::Closed) }
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn state(&self) -> BreakerState {
        *self.states.borrow()
    }

    pub(super) fn watch(&self) -> BreakerWatch {
        BreakerWatch::new(self.states.subscribe())
    }

    pub(super) fn counts(&self) -> BreakerCounts {
        self.inside().machine.counts()
    }

    pub(super) fn set_telemetry(&self, telemetry: Telemetry) {
        let mut inside = self.inside();
        inside.telemetry = telemetry.for_backend(&self.name);
        measured::state(&inside.telemetry, inside.machine.state());
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, input: impl FnOnce(&mut Machine, &dyn Fn() -> Instant) -> T) -> T {
        let mut inside = self.inside();
        // Read under the lock, so that the machine sees no time go back, and only if it asks.
        let output = input(&mut inside.machine, &|| self.clock.now());
        let change = inside.machine.take_change();
        if change.is_some() {
            // Under the lock, so that changes are seen in their order.
            let state = inside.machine.state();
            self.observing.store(inside.machine.observing().map_or(NONE, Generation::number), Ordering::Release);
            self.states.send_replace(state);
            measured::change(&inside.telemetry, state);
        }
        drop(inside);
        if let Some(change) = change {
            log::log(&self.name, &change);
        }
        output
    }

    /// Leave to ask the store.
    ///
    /// # Errors
    /// `CircuitOpen`, with the time after which it makes sense to try again.
    pub(super) fn admit(self: &Arc<Self>) -> Result<Admitted> {
        let (admission, number) = self.with(|machine, now| (machine.admit(now), machine.ping_number()));
        let ping = |generation| Ping { gate: Arc::clone(self), generation, number, well: None };
        match admission {
            Admission::Pass { generation, ping: due } => {
                let permit =
                    Permit { gate: Arc::clone(self), generation, asked: Asked::new(), settled: AtomicBool::new(false) };
                Ok(Admitted::Pass(permit, due.then(|| ping(generation))))
            }
            Admission::Probe { generation } => Ok(Admitted::Probe(ping(generation))),
            Admission::Refused { retry_after } => {
                let message =
                    format!("the circuit breaker is open and did not ask the store; try again in {retry_after:.1?}");
                Err(self.refused(message, retry_after))
            }
        }
    }

    /// Of a call whose probe ended before its time. The next call begins another.
    pub(super) fn cut_short(&self) -> Error {
        self.inside().machine.count_refused();
        self.refused("the probe of the circuit breaker was cut short".to_owned(), Duration::from_millis(1))
    }

    fn refused(&self, message: String, retry_after: Duration) -> Error {
        let telemetry = self.inside().telemetry.clone();
        telemetry.count(Metric::BreakerRefusals, &[]);
        Error::new(ErrorKind::CircuitOpen, message).with_retry_after(retry_after)
    }

    /// To be had before a call that is not gated; none where its answer will count for nothing.
    pub(super) fn observe(&self) -> Option<Generation> {
        Some(self.observing.load(Ordering::Acquire)).filter(|number| *number != NONE).map(Generation::from_number)
    }

    /// How a call went that began in this generation.
    pub(super) fn tell(&self, generation: Generation, outcome: Outcome) {
        self.with(|machine, now| machine.settle(generation, outcome, now()));
    }
}

/// A call that was let in. Counts once: by its outcome, or as dropped.
#[derive(Debug)]
pub(super) struct Permit {
    gate: Arc<Gate>,
    generation: Generation,
    asked: Arc<Asked>,
    settled: AtomicBool,
}

impl Permit {
    /// Makes the call, listening whether the store answers.
    pub(super) fn during<F: Future>(&self, call: F) -> impl Future<Output = F::Output> + use<F> {
        self.asked.during(call)
    }

    pub(super) fn is_answered(&self) -> bool {
        self.asked.is_answered()
    }

    /// Whether this was the first to settle it.
    pub(super) fn settle(&self, outcome: Outcome) -> bool {
        let first = !self.settled.swap(true, Ordering::Relaxed);
        if first {
            self.tell(outcome);
        }
        first
    }

    /// What comes after it was settled.
    pub(super) fn tell(&self, outcome: Outcome) {
        self.gate.tell(self.generation, outcome);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.settle(Outcome::of_dropped(self.is_answered()));
    }
}

/// The right to the one ping. Dropped, it is given back, with what the ping said if it said something.
#[derive(Debug)]
pub(super) struct Ping {
    gate: Arc<Gate>,
    generation: Generation,
    number: u64,
    well: Option<bool>,
}

impl Ping {
    pub(super) fn judge(mut self, well: bool) {
        self.well = Some(well);
    }
}

impl Drop for Ping {
    fn drop(&mut self) {
        self.gate.with(|machine, now| {
            // One that was given up says nothing any more.
            if machine.ping_number() == self.number {
                machine.pinged(self.generation, self.well, now());
            }
        });
    }
}

/// What is gone is not open.
impl Drop for Gate {
    fn drop(&mut self) {
        let inside = self.inside.get_mut().unwrap_or_else(PoisonError::into_inner);
        if inside.machine.state() != BreakerState::Closed {
            measured::state(&inside.telemetry, BreakerState::Closed);
        }
    }
}
