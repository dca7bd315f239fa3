//! The machine, or one that is broken in one way.

use std::time::Instant;

use crate::breaker::{
    machine::{Admission, Change, Generation, Machine, Mode},
    outcome::Outcome,
};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Defect {
    /// Somebody holds the key: a failure.
    CountsContention,
    /// A result of an older state counts as one of now.
    CountsLateResults,
    /// A wait that was given up without an answer never counts.
    ForgivesSilence,
    /// Silence counts although others were answered.
    CountsSilenceBesideAnswers,
    /// A probe that was given up is never given back.
    KeepsTheProbe,
    /// Every call after the open time probes.
    LetsManyProbe,
    /// A grant from before closes it.
    ClosesByAnyGrant,
    /// A failed probe leaves it half-open.
    WaitsForMoreProbes,
    /// It opens for as long as the first time.
    StaysOpenEquallyLong,
    /// It looks back on everything since it closed.
    NeverForgets,
}

pub(super) const DEFECTS: [Defect; 10] = [
    Defect::CountsContention,
    Defect::CountsLateResults,
    Defect::ForgivesSilence,
    Defect::CountsSilenceBesideAnswers,
    Defect::KeepsTheProbe,
    Defect::LetsManyProbe,
    Defect::ClosesByAnyGrant,
    Defect::WaitsForMoreProbes,
    Defect::StaysOpenEquallyLong,
    Defect::NeverForgets,
];

#[derive(Debug)]
pub(super) struct Subject {
    pub(super) machine: Machine,
    defect: Option<Defect>,
    started: Instant,
}

impl Subject {
    pub(super) fn new(machine: Machine, defect: Option<Defect>, now: Instant) -> Self {
        Self { machine, defect, started: now }
    }

    fn is(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    pub(super) fn admit(&mut self, now: Instant) -> Admission {
        if self.is(Defect::LetsManyProbe) {
            self.machine.ping_until = None;
        }
        self.machine.admit(&|| now)
    }

    pub(super) fn settle(&mut self, generation: Generation, outcome: Outcome, now: Instant) {
        let mut generation = generation;
        let outcome = match (self.defect, outcome) {
            (Some(Defect::CountsContention), Outcome::Answered) => Outcome::Failure,
            (Some(Defect::ForgivesSilence), Outcome::Silent) => Outcome::Unasked,
            (Some(Defect::CountsSilenceBesideAnswers), Outcome::Silent) => Outcome::Failure,
            _ => outcome,
        };
        match &self.machine.mode {
            Mode::HalfOpen if self.is(Defect::ClosesByAnyGrant) && outcome == Outcome::Success => {
                let generation = self.machine.generation;
                self.machine.pinged(generation, Some(true), now);
                return;
            }
            Mode::Closed { .. } if self.is(Defect::CountsLateResults) => generation = self.machine.generation,
            _ => {}
        }
        let now = if self.is(Defect::NeverForgets) { self.started } else { now };
        self.forget_openings();
        self.machine.settle(generation, outcome, now);
    }

    pub(super) fn pinged(&mut self, generation: Generation, well: Option<bool>, now: Instant) {
        if self.is(Defect::KeepsTheProbe) && well.is_none() {
            return;
        }
        let probing = matches!(self.machine.mode, Mode::HalfOpen);
        let well = if self.is(Defect::WaitsForMoreProbes) && probing && well == Some(false) { None } else { well };
        self.forget_openings();
        self.machine.pinged(generation, well, now);
    }

    fn forget_openings(&mut self) {
        if self.is(Defect::StaysOpenEquallyLong) {
            self.machine.openings = 0;
        }
    }

    pub(super) fn take_change(&mut self) -> Option<Change> {
        self.machine.take_change()
    }
}
