//! Two replicas, one store with a TTL, and a network that delays and loses: what the order of things is worth.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    super::{Action, At, Input, JobEnd, Reason, Rules, Stop},
    Random, catches, holds,
    subject::Subject,
};
use crate::{Clock, TokioClock, lease::timing::Timing};

/// What the world does to the replicas.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Weather {
    /// Answers that are slow, though in time.
    Slow,
    /// Partitions, freezes, and answers that are too slow.
    Rough,
    /// The store forgets its holder, once; partitions.
    Forgetful,
}

/// What the properties must catch here: faults of what surrounds the machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Defect {
    GraceNotInFormula,
    ProofFromReceive,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    // At the store.
    Acquire { attempt: u64, sent: u64 },
    Renew { id: u64, sent: u64 },
    Release { id: u64 },
    Forget,
    // At a replica.
    Granted { attempt: u64, id: u64, sent: u64 },
    Contended { attempt: u64 },
    Renewed { id: u64, sent: u64, ours: bool },
    SendRenewal { id: u64 },
    Look,
    JobEnds { term: u64 },
    Order(Input),
    // To a replica.
    Cut(bool),
    Freeze { until: u64 },
    Thaw,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    id: u64,
    expires: u64,
}

struct Replica {
    subject: Subject,
    cut: bool,
    frozen: Option<u64>,
    was_frozen: bool,
    attempt: u64,
    term: u64,
    hold: Option<Hold>,
}

struct Hold {
    id: u64,
    deadline: u64,
    told_lost: bool,
    told_near: bool,
}

struct World {
    random: Random,
    weather: Weather,
    defect: Option<Defect>,
    timing: Timing,
    rules: Rules,
    base: Instant,
    now: u64,
    /// By time, and among equals in the order in which they were sent; with the replica concerned.
    events: BTreeMap<(u64, u64), (usize, Event)>,
    serial: u64,
    held: Option<Held>,
    forgot_at: Option<u64>,
    replicas: Vec<Replica>,
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

impl World {
    fn new(seed: u64, weather: Weather, defect: Option<Defect>) -> Self {
        let mut random = Random::new(seed);
        let timing = loop {
            let (ttl, grace) = (random.between(1_000, 30_000), random.between(0, 15_000));
            let timing = match defect {
                Some(Defect::GraceNotInFormula) => Timing::checked_without_grace(ms(ttl), ms(grace)),
                _ => Timing::checked(ms(ttl), ms(grace), ms(1)).ok(),
            };
            if let Some(timing) = timing {
                break timing;
            }
        };
        let least = timing.detection() + timing.grace();
        let rules = Rules {
            patience: timing.patience(),
            grace: timing.grace(),
            retry: ms(random.between(50, 5_000)),
            max_term: random.one_in(4).then(|| ms(random.between(100, 60_000))),
            progress_deadline: None,
            takeover_delay: random.one_in(4).then(|| least + ms(random.between(0, 1_000))),
            queues: false,
        };
        let base = TokioClock.now();
        let replica = || Replica {
            subject: Subject::new(rules, base, None),
            cut: false,
            frozen: None,
            was_frozen: false,
            attempt: 0,
            term: 0,
            hold: None,
        };
        let replicas = vec![replica(), replica()];
        let (events, serial, held, forgot_at) = (BTreeMap::new(), 0, None, None);
        Self { random, weather, defect, timing, rules, base, now: 0, events, serial, held, forgot_at, replicas }
    }

    fn at(&mut self, time: u64, replica: usize, event: Event) {
        self.serial += 1;
        self.events.insert((time.max(self.now), self.serial), (replica, event));
    }

    fn instant(&self, time: u64) -> Instant {
        self.base + ms(time)
    }

    /// Over the network, one way: lost if the replica is cut off now; what arrives at a replica is lost if it is cut off then.
    fn send(&mut self, replica: usize, event: Event) {
        if self.replicas[replica].cut {
            return;
        }
        let answer = millis(self.timing.answer());
        let slowest = match self.weather {
            // A whole round trip of as long as it may take.
            Weather::Slow => answer / 2,
            Weather::Rough | Weather::Forgetful if self.random.one_in(3) => answer,
            Weather::Rough | Weather::Forgetful => 20.min(answer),
        };
        let delay = self.random.between(0, slowest);
        self.at(self.now + delay, replica, event);
    }

