//! The rounds of each mode: two replicas, one that leads and one that stands by.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use lock_testkit::{Cluster, Proxy, StallProbe, proxy::Flow};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    Failure, clock,
    figures::{Figures, Round},
    replica::{self, Times},
    server::{AMPLE, Server},
};

/// A stall that a latency must not be taken beside.
const STALL: Duration = Duration::from_millis(20);

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

    fn times(self) -> Times {
        let ms = Duration::from_millis;
        match self {
            // T = 2 s.
            Self::Freeze => Times { ttl: ms(2_000), grace: ms(200), heartbeat: ms(250), query_timeout: ms(500) },
            Self::Partition => Times { ttl: ms(3_000), grace: ms(300), heartbeat: ms(500), query_timeout: ms(1_000) },
            Self::Clean | Self::Kill | Self::Rolling => {
                Times { ttl: ms(10_000), grace: ms(1_000), heartbeat: ms(1_000), query_timeout: ms(3_000) }
            }
        }
    }

    /// What is measured must be within this, in ms.
    pub(crate) fn bound(self) -> f64 {
        let Times { ttl, heartbeat, query_timeout, .. } = self.times();
        let bound = match self {
            Self::Clean => Duration::from_millis(5),
            Self::Kill | Self::Rolling => Duration::from_millis(50),
            Self::Freeze => ttl + Duration::from_millis(100),
            Self::Partition => heartbeat + query_timeout + Duration::from_millis(50),
        };
        clock::millis(clock::nanos(bound))
    }

    pub(crate) fn is_judged_by_median(self) -> bool {
        matches!(self, Self::Clean | Self::Kill)
    }
}

#[tokio::main]
pub(crate) async fn measure(cluster: &Cluster, mode: Mode, rounds: usize) -> Result<Figures, Failure> {
    let server = Server::connect(cluster).await?;
    let probe = StallProbe::start()?;
    let mut figures = Figures::new(mode);
    let mut leader = Replica::start(cluster, mode)?;
    leader.leads().await?;
    let mut standby = Replica::start(cluster, mode)?;
    for _ in 0..rounds {
        server.has_a_standby().await?;
        let mark = probe.mark();
        let mut round = match mode {
            Mode::Clean => hand_over(&mut leader, &mut standby, "stop", &mut figures).await?,
            Mode::Rolling => {
                let round = hand_over(&mut leader, &mut standby, "step_down", &mut figures).await?;
                server.has_a_standby().await?;
                leader.restart(cluster, mode).await?;
                round
            }
            Mode::Kill => {
                let round = kill(&mut leader, &mut standby).await?;
                leader = Replica::start(cluster, mode)?;
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
        while let Ok(event) = replica.events.try_recv() {
            if matches!(event, Event::Lost { .. }) {
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
    let mut end = leader.next().await?;
    if let Event::Lost { .. } = end {
        figures.add_false_loss();
        end = leader.next().await?;
    }
    let Event::Ended { at, last_step } = end else { return Err(unexpected(&end)) };
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
    let (deadline, last_step) = leader.loses().await?;
    Ok(Round { latency: next - sent, overlap: last_step - next, early: next < deadline, stalled: false })
}

/// The leader is cut off from the server, and finds out by itself.
async fn partition(leader: &mut Replica, standby: &mut Replica) -> Result<Round, Failure> {
    let proxy = leader.proxy.clone().ok_or("no proxy")?;
    let cut = clock::now();
    proxy.both(Flow::Drop);
    let lost = match leader.next().await? {
        Event::Lost { at, .. } => at,
        other => return Err(unexpected(&other)),
    };
    let Event::Ended { at: ended, last_step } = leader.next().await? else { return Err("no end after a loss".into()) };
    let next = standby.leads().await?;
    proxy.reset();
    proxy.pass();
    Ok(Round { latency: lost - cut, overlap: last_step.max(ended) - next, early: next < ended, stalled: false })
}

#[derive(Debug)]
enum Event {
    Leading {
        at: i64,
    },
    /// The deadline is what the holder relied on.
    Lost {
        at: i64,
        deadline: i64,
    },
    /// `last_step` is when it last worked.
    Ended {
        at: i64,
        last_step: i64,
    },
}

impl Event {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let kind = words.next()?;
        let mut time = || words.next()?.parse().ok();
        match kind {
            "leading" => Some(Self::Leading { at: time()? }),
            "lost" => Some(Self::Lost { at: time()?, deadline: time()? }),
            "ended" => Some(Self::Ended { at: time()?, last_step: time()? }),
            _ => None,
        }
    }
}

struct Replica {
    process: Child,
    orders: ChildStdin,
    events: mpsc::UnboundedReceiver<Event>,
    /// Between it and the server, where it is to be cut off.
    proxy: Option<Arc<Proxy>>,
}

impl Replica {
    fn start(cluster: &Cluster, mode: Mode) -> Result<Self, Failure> {
        let proxy = match mode {
            Mode::Partition => Some(Arc::new(Proxy::start(([127, 0, 0, 1], cluster.port()))?)),
            Mode::Clean | Mode::Kill | Mode::Freeze | Mode::Rolling => None,
        };
        let url = proxy.as_ref().map_or_else(|| cluster.url(), |proxy| proxy.url(&cluster.url()));
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(replica::ARGUMENT).arg(url).args(mode.times().arguments());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = process.stdin.take().ok_or("no standard input")?;
        let output = process.stdout.take().ok_or("no standard output")?;
        let (sender, events) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                match Event::parse(&line) {
                    Some(event) => _ = sender.send(event),
                    None => eprintln!("lease: replica: {line}"),
                }
            }
        });
        Ok(Self { process, orders, events, proxy })
    }

    fn order(&mut self, order: &str) -> Result<(), Failure> {
        Ok(writeln!(self.orders, "{order}")?)
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }

    async fn next(&mut self) -> Result<Event, Failure> {
        let next = timeout(AMPLE, self.events.recv()).await;
        next.map_err(|_| "a former leader says nothing")?.ok_or_else(|| "a replica ended".into())
    }

    async fn leads(&mut self) -> Result<i64, Failure> {
        match timeout(AMPLE, self.events.recv()).await {
            Ok(Some(Event::Leading { at })) => Ok(at),
            Ok(Some(other)) => Err(unexpected(&other)),
            Ok(None) => Err("a standby ended".into()),
            Err(_elapsed) => Err("a standby does not lead".into()),
        }
    }

    /// The deadline it relied on, and when it last worked.
    async fn loses(&mut self) -> Result<(i64, i64), Failure> {
        match (self.next().await?, self.next().await?) {
            (Event::Lost { deadline, .. }, Event::Ended { last_step, .. }) => Ok((deadline, last_step)),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Ends it in an orderly way, and starts another in its place.
    async fn restart(&mut self, cluster: &Cluster, mode: Mode) -> Result<(), Failure> {
        self.signal(Signal::TERM)?;
        match timeout(AMPLE, self.events.recv()).await {
            Ok(None) => {}
            Ok(Some(event)) => return Err(unexpected(&event)),
            Err(_elapsed) => return Err("a replica does not end".into()),
        }
        let status = self.process.wait()?;
        if !status.success() {
            return Err(format!("a replica ended with {status}").into());
        }
        *self = Self::start(cluster, mode)?;
        Ok(())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // Also one that is frozen; a process that has ended is no failure.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

fn unexpected(event: &Event) -> Failure {
    format!("unexpected of a replica: {event:?}").into()
}
