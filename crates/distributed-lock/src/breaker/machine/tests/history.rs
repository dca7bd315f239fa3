//! Random histories: the machine does what the model does, and a broken one is found.

use std::time::Instant;

use lock_testkit::requirement;

use super::{
    OUTCOMES,
    model::{Model, Told},
    ms,
    subject::{DEFECTS, Defect, Subject},
};
use crate::{
    breaker::{
        BreakerConfig, BreakerState,
        machine::{Admission, Change, Generation, Machine},
        outcome::Outcome,
    },
    random::Random,
};

struct History {
    random: Random,
    now: Instant,
    subject: Subject,
    model: Model,
    /// What is under way, with the age of the model when it began.
    calls: Vec<(Generation, u64)>,
    /// With its number.
    ping: Option<(Generation, u64, u64)>,
    seen: Vec<BreakerState>,
}

impl History {
    fn new(seed: u64, defect: Option<Defect>) -> Self {
        let mut random = Random::new(seed);
        let open_time = ms(random.between(1, 2_000));
        let config = BreakerConfig::new()
            .with_error_rate(random.between(1, 100) as u8)
            .with_min_samples(random.between(1, 8) as u32)
            .with_open_time(open_time)
            .with_max_open_time(open_time + ms(random.between(0, 20_000)))
            .with_probe_timeout(ms(random.between(1, 3_000)));
        let now = super::start();
        let subject = Subject::new(Machine::new(config.clone(), seed, now), defect, now);
        Self { random, now, subject, model: Model::new(config, now), calls: Vec::new(), ping: None, seen: Vec::new() }
    }

    fn step(&mut self) -> Result<(), String> {
        match self.random.between(0, 9) {
            0..=1 => self.pass_time(),
            2..=4 => self.admit()?,
            5..=7 if !self.calls.is_empty() => {
                let last = self.calls.len() as u64 - 1;
                // Some stay for long.
                let at = if self.random.one_in(3) { self.random.between(0, last) } else { last };
                let (generation, age) = self.calls.swap_remove(at as usize);
                let outcome = self.outcome();
                self.subject.settle(generation, outcome, self.now);
                let opened = self.opened();
                self.model.settle(age, outcome, self.now, opened).map_err(|why| format!("{outcome:?}: {why}"))?;
            }
            8 => {
                // One that was given up is not told, as by the gate.
                let number = self.subject.machine.ping_number();
                if let Some((generation, age, _)) = self.ping.take().filter(|ping| ping.2 == number) {
                    let well = [None, Some(false), Some(true)][self.random.between(0, 2) as usize];
                    self.subject.pinged(generation, well, self.now);
                    let opened = self.opened();
                    self.model.pinged(age, well, self.now, opened).map_err(|why| format!("ping {well:?}: {why}"))?;
                }
            }
            _ => return Ok(()),
        }
        let (machine, model) = (self.subject.machine.state(), self.model.state());
        self.seen.push(model);
        if machine == model { Ok(()) } else { Err(format!("{machine} instead of {model}")) }
    }

    /// By preference to where something happens.
    fn pass_time(&mut self) {
        let step = match self.random.between(0, 3) {
            0 => ms(self.random.between(0, 50)),
            1 => ms(self.random.between(0, 3_000)),
            2 => ms([5_000, 9_999, 10_000, 12_000][self.random.between(0, 3) as usize]),
            _ => self.model.until().map_or_else(|| ms(1), |until| until.saturating_duration_since(self.now)),
        };
        self.now += step;
    }

    fn outcome(&mut self) -> Outcome {
        let weighed = [Outcome::Failure, Outcome::Failure, Outcome::Silent, Outcome::Silent, Outcome::Success];
        match self.random.one_in(2) {
            true => OUTCOMES[self.random.between(0, 4) as usize],
            false => weighed[self.random.between(0, 4) as usize],
        }
    }

    fn admit(&mut self) -> Result<(), String> {
        let admission = self.subject.admit(self.now);
        let opened = self.opened();
        let wanted = self.model.admit(self.now, opened)?;
        let (told, generation) = match admission {
            Admission::Pass { generation, ping } => (Told::Pass { ping }, Some(generation)),
            Admission::Probe { generation } => (Told::Probe, Some(generation)),
            Admission::Refused { retry_after } if retry_after.is_zero() => return Err("refused for no time".into()),
            Admission::Refused { .. } => (Told::Refused, None),
        };
        if told != wanted {
            return Err(format!("told {told:?} instead of {wanted:?}"));
        }
        let begun = generation.map(|generation| (generation, self.model.age));
        if matches!(told, Told::Pass { ping: true } | Told::Probe) {
            let number = self.subject.machine.ping_number();
            self.ping = begun.map(|(generation, age)| (generation, age, number));
        }
        if matches!(told, Told::Pass { .. }) {
            self.calls.extend(begun);
        }
        Ok(())
    }

    fn opened(&mut self) -> Option<std::time::Duration> {
        match self.subject.take_change() {
            Some(Change::Opened { time, .. }) => Some(time),
            _ => None,
        }
    }
}

fn check(seed: u64, defect: Option<Defect>) -> Result<Vec<BreakerState>, String> {
    let mut history = History::new(seed, defect);
    for step in 0..300 {
        history.step().map_err(|why| format!("seed {seed}, step {step}: {why}"))?;
    }
    Ok(history.seen)
}

fn rounds() -> u64 {
    const ENOUGH: u64 = 2_000;
    requirement::rounds(ENOUGH).max(ENOUGH)
}

#[test]
fn every_history_goes_as_the_model_says() {
    let mut reached = [0_u64; 3];
    for seed in 0..rounds() {
        let seen = check(seed, None).unwrap_or_else(|why| panic!("{why}"));
        let states = [BreakerState::Closed, BreakerState::HalfOpen, BreakerState::Open];
        for (count, state) in reached.iter_mut().zip(states) {
            *count += seen.iter().filter(|seen| **seen == state).count() as u64;
        }
    }
    assert!(reached.iter().all(|count| *count > 10 * rounds()), "the histories reach every state: {reached:?}");
}

#[test]
fn every_broken_machine_is_found() {
    for defect in DEFECTS {
        assert!((0..rounds()).any(|seed| check(seed, Some(defect)).is_err()), "{defect:?} was not found");
    }
}
