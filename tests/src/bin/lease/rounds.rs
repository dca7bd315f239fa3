//! The rounds of each mode: two replicas, one that leads and one that stands by.

use std::time::Duration;

use lock_testkit::{Cluster, Proxy, StallProbe, proxy::Flow};
use rustix::process::Signal;
use tests::lease::{
    Failure, clock,
    locker::LockerKind,
    process::{Ended, Event, Replica},
    server::Server,
    settings::{Settings, Threads},
};

use crate::figures::{Figures, Round};

/// A stall that a latency must not be taken beside.
const STALL: Duration = Duration::from_millis(20);

/// What is measured, with which locker, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    pub(crate) locker: LockerKind,
    pub(crate) rounds: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    Clean,
    Kill,
    Freeze,
    Partition,
    Rolling,
}

impl Mode {
    pub(crate) const ALL: [Self; 5] = [Self::Clean, Self::Kill, Self::Freeze, Self::Partition, Self::Rolling];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Kill => "kill",
            Self::Freeze => "freeze",
            Self::Partition => "partition",
            Self::Rolling => "rolling",
        }
    }

    pub(crate) fn full_rounds(self) -> usize {
        match self {
            Self::Clean | Self::Kill | Self::Rolling => 100,
            Self::Freeze | Self::Partition => 50,
        }
    }

    pub(crate) fn is_judged_by_median(self) -> bool {
        matches!(self, Self::Clean | Self::Kill)
    }
}

impl Plan {
    fn settings(self) -> Settings {
        let [ttl, grace, heartbeat, query_timeout] = match self.mode {
            // T = 2 s.
            Mode::Freeze => [2_000, 200, 250, 500],
            Mode::Partition => [3_000, 300, 500, 1_000],
            Mode::Clean | Mode::Kill | Mode::Rolling => [10_000, 1_000, 1_000, 3_000],
        }
        .map(Duration::from_millis);
        let (locker, threads) = (self.locker, Threads::Two);
        Settings { locker, jobs: 1, ttl, grace, heartbeat, query_timeout, threads, watchdog: true }
    }

    /// What is measured must be within this, in ms. A lane has the T of its leases, and the h and tau of its locker, so the formulas are
    /// the same for both lockers.
    pub(crate) fn bound(self) -> f64 {
        let Settings { ttl, heartbeat, query_timeout, .. } = self.settings();
        let bound = match self.mode {
            Mode::Clean => Duration::from_millis(5),
            Mode::Kill | Mode::Rolling => Duration::from_millis(50),
            Mode::Freeze => ttl + Duration::from_millis(100),
            Mode::Partition => heartbeat + query_timeout + Duration::from_millis(50),
        };
        clock::millis(clock::nanos(bound))
    }
}

#[tokio::main]
pub(crate) async fn measure(cluster: &Cluster, plan: Plan) -> Result<Figures, Failure> {
    let server = Server::connect(&cluster.admin_config("postgres")).await?;
    let probe = StallProbe::start()?;
    let mut figures = Figures::new(plan);
    let mut leader = start(cluster, plan)?;
    leader.leads().await?;
    let mut since = server.now().await?;
    let mut standby = start(cluster, plan)?;
    for _ in 0..plan.rounds {
        server.has_a_standby_since(since).await?;
        since = server.now().await?;
        let mark = probe.mark();
        let mut round = match plan.mode {
            Mode::Clean => hand_over(&mut leader, &mut standby, "stop", &mut figures).await?,
            Mode::Rolling => {
                let round = hand_over(&mut leader, &mut standby, "step_down", &mut figures).await?;
                server.has_a_standby_since(since).await?;
                since = server.now().await?;
                restart(&mut leader, cluster, plan).await?;
                round
            }
            Mode::Kill => {
                let round = kill(&mut leader, &mut standby).await?;
                leader = start(cluster, plan)?;
                round
            }
            Mode::Freeze => freeze(&server, &mut leader, &mut standby).await?,
            Mode::Partition => partition(&mut leader, &mut standby).await?,
        };
        round.stalled = probe.longest_since(mark) > STALL;
        figures.add(&round);
        std::mem::swap(&mut leader, &mut standby);
    }
    for replica in [&mut leader, &mut standby] {
        while let Some(event) = replica.said() {
            if matches!(event, Event::Lost(_)) {
                figures.add_false_loss();
            }
        }
    }
    Ok(figures)
}

/// The leader gives up by itself.
async fn hand_over(
    leader: &mut Replica,
    standby: &mut Replica,
    order: &str,
    figures: &mut Figures,
) -> Result<Round, Failure> {
    leader.order(order)?;
    let Ended { at, last_step, lost, .. } = leader.ends().await?;
    if lost.is_some() {
        figures.add_false_loss();
    }
    let next = standby.leads().await?;
    Ok(Round { latency: next - at, overlap: last_step - next, early: next < at, stalled: false })
}

async fn kill(leader: &mut Replica, standby: &mut Replica) -> Result<Round, Failure> {
    let at = clock::now();
    leader.signal(Signal::KILL)?;
    let next = standby.leads().await?;
    Ok(Round { latency: next - at, overlap: 0, early: next < at, stalled: false })
}

/// The leader stands still, and finds out when it goes on.
async fn freeze(server: &Server, leader: &mut Replica, standby: &mut Replica) -> Result<Round, Failure> {
    leader.signal(Signal::STOP)?;
    let sent = server.last_statement().await?;
    let next = standby.leads().await;
    leader.signal(Signal::CONT)?;
    let next = next?;
    let Ended { last_step, lost, .. } = leader.ends().await?;
    let deadline = lost.ok_or("an end without a loss")?.deadline;
    Ok(Round { latency: next - sent, overlap: last_step - next, early: next < deadline, stalled: false })
}

/// The leader is cut off from the server, and finds out by itself.
async fn partition(leader: &mut Replica, standby: &mut Replica) -> Result<Round, Failure> {
    let proxy = leader.proxy.clone().ok_or("no proxy")?;
    let cut = clock::now();
    proxy.both(Flow::Drop);
    let Ended { at: ended, last_step, lost, .. } = leader.ends().await?;
    let lost = lost.ok_or("an end without a loss")?.at;
    let next = standby.leads().await?;
    proxy.reset();
    proxy.pass();
    Ok(Round { latency: lost - cut, overlap: last_step.max(ended) - next, early: next < ended, stalled: false })
}

fn start(cluster: &Cluster, plan: Plan) -> Result<Replica, Failure> {
    let proxy = match plan.mode {
        Mode::Partition => Some(Proxy::start(([127, 0, 0, 1], cluster.port()))?),
        Mode::Clean | Mode::Kill | Mode::Freeze | Mode::Rolling => None,
    };
    Replica::start(&std::env::current_exe()?, &cluster.url(), proxy, plan.settings())
}

/// Ends it in an orderly way, and starts another in its place.
async fn restart(replica: &mut Replica, cluster: &Cluster, plan: Plan) -> Result<(), Failure> {
    replica.signal(Signal::TERM)?;
    let status = replica.exits().await?;
    if !status.success() {
        return Err(format!("a replica ended with {status}").into());
    }
    *replica = start(cluster, plan)?;
    Ok(())
}
