//! Who contends, and how often.

/// One kind of waiter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// In the server's queue, each on a connection of its own.
    Queued,
    /// By the lanes of this process.
    Shared,
    /// By the lanes of another process.
    SharedThere,
    /// For the transaction of a run.
    Scoped,
    /// A client of the server that knows nothing of us.
    Foreign,
    /// Only with `--broken poller`: tries from time to time.
    Poller,
    /// Only with `--broken intruder`: goes in without the lock.
    Intruder,
}

/// What makes a figure bad.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Broken {
    Poller,
    Intruder,
}

impl Kind {
    const ALL: [Self; 7] =
        [Self::Queued, Self::Shared, Self::SharedThere, Self::Scoped, Self::Foreign, Self::Poller, Self::Intruder];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Shared => "shared",
            Self::SharedThere => "shared_there",
            Self::Scoped => "scoped",
            Self::Foreign => "foreign",
            Self::Poller => "poller",
            Self::Intruder => "intruder",
        }
    }

    /// The name of one of them.
    pub(super) fn nth(self, number: usize) -> String {
        format!("{}-{number}", self.name())
    }

    /// Those that contend, each with how many of them do.
    pub(super) fn contenders(broken: Option<Broken>) -> impl Iterator<Item = (Self, usize)> {
        Self::ALL.into_iter().filter_map(move |kind| {
            let tasks = match kind {
                Self::Shared => 3,
                Self::Queued | Self::SharedThere | Self::Scoped => 2,
                Self::Foreign => 1,
                Self::Poller => usize::from(broken == Some(Broken::Poller)),
                Self::Intruder => usize::from(broken == Some(Broken::Intruder)),
            };
            (tasks > 0).then_some((kind, tasks))
        })
    }
}

impl Broken {
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "poller" => Some(Self::Poller),
            "intruder" => Some(Self::Intruder),
            _ => None,
        }
    }
}
