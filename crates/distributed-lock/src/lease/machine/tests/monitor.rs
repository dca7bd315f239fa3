use std::time::{Duration, Instant};

use super::super::{Action, Exit, Input, JobEnd, Reason};

/// Watches one machine from outside and knows the rules.
#[derive(Debug, Default)]
pub(super) struct Monitor {
    grace: Duration,
    pub(super) job: bool,
    pub(super) told: Option<(Instant, Reason)>,
    /// By when the job must be gone.
    pub(super) limit: Option<Instant>,
    pub(super) held: bool,
    pub(super) asking: bool,
    pub(super) over: Option<Exit>,
}

impl Monitor {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, asking: true, ..Self::default() }
    }

    /// Before the machine sees it. `left`: as [`At::left`](super::super::At).
    pub(super) fn input(&mut self, now: Instant, left: Option<Duration>, input: Input) -> Result<(), String> {
        match input {
            Input::Granted { .. } => (self.held, self.asking) = (true, false),
            Input::Contended { .. } | Input::Failed { .. } => self.asking = false,
            Input::JobEnded { end, .. } => {
                if end == JobEnd::Dropped && self.limit.is_some_and(|limit| now > limit) {
                    return Err(format!("dropped late, by {:?}", self.limit.map(|limit| now - limit)));
                }
                self.job = false;
            }
            // From now on the store lets others in at the deadline.
            Input::Lost { may_be_ours: true } | Input::NearDeadline if self.told.is_some() => {
                self.until_deadline(now, left)
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn action(
        &mut self,
        now: Instant,
        left: Option<Duration>,
        may_be_ours: bool,
        action: Action,
    ) -> Result<(), String> {
        if self.over.is_some() && action != Action::Wait {
            return Err(format!("{action:?} after the exit"));
        }
        match action {
            Action::Wait => {}
            Action::Acquire { .. } if self.job => return Err("contends before the old job ended".to_owned()),
            Action::Acquire { .. } if self.held => return Err("contends before the release".to_owned()),
            Action::Acquire { .. } => self.asking = true,
            Action::Start if self.job => return Err("a second job of one name".to_owned()),
            Action::Start if !self.held => return Err("a job without a lease".to_owned()),
            Action::Start => {
                (self.job, self.told, self.limit) = (true, None, None);
            }
            Action::Cancel(_) if !self.job || self.told.is_some() => return Err("a useless call to end".to_owned()),
            Action::Cancel(reason) => {
                self.told = Some((now, reason));
                self.limit = Some(now + self.grace);
                if may_be_ours {
                    self.until_deadline(now, left);
                }
            }
            Action::Drop if !self.job => return Err("drops no job".to_owned()),
            Action::Drop if self.told.is_none() => return Err("drops before it tells".to_owned()),
            Action::Drop => {}
            Action::Release if self.job => return Err("releases before the job ended".to_owned()),
            Action::Release if !self.held => return Err("releases what it does not hold".to_owned()),
            Action::Release => self.held = false,
            Action::Exit(_) if self.job || self.held => return Err("exits with a job or a lease".to_owned()),
            Action::Exit(exit) => self.over = Some(exit),
        }
        Ok(())
    }

    fn until_deadline(&mut self, now: Instant, left: Option<Duration>) {
        if let (Some(limit), Some(left)) = (self.limit, left) {
            self.limit = Some(limit.min(now + left));
        }
    }
}
