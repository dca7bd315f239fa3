//! What the tests share: a database of their own, replicas of a job in it, and the bounds that their runner prints.

use std::{
    future::Future,
    net::Ipv4Addr,
    path::Path,
    process::Command,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use distributed_lock::{
    Bound, Locker,
    lease::{LeaseGuarantees, LeaseRunner},
};
use libtest_mimic::{Failed, Trial};
use lock_testkit::{Cluster, Proxy, StallProbe, postgres::Builder, requirement, stall::Mark};
use tests::lease::{
    AMPLE, Failure, clock,
    locker::LockerKind,
    process::{Ended, Replica},
    server::Server,
    settings::{Settings, Threads},
};
use tokio::runtime::Runtime;

/// What a latency may exceed its bound by on a machine that is busy with other tests.
const SLACK: Duration = Duration::from_millis(600);

/// Held by trials that starve the machine, and shared by all that would suffer from it.
static MACHINE: RwLock<()> = RwLock::new(());

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// T far longer than any test takes: whoever follows does so by another way.
pub(crate) const LONG: Settings = settings([20_000, 1_000, 1_000, 3_000]);

/// T 2 s, m 250 ms. Of the runner: h 250 ms, tau 800 ms, D 1,150 ms. T_w 1 s.
pub(crate) const SHORT: Settings = settings([2_000, 200, 250, 500]);

const fn settings([ttl, grace, heartbeat, query_timeout]: [u64; 4]) -> Settings {
    Settings {
        // The bench's is what counts.
        locker: LockerKind::Postgres,
        jobs: 1,
        ttl: ms(ttl),
        grace: ms(grace),
        heartbeat: ms(heartbeat),
        query_timeout: ms(query_timeout),
        threads: Threads::Two,
        watchdog: true,
    }
}

/// A trial in a database of its own on the cluster that all share.
pub(crate) fn trial<F: Future<Output = Result<(), Failure>>>(
    locker: LockerKind,
    name: &str,
    body: impl FnOnce(Bench) -> F + Send + 'static,
) -> Trial {
    requirement::trial(format!("{locker}::{name}"), Cluster::shared, move |cluster| {
        let _fed = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
        run(cluster, locker, body)
    })
}

/// The same while no other trial runs.
pub(crate) fn trial_alone<F: Future<Output = Result<(), Failure>>>(
    locker: LockerKind,
    name: &str,
    body: impl FnOnce(Bench) -> F + Send + 'static,
) -> Trial {
    requirement::trial(format!("{locker}::{name}"), Cluster::shared, move |cluster| {
        let _all = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
        run(cluster, locker, body)
    })
}

/// A trial on a cluster of its own.
pub(crate) fn trial_on<F: Future<Output = Result<(), Failure>>>(
    locker: LockerKind,
    name: &str,
    options: fn(Builder) -> Builder,
    body: impl FnOnce(Bench, Cluster) -> F + Send + 'static,
) -> Trial {
    requirement::trial(
        format!("{locker}::{name}"),
        move || options(Cluster::builder()).start(),
        move |cluster| {
            let _fed = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
            let runtime = Runtime::new()?;
            let bench = runtime.block_on(Bench::on(&cluster, locker));
            let ran = runtime.block_on(async { body(bench?, cluster).await });
            ran.map_err(|failure: Failure| failure.to_string().into())
        },
    )
}

fn run<F: Future<Output = Result<(), Failure>>>(
    cluster: &Cluster,
    locker: LockerKind,
    body: impl FnOnce(Bench) -> F,
) -> Result<(), Failed> {
    let runtime = Runtime::new()?;
    runtime
        .block_on(async { body(Bench::on(cluster, locker).await?).await })
        .map_err(|failure| failure.to_string().into())
}

#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) locker: LockerKind,
    pub(crate) server: Server,
    pub(crate) url: String,
    pub(crate) admin: tokio_postgres::Config,
    port: u16,
    probe: StallProbe,
}

impl Bench {
    async fn on(cluster: &Cluster, locker: LockerKind) -> Result<Self, Failure> {
        let database = cluster.create_database().await?;
        let admin = cluster.admin_config(&database);
        let url = format!("{}?sslmode=disable", cluster.url_for("postgres", &database));
        let server = Server::connect(&admin).await?;
        Ok(Self { locker, server, url, admin, port: cluster.port(), probe: StallProbe::start()? })
    }

    pub(crate) fn replica(&self, settings: Settings) -> Result<Replica, Failure> {
        Replica::start(Path::new(PROGRAM), &self.url, None, self.with(settings))
    }

    /// One under other locks than the trial is about.
    pub(crate) fn replica_on(&self, locker: LockerKind, settings: Settings) -> Result<Replica, Failure> {
        Replica::start(Path::new(PROGRAM), &self.url, None, Settings { locker, ..settings })
    }

    /// One whose sessions the server knows by this name.
    pub(crate) fn named_replica(&self, name: &str, settings: Settings) -> Result<Replica, Failure> {
        let url = format!("{}&application_name={name}", self.url);
        Replica::start(Path::new(PROGRAM), &url, None, self.with(settings))
    }