    fn plan(&mut self) {
        let end = 10 * millis(self.timing.ttl());
        for replica in 0..2 {
            self.replicas[replica].attempt = 1;
            self.send(replica, Event::Acquire { attempt: 1, sent: 0 });
            if self.random.one_in(4) {
                let order = if self.random.one_in(2) { Input::StepDown } else { Input::TakeOver };
                let time = self.random.between(0, end);
                self.at(time, replica, Event::Order(order));
            }
            self.at(end, replica, Event::Cut(false));
            self.at(end, replica, Event::Order(Input::Stop(Stop::Stop)));
        }
        if self.weather == Weather::Slow {
            return;
        }
        for _ in 0..self.random.between(1, 4) {
            let (time, replica) = (self.random.between(0, end), self.random.between(0, 1) as usize);
            let until = time + self.random.between(1, end / 3);
            if self.weather == Weather::Rough && self.random.one_in(2) {
                self.at(time, replica, Event::Freeze { until });
            } else {
                self.at(time, replica, Event::Cut(true));
                self.at(until, replica, Event::Cut(false));
            }
        }
        if self.weather == Weather::Forgetful {
            let time = self.random.between(0, end);
            self.at(time, 0, Event::Forget);
        }
    }

    fn run(mut self) -> Result<(), String> {
        self.plan();
        let end = 10 * millis(self.timing.ttl());
        while let Some(((time, _), (replica, event))) = self.events.pop_first() {
            self.pass(time)?;
            self.happen(replica, event)?;
            if self.replicas.iter().all(|replica| replica.subject.monitor.over.is_some()) {
                return Ok(());
            }
            // The longest freeze begins before the end.
            if self.now > 2 * end {
                break;
            }
        }
        Err("no exit after a stop".to_owned())
    }

    /// The time until the next event, in which the jobs work.
    fn pass(&mut self, time: u64) -> Result<(), String> {
        let works = |replica: &&Replica| replica.subject.monitor.job && replica.frozen.is_none();
        if time > self.now && self.replicas.iter().filter(works).count() > 1 {
            let bound = millis(self.timing.detection() + self.timing.grace());
            match self.forgot_at {
                Some(forgot) if self.rules.takeover_delay.is_none() && time - forgot <= bound => {}
                Some(forgot) => {
                    return Err(format!("two jobs at a time until {} ms after it was forgotten", time - forgot));
                }
                None => return Err(format!("two jobs at a time for {} ms", time - self.now)),
            }
        }
        self.now = time;
        Ok(())
    }

    fn happen(&mut self, replica: usize, event: Event) -> Result<(), String> {
        match event {
            Event::Acquire { attempt, sent } => {
                let free = self.held.is_none_or(|held| self.now >= held.expires);
                let answer = if free {
                    self.serial += 1;
                    let id = self.serial;
                    self.held = Some(Held { id, expires: self.now + millis(self.timing.ttl()) });
                    Event::Granted { attempt, id, sent }
                } else {
                    Event::Contended { attempt }
                };
                self.send(replica, answer);
            }
            Event::Renew { id, sent } => {
                let now = self.now;
                let ours = self.held.as_mut().filter(|held| held.id == id && now < held.expires);
                let answer = Event::Renewed { id, sent, ours: ours.is_some() };
                if let Some(held) = ours {
                    held.expires = now + millis(self.timing.ttl());
                }
                self.send(replica, answer);
            }
            Event::Release { id } => self.held = self.held.filter(|held| held.id != id),
            Event::Forget => {
                if self.held.take().is_some() {
                    self.forgot_at = Some(self.now);
                }
            }
            Event::Cut(cut) => self.replicas[replica].cut = cut,
            Event::Freeze { until } => {
                if self.replicas[replica].frozen.is_none() {
                    (self.replicas[replica].frozen, self.replicas[replica].was_frozen) = (Some(until), true);
                    self.at(until, replica, Event::Thaw);
                }
            }
            Event::Thaw => {
                let now = self.instant(self.now);
                let seen = &mut self.replicas[replica];
                seen.frozen = None;
                // Nobody drops anything while frozen; on waking up at once.
                seen.subject.monitor.limit = seen.subject.monitor.limit.map(|limit| limit.max(now));
                self.look_at_the_hold(replica)?;
            }
            event => match self.replicas[replica].frozen {
                Some(until) => self.at(until, replica, event),
                None => {
                    // As the driver does, before anything else is polled.
                    self.look_at_the_hold(replica)?;
                    self.perceive(replica, event)?;
                }
            },
        }
        Ok(())
    }

