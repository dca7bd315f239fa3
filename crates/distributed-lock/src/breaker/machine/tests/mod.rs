//! The machine: its table of states and inputs, its times, and random histories against a model.

mod history;
mod model;
mod subject;
mod table;
mod times;

use std::time::{Duration, Instant};

use super::{Admission, Change, Generation, Machine};
use crate::{
    Clock, TokioClock,
    breaker::{BreakerConfig, outcome::Outcome},
};

const OUTCOMES: [Outcome; 5] =
    [Outcome::Answered, Outcome::Failure, Outcome::Silent, Outcome::Success, Outcome::Unasked];

/// Two calls decide, so that the first never does.
fn config() -> BreakerConfig {
    BreakerConfig::new().with_min_samples(2)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn start() -> Instant {
    TokioClock.now()
}

fn pass(machine: &mut Machine, now: Instant) -> Generation {
    match machine.admit(&|| now) {
        Admission::Pass { generation, .. } => generation,
        other => panic!("not let in: {other:?}"),
    }
}

fn probe(machine: &mut Machine, now: Instant) -> Generation {
    match machine.admit(&|| now) {
        Admission::Probe { generation } => generation,
        other => panic!("no probe: {other:?}"),
    }
}

/// Opens it, and says for how long.
fn open(machine: &mut Machine, now: Instant) -> Duration {
    for _ in 0..machine.config.min_samples {
        let generation = pass(machine, now);
        machine.settle(generation, Outcome::Failure, now);
    }
    opened(machine)
}

fn opened(machine: &mut Machine) -> Duration {
    match machine.take_change() {
        Some(Change::Opened { time, .. }) => time,
        other => panic!("not opened: {other:?}"),
    }
}