    /// With the locker of this trial.
    pub(crate) fn with(&self, settings: Settings) -> Settings {
        Settings { locker: self.locker, ..settings }
    }

    /// A locker at this address, and a runner on it.
    pub(crate) fn runner_at(&self, url: &str, settings: Settings) -> Result<(Arc<dyn Locker>, LeaseRunner), Failure> {
        self.with(settings).runner(url)
    }

    pub(crate) fn runner(&self, settings: Settings) -> Result<(Arc<dyn Locker>, LeaseRunner), Failure> {
        self.runner_at(&self.url, settings)
    }

    /// One that is started with less of the processor than others.
    pub(crate) fn nice_replica(&self, settings: Settings) -> Result<Replica, Failure> {
        let mut nice = Command::new("nice");
        nice.args(["-n", "19", PROGRAM]);
        Replica::start_by(nice, &self.url, None, self.with(settings))
    }

    /// One behind a proxy.
    pub(crate) fn remote_replica(&self, settings: Settings) -> Result<Replica, Failure> {
        let proxy = Proxy::start((Ipv4Addr::LOCALHOST, self.port))?;
        Replica::start(Path::new(PROGRAM), &self.url, Some(proxy), self.with(settings))
    }

    /// This one leads, and another one with the same settings stands by.
    pub(crate) async fn leads_before(&self, leader: &mut Replica, settings: Settings) -> Result<Replica, Failure> {
        leader.leads().await?;
        let standby = self.replica(settings)?;
        self.server.has_a_standby().await?;
        Ok(standby)
    }

    /// One that leads and one that stands by.
    pub(crate) async fn pair(&self, settings: Settings) -> Result<(Replica, Replica), Failure> {
        let mut leader = self.replica(settings)?;
        let standby = self.leads_before(&mut leader, settings).await?;
        Ok((leader, standby))
    }

    /// When one leads again after a loss, which `standby` then is. The former leader contends at once, and where nobody queues it may be
    /// the first.
    pub(crate) async fn next_leader(&self, former: &mut Replica, standby: &mut Replica) -> Result<i64, Failure> {
        let (next, again) = tokio::select! {
            next = standby.leads() => (next?, false),
            next = former.leads() => (next?, true),
        };
        assert!(!again || self.locker == LockerKind::Shared, "it did not queue behind the standby");
        if again {
            std::mem::swap(former, standby);
        }
        Ok(next)
    }

    /// What a runner with these settings prints, for standbys that hear what there is to be heard.
    pub(crate) fn guarantees(&self, settings: Settings) -> Result<LeaseGuarantees, Failure> {
        Ok(self.locker.heard(self.runner(settings)?.1.guarantees(), settings.ttl))
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn mark(&self) -> Mark {
        self.probe.mark()
    }

    pub(crate) fn longest_stall(&self, mark: Mark) -> Duration {
        self.probe.longest_since(mark)
    }

    /// It took no longer than that, but for what a busy machine takes. `mark` is from before it began.
    pub(crate) fn within(&self, mark: Mark, took: i64, bound: Duration, what: &str) {
        let (took, stall) = (Duration::from_nanos(took.max(0).unsigned_abs()), self.probe.longest_since(mark));
        println!("{what}: {took:?}, bound {bound:?}, longest stall {stall:?}");
        assert!(took <= bound + SLACK + stall, "{what}: {took:?} is later than {bound:?}; longest stall {stall:?}");
    }

    /// Ends these replicas, after which nothing is left in the server.
    pub(crate) async fn over(self, replicas: impl IntoIterator<Item = Replica>) -> Result<(), Failure> {
        replicas.into_iter().for_each(drop);
        Ok(self.server.observer().quiet(AMPLE).await?)
    }
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_lease");

/// The limit of a bound that must be one.
pub(crate) fn limit(bound: Bound) -> Duration {
    match bound {
        Bound::Within(limit) => limit,
        Bound::Unbounded => panic!("unbounded"),
    }
}

/// The former leader did not work once the next one led, for longer than the bound, which has to be none. No stall is an excuse.
pub(crate) fn apart(bound: Bound, former: &Ended, next: i64) {
    assert_eq!(bound, Bound::Within(Duration::ZERO), "what is promised");
    let overlap = former.last_step - next;
    assert!(overlap <= 0, "two worked at a time for {} ms: {former:?}, the next led at {next}", clock::millis(overlap));
    if let Some(lost) = former.lost {
        assert!(
            next >= lost.deadline || former.at <= next,
            "the next one led before the deadline of one that had not ended: {former:?}, {next}"
        );
    }
}

/// The job ended, and then the next one led; nothing was lost.
pub(crate) fn handed_over(bound: Bound, former: &Ended, next: i64) {
    assert_eq!(former.lost, None, "a loss for nothing");
    assert!(former.at <= next, "the lease was given up before its job had ended: {former:?}, the next led at {next}");
    apart(bound, former, next);
}