    fn perceive(&mut self, replica: usize, event: Event) -> Result<(), String> {
        let seen = &self.replicas[replica];
        let hold = seen.hold.as_ref().map(|hold| hold.id);
        match event {
            Event::Granted { .. } | Event::Contended { .. } | Event::Renewed { .. } if seen.cut => Ok(()),
            Event::Granted { attempt, id, .. } if attempt != seen.attempt || !seen.subject.monitor.asking => {
                self.send(replica, Event::Release { id });
                Ok(())
            }
            Event::Granted { id, sent, .. } => {
                let sent = self.believed(sent);
                let deadline = sent + millis(self.timing.room());
                self.replicas[replica].hold = Some(Hold { id, deadline, told_lost: false, told_near: false });
                self.at(sent + millis(self.timing.heartbeat()), replica, Event::SendRenewal { id });
                self.watch_the_hold(replica);
                self.step(replica, Input::Granted { proof: self.instant(sent) })
            }
            Event::Contended { attempt } if attempt == seen.attempt && seen.subject.monitor.asking => {
                let pause = self.rules.retry + ms(self.random.between(0, millis(self.rules.retry) / 5));
                self.step(replica, Input::Contended { pause })
            }
            Event::SendRenewal { id } if hold == Some(id) => {
                self.send(replica, Event::Renew { id, sent: self.now });
                Ok(())
            }
            Event::Renewed { id, sent, ours } if hold == Some(id) => self.renewed(replica, sent, ours),
            Event::Look => match self.replicas[replica].subject.wake_at() {
                Some(wake) if wake <= self.instant(self.now) => self.step(replica, Input::Time),
                _ => Ok(()),
            },
            Event::JobEnds { term } if term == seen.term && seen.subject.monitor.job => {
                let lost = seen.hold.as_ref().is_none_or(|hold| hold.told_lost);
                let end = if self.random.one_in(2) { JobEnd::Ok } else { JobEnd::Err };
                // A job that ends the run by itself would end the history early, so it mostly was told of a loss.
                let lost = lost || !self.random.one_in(8);
                self.step(replica, Input::JobEnded { end, lost })
            }
            Event::Order(order) => self.step(replica, order),
            _ => Ok(()),
        }
    }

    fn renewed(&mut self, replica: usize, sent: u64, ours: bool) -> Result<(), String> {
        let next = sent + millis(self.timing.heartbeat());
        let sent = self.believed(sent);
        let deadline = sent + millis(self.timing.room());
        let Some(hold) = self.replicas[replica].hold.as_mut().filter(|hold| !hold.told_lost) else { return Ok(()) };
        if !ours {
            hold.told_lost = true;
            return self.step(replica, Input::Lost { may_be_ours: false });
        }
        hold.deadline = hold.deadline.max(deadline);
        let id = hold.id;
        self.at(next, replica, Event::SendRenewal { id });
        self.watch_the_hold(replica);
        self.step(replica, Input::Confirmed { sent: self.instant(sent) })
    }

    fn believed(&self, sent: u64) -> u64 {
        if self.defect == Some(Defect::ProofFromReceive) { self.now } else { sent }
    }

    fn watch_the_hold(&mut self, replica: usize) {
        if let Some(Hold { deadline, .. }) = self.replicas[replica].hold {
            self.at(deadline.saturating_sub(millis(self.timing.grace())), replica, Event::Look);
            self.at(deadline, replica, Event::Look);
        }
    }

