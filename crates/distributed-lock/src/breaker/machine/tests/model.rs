//! What a breaker is to do, told as simply as possible: a list of everything that was seen, looked through anew each time.

use std::time::{Duration, Instant};

use crate::breaker::{BreakerConfig, BreakerState, outcome::Outcome};

#[derive(Debug)]
pub(super) struct Model {
    config: BreakerConfig,
    state: State,
    /// How often the state changed.
    pub(super) age: u64,
    openings: u32,
    /// Until when it may take.
    pinging: Option<Instant>,
}

#[derive(Debug)]
enum State {
    Closed { since: Instant, seen: Vec<(Instant, Outcome)> },
    HalfOpen,
    Open { until: Instant },
}

/// What a call is to be told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Told {
    Pass { ping: bool },
    Probe,
    Refused,
}

/// A ping that is later than this is given up.
const OVERDUE: Duration = Duration::from_secs(1);

const WINDOW: Duration = Duration::from_secs(10);

impl Model {
    pub(super) fn new(config: BreakerConfig, now: Instant) -> Self {
        let state = State::Closed { since: now, seen: Vec::new() };
        Self { config, state, age: 0, openings: 0, pinging: None }
    }

    pub(super) fn state(&self) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::HalfOpen => BreakerState::HalfOpen,
            State::Open { .. } => BreakerState::Open,
        }
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.age += 1;
    }

    fn heard_within(seen: &[(Instant, Outcome)], now: Instant, time: Duration) -> bool {
        let is_answer = |outcome: &Outcome| matches!(outcome, Outcome::Answered | Outcome::Success);
        seen.iter().any(|(at, outcome)| is_answer(outcome) && now.duration_since(*at) < time)
    }

    /// Those of the last ten seconds, by whole seconds.
    fn recent(since: Instant, seen: &[(Instant, Outcome)], now: Instant) -> impl Fn(Outcome) -> u64 + use<> {
        let second = move |at: Instant| at.duration_since(since).as_secs();
        let recent: Vec<_> = seen.iter().filter(|(at, _)| second(now) - second(*at) < 10).map(|seen| seen.1).collect();
        move |wanted| recent.iter().filter(|outcome| **outcome == wanted).count() as u64
    }

    /// `opened` as in [`settle`](Self::settle).
    pub(super) fn admit(&mut self, now: Instant, opened: Option<Duration>) -> Result<Told, String> {
        if self.pinging.is_some_and(|until| now >= until + OVERDUE) {
            self.pinging = None;
            if self.state() == BreakerState::HalfOpen {
                self.open(now, opened)?;
            }
        }
        let pinging = self.pinging;
        let told = match &self.state {
            State::Closed { since, seen } => {
                let silent = Self::recent(*since, seen, now)(Outcome::Silent);
                // The answer that closed it is one.
                let closed_by = self.age > 0 && now.duration_since(*since) < WINDOW / 2;
                let heard = closed_by || Self::heard_within(seen, now, WINDOW / 2);
                Told::Pass { ping: silent > 0 && !heard && pinging.is_none() }
            }
            State::Open { until } if now < *until => Told::Refused,
            State::Open { .. } | State::HalfOpen if pinging.is_some() => Told::Refused,
            _ => {
                if self.state() == BreakerState::Open {
                    self.enter(State::HalfOpen);
                }
                Told::Probe
            }
        };
        if matches!(told, Told::Pass { ping: true } | Told::Probe) {
            self.pinging = Some(now + self.config.probe_timeout);
        }
        Ok(told)
    }

    /// `opened` is how long the machine says it opened for, if it did.
    pub(super) fn settle(
        &mut self,
        age: u64,
        outcome: Outcome,
        now: Instant,
        opened: Option<Duration>,
    ) -> Result<(), String> {
        let State::Closed { since, seen } = &mut self.state else { return unopened(opened) };
        if age != self.age {
            return unopened(opened);
        }
        seen.push((now, outcome));
        let count = Self::recent(*since, seen, now);
        let closed_by = self.age > 0 && now.duration_since(*since) < WINDOW;
        let heard = closed_by || Self::heard_within(seen, now, WINDOW);
        let failures = count(Outcome::Failure) + if heard { 0 } else { count(Outcome::Silent) };
        let samples = failures + count(Outcome::Success);
        let went_wrong = matches!(outcome, Outcome::Failure | Outcome::Silent);
        let share = failures as f64 / samples.max(1) as f64;
        let enough = samples >= u64::from(self.config.min_samples);
        if went_wrong && enough && share >= f64::from(self.config.error_rate) / 100.0 {
            if now.duration_since(*since) >= WINDOW {
                self.openings = 0;
            }
            return self.open(now, opened);
        }
        unopened(opened)
    }

    pub(super) fn pinged(
        &mut self,
        age: u64,
        well: Option<bool>,
        now: Instant,
        opened: Option<Duration>,
    ) -> Result<(), String> {
        self.pinging = None;
        if age != self.age {
            return unopened(opened);
        }
        match (&mut self.state, well) {
            (State::Closed { .. }, Some(false)) => self.settle(age, Outcome::Failure, now, opened),
            (State::Closed { seen, .. }, Some(true)) => {
                seen.push((now, Outcome::Answered));
                unopened(opened)
            }
            (State::HalfOpen, Some(true)) => {
                self.enter(State::Closed { since: now, seen: Vec::new() });
                unopened(opened)
            }
            (State::HalfOpen, Some(false)) => self.open(now, opened),
            _ => unopened(opened),
        }
    }

    fn open(&mut self, now: Instant, opened: Option<Duration>) -> Result<(), String> {
        let Some(time) = opened else { return Err("it did not open".into()) };
        let BreakerConfig { open_time, max_open_time, .. } = self.config;
        let full = (0..self.openings).fold(open_time, |time, _| (time * 2).min(max_open_time)).min(max_open_time);
        if time < full / 2 || time > full {
            return Err(format!("open for {time:?} of {full:?}"));
        }
        self.openings += 1;
        self.enter(State::Open { until: now + time });
        Ok(())
    }

    /// How long until it is due, if it is open.
    pub(super) fn until(&self) -> Option<Instant> {
        match self.state {
            State::Open { until } => Some(until),
            _ => None,
        }
    }
}

fn unopened(opened: Option<Duration>) -> Result<(), String> {
    opened.map_or(Ok(()), |time| Err(format!("it opened for {time:?}")))
}
