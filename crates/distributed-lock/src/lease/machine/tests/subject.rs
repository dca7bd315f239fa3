use std::time::{Duration, Instant};

use super::{
    super::{Action, At, Input, Machine, Rules},
    monitor::Monitor,
};

/// What the properties must catch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Defect {
    ContendBeforeJobEnded,
    DropBeforeTold,
    DropLate,
    ForgetStop,
    ReleaseBeforeJobEnded,
}

/// A machine under watch, broken if asked to be.
pub(super) struct Subject {
    machine: Machine,
    pub(super) monitor: Monitor,
    defect: Option<Defect>,
}

impl Subject {
    pub(super) fn new(rules: Rules, now: Instant, defect: Option<Defect>) -> Self {
        Self { machine: Machine::new(rules, now), monitor: Monitor::new(rules.grace), defect }
    }

    pub(super) fn wake_at(&self) -> Option<Instant> {
        let late = if self.defect == Some(Defect::DropLate) { Duration::from_millis(1) } else { Duration::ZERO };
        self.machine.wake_at().map(|at| at + late)
    }

    pub(super) fn step(&mut self, at: At, input: Input) -> Result<Action, String> {
        self.monitor.input(at.now, at.left, input)?;
        let action = match (self.defect, input) {
            (Some(Defect::ForgetStop), Input::Stop(_)) if self.monitor.told.is_some() => Action::Wait,
            _ => self.machine.step(at, input),
        };
        let action = match (self.defect, action) {
            (Some(Defect::ContendBeforeJobEnded), Action::Cancel(_)) => Action::Acquire { ask: false },
            (Some(Defect::DropBeforeTold), Action::Cancel(_)) => Action::Drop,
            (Some(Defect::ReleaseBeforeJobEnded), Action::Cancel(_)) => Action::Release,
            (_, action) => action,
        };
        let may_be_ours = !matches!(input, Input::Lost { may_be_ours: false });
        self.monitor.action(at.now, at.left, may_be_ours, action)?;
        Ok(action)
    }
}
