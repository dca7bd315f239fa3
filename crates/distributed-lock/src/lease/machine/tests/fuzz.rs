//! One machine, and every sequence of inputs that a driver can bring about, sense or not.

use std::time::{Duration, Instant};

use super::{
    super::{Action, At, Exit, Input, JobEnd, Patience, Rules, Stop},
    Random, catches, holds,
    subject::{Defect, Subject},
};
use crate::{Clock, TokioClock};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

struct Fuzz {
    random: Random,
    rules: Rules,
    subject: Subject,
    now: Instant,
    deadline: Option<Instant>,
    action: Action,
}

impl Fuzz {
    fn new(seed: u64, defect: Option<Defect>) -> Self {
        let mut random = Random::new(seed);
        let some = |random: &mut Random| random.one_in(2).then(|| ms(random.between(1, 300)));
        let rules = Rules {
            patience: Patience { heartbeat: ms(random.between(5, 100)), answer: ms(random.between(5, 100)) },
            grace: ms(random.between(0, 100)),
            retry: ms(random.between(1, 100)),
            max_term: some(&mut random),
            progress_deadline: some(&mut random),
            takeover_delay: some(&mut random),
            queues: random.one_in(2),
        };
        let now = TokioClock.now();
        let subject = Subject::new(rules, now, defect);
        Self { random, rules, subject, now, deadline: None, action: Action::Acquire { ask: false } }
    }

    fn step(&mut self, input: Input) -> Result<(), String> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(self.now));
        self.action = self.subject.step(At { now: self.now, left }, input)?;
        self.obey()
    }

    /// What the driver does by itself.
    fn obey(&mut self) -> Result<(), String> {
        match self.action {
            Action::Drop => self.step(Input::JobEnded { end: JobEnd::Dropped, lost: false }),
            Action::Release => {
                self.deadline = None;
                self.now += ms(self.random.between(0, 20));
                let lost = self.random.one_in(4);
                self.step(Input::Released { lost })
            }
            _ => Ok(()),
        }
    }

    /// Lets time pass, though not past the time at which the machine wants to be woken.
    fn pass(&mut self) -> Result<(), String> {
        let to = self.now + ms(self.random.between(0, 60));
        match self.subject.wake_at().filter(|wake| *wake <= to) {
            Some(wake) => {
                self.now = self.now.max(wake);
                self.step(Input::Time)
            }
            None => {
                self.now = to;
                Ok(())
            }
        }
    }

    fn disturb(&mut self) -> Result<(), String> {
        let pause = ms(self.random.between(1, 100));
        let stop = if self.random.one_in(2) { Stop::Stop } else { Stop::Close };
        let (asking, held, job) = (self.subject.monitor.asking, self.subject.monitor.held, self.subject.monitor.job);
        let input = match self.random.between(0, 15) {
            0..=3 if asking => {
                self.deadline = (!self.random.one_in(4)).then(|| self.now + ms(self.random.between(0, 400)));
                Input::Granted { proof: self.now - ms(self.random.between(0, 30)) }
            }
            13 if asking => Input::Contended { pause },
            12 if asking => Input::Failed { pause, last: self.random.one_in(20) },
            0..=2 if held => {
                self.deadline = self.deadline.map(|deadline| deadline + pause);
                Input::Confirmed { sent: self.now - ms(self.random.between(0, 20)) }
            }
            3 if held => Input::Lost { may_be_ours: self.random.one_in(2) },
            4 if held => Input::NearDeadline,
            5..=6 if job => {
                let end = [JobEnd::Ok, JobEnd::Err, JobEnd::Panic][self.random.between(0, 2) as usize];
                Input::JobEnded { end, lost: self.random.one_in(4) }
            }
            7 if job => Input::Progress { at: self.now },
            8 => Input::StepDown,
            9 => Input::TakeOver,
            10 if self.random.one_in(4) => Input::Stop(stop),
            11 => Input::Time,
            _ => return Ok(()),
        };
        self.step(input)
    }

    /// Told to end, with a job that hears nothing and a store that does not answer, every run ends.
    fn finish(&mut self) -> Result<Exit, String> {
        self.step(Input::Stop(Stop::Stop))?;
        let (started, patience) = (self.now, self.rules.grace + ms(100));
        while self.subject.monitor.over.is_none() {
            match self.subject.wake_at() {
                Some(wake) if wake <= started + patience => {
                    self.now = self.now.max(wake);
                    self.step(Input::Time)?;
                }
                waits => return Err(format!("no exit after a stop: waits until {waits:?}")),
            }
        }
        self.subject.monitor.over.ok_or_else(|| "no exit".to_owned())
    }
}

fn check(seed: u64, defect: Option<Defect>) -> Result<(), String> {
    let mut fuzz = Fuzz::new(seed, defect);
    for _ in 0..100 {
        fuzz.pass()?;
        fuzz.disturb()?;
        if fuzz.subject.monitor.over.is_some() {
            return Ok(());
        }
    }
    fuzz.finish().map(drop)
}

#[test]
fn every_sequence_keeps_the_order_of_things_and_ends_when_told() {
    holds(|seed| check(seed, None));
}

#[test]
fn the_sequences_reach_every_kind_of_exit() {
    let mut seen = std::collections::HashSet::new();
    for seed in 0..super::rounds() {
        let mut fuzz = Fuzz::new(seed, None);
        for _ in 0..100 {
            fuzz.pass().unwrap();
            fuzz.disturb().unwrap();
        }
        seen.extend(fuzz.subject.monitor.over.map(|exit| format!("{exit:?}")));
    }
    let wanted =
        ["Failed", "Finished", "Panicked", "Refused", "Stalled(MaxTerm)", "Stalled(Progress)", "Stopped(Close)"];
    for exit in wanted {
        assert!(seen.contains(exit), "no {exit} among {seen:?}");
    }
}

#[test]
fn a_release_before_the_job_ended_is_caught() {
    catches("releases before the job ended", |seed| check(seed, Some(Defect::ReleaseBeforeJobEnded)));
}

#[test]
fn contending_before_the_old_job_ended_is_caught() {
    catches("contends before the old job ended", |seed| check(seed, Some(Defect::ContendBeforeJobEnded)));
}

#[test]
fn a_drop_without_a_word_is_caught() {
    catches("drops before it tells", |seed| check(seed, Some(Defect::DropBeforeTold)));
}

#[test]
fn a_late_drop_is_caught() {
    catches("dropped late", |seed| check(seed, Some(Defect::DropLate)));
}

#[test]
fn an_order_that_is_forgotten_while_a_job_drains_is_caught() {
    catches("no exit after a stop", |seed| check(seed, Some(Defect::ForgetStop)));
}