    fn look_at_the_hold(&mut self, replica: usize) -> Result<(), String> {
        let (now, grace) = (self.now, millis(self.timing.grace()));
        let Some(hold) = self.replicas[replica].hold.as_mut().filter(|hold| !hold.told_lost) else { return Ok(()) };
        if now >= hold.deadline {
            hold.told_lost = true;
            return self.step(replica, Input::Lost { may_be_ours: true });
        }
        if now + grace >= hold.deadline && !std::mem::replace(&mut hold.told_near, true) {
            return self.step(replica, Input::NearDeadline);
        }
        Ok(())
    }

    fn step(&mut self, replica: usize, input: Input) -> Result<(), String> {
        let left = self.replicas[replica].hold.as_ref().map(|hold| ms(hold.deadline.saturating_sub(self.now)));
        let at = At { now: self.instant(self.now), left };
        let action = self.replicas[replica].subject.step(at, input)?;
        self.obey(replica, action)?;
        if let Some(wake) = self.replicas[replica].subject.wake_at() {
            let wake = millis((wake + Duration::from_micros(999)).saturating_duration_since(self.base));
            self.at(wake, replica, Event::Look);
        }
        Ok(())
    }

    fn obey(&mut self, replica: usize, action: Action) -> Result<(), String> {
        let ttl = millis(self.timing.ttl());
        match action {
            Action::Wait | Action::Exit(_) => {}
            Action::Acquire { .. } => {
                self.replicas[replica].attempt += 1;
                let attempt = self.replicas[replica].attempt;
                self.send(replica, Event::Acquire { attempt, sent: self.now });
            }
            Action::Start => {
                self.replicas[replica].term += 1;
                if self.random.one_in(2) {
                    let (term, length) = (self.replicas[replica].term, self.random.between(0, 3 * ttl));
                    self.at(self.now + length, replica, Event::JobEnds { term });
                }
            }
            Action::Cancel(reason) => {
                if self.weather == Weather::Slow && matches!(reason, Reason::Lost | Reason::Unconfirmed) {
                    return Err(format!("a false loss: {reason:?}"));
                }
                if self.random.one_in(2) {
                    let (term, longest) = (self.replicas[replica].term, 3 * millis(self.timing.grace()) / 2);
                    let length = self.random.between(0, longest);
                    self.at(self.now + length, replica, Event::JobEnds { term });
                }
            }
            Action::Drop => {
                let seen = &self.replicas[replica];
                if let (Some((told, Reason::Unconfirmed)), false) = (seen.subject.monitor.told, seen.was_frozen) {
                    let given = self.instant(self.now) - told;
                    if given < self.timing.grace() {
                        return Err(format!("a grace cut short: {given:?} of {:?}", self.timing.grace()));
                    }
                }
                return self.step(replica, Input::JobEnded { end: JobEnd::Dropped, lost: false });
            }
            Action::Release => {
                if let Some(hold) = self.replicas[replica].hold.take() {
                    self.send(replica, Event::Release { id: hold.id });
                }
                return self.step(replica, Input::Released { lost: false });
            }
        }
        Ok(())
    }
}

fn check(seed: u64, weather: Weather, defect: Option<Defect>) -> Result<(), String> {
    World::new(seed, weather, defect).run()
}

#[test]
fn while_the_store_remembers_there_are_never_two_jobs_at_a_time() {
    holds(|seed| check(seed, Weather::Rough, None));
}

#[test]
fn answers_that_are_slow_but_in_time_are_no_loss() {
    holds(|seed| check(seed, Weather::Slow, None));
}

#[test]
fn if_the_store_forgets_two_jobs_overlap_by_the_printed_bound_and_with_the_delay_not_at_all() {
    holds(|seed| check(seed, Weather::Forgetful, None));
}

#[test]
fn a_deadline_from_the_receive_is_caught() {
    catches("two jobs at a time", |seed| check(seed, Weather::Rough, Some(Defect::ProofFromReceive)));
}

#[test]
fn a_grace_that_is_not_in_the_formula_is_caught() {
    // The job is told a grace before the deadline all the same: so early that an answer in time comes too late.
    catches("a false loss", |seed| check(seed, Weather::Slow, Some(Defect::GraceNotInFormula)));
}
