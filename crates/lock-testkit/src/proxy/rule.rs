//! What happens to connections at the moment.

use std::time::Duration;

use tokio::sync::watch;

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Flow {
    /// They arrive that much later, in order, without a limit on how many are under way.
    Delay(Duration),
    /// They are lost, the end of the stream too, and nobody is told.
    Drop,
    /// They arrive when the flow passes again, as by the repeats of TCP after a cut that healed.
    Hold,
    /// They arrive.
    #[default]
    Pass,
}

/// How connections end.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Sever {
    /// Both ends see a close.
    #[default]
    Close,
    /// Both ends see a reset.
    Reset,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Direction {
    Down,
    Up,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rule {
    pub(super) down: Flow,
    pub(super) up: Flow,
    /// How new connections end at once, if they do.
    pub(super) refuse: Option<Sever>,
    /// How often all connections were severed, and how the last time: one older than the last time has to end.
    pub(super) severed: (u64, Sever),
}

impl Rule {
    pub(super) fn sever(&mut self, manner: Sever) {
        self.refuse = Some(manner);
        self.severed = (self.severed.0 + 1, manner);
    }

    fn flow(&self, direction: Direction) -> Flow {
        match direction {
            Direction::Down => self.down,
            Direction::Up => self.up,
        }
    }
}

/// A view of the rule that can be waited on. The proxy outlives its connections, so a failed wait never ends.
#[derive(Clone, Debug)]
pub(super) struct Rules(pub(super) watch::Receiver<Rule>);

impl Rules {
    pub(super) fn severed(&self) -> u64 {
        self.0.borrow().severed.0
    }

    pub(super) fn refuse(&self) -> Option<Sever> {
        self.0.borrow().refuse
    }

    pub(super) fn flow(&self, direction: Direction) -> Flow {
        self.0.borrow().flow(direction)
    }

    /// Waits until all connections were severed once more than that.
    pub(super) async fn severed_after(&self, count: u64) -> Sever {
        self.wait_for(|rule| rule.severed.0 > count).await.severed.1
    }

    /// Waits until that direction does not hold, and gives its flow.
    pub(super) async fn unheld(&self, direction: Direction) -> Flow {
        self.wait_for(|rule| rule.flow(direction) != Flow::Hold).await.flow(direction)
    }

    /// Waits until that direction lets bytes through, and gives the delay it then has.
    pub(super) async fn open(&self, direction: Direction) -> Duration {
        let is_open = |rule: &Rule| !matches!(rule.flow(direction), Flow::Drop | Flow::Hold);
        match self.wait_for(is_open).await.flow(direction) {
            Flow::Delay(delay) => delay,
            Flow::Drop | Flow::Hold | Flow::Pass => Duration::ZERO,
        }
    }

    async fn wait_for(&self, condition: impl Fn(&Rule) -> bool) -> Rule {
        let mut rules = self.0.clone();
        let found = rules.wait_for(|rule| condition(rule)).await.map(|rule| *rule);
        match found {
            Ok(rule) => rule,
            Err(_) => std::future::pending().await,
        }
    }
}
