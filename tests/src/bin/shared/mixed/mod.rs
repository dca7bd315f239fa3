//! Every kind of waiter on one key: no kind may starve another, and no two may be inside at a time.
//!
//! Two wait in the server's queue, two for a scoped run, and one is a client that knows nothing of us; of two processes with a shared
//! session, this one has three tasks that wait and another has two. Each asks again as soon as it has given the key back, so that all of
//! them always wait. Whoever is granted the key goes in at the detector, stays for a moment and leaves again.

pub(crate) mod elsewhere;

mod contender;
mod kind;
mod timeline;

use std::{sync::Arc, time::Duration};

use distributed_lock::Backend;
use lock_postgres::{PostgresLocker, PostgresScopedLocker, PostgresSharedSession};
use lock_testkit::{Cluster, Detector, Observer, StallProbe};
use serde_json::Value;
use tests::lease::{AMPLE, clock};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    Failure,
    report::Report,
    servers::{self, STALL},
};

use self::{
    contender::{Contender, Time, Wait, Way},
    kind::Kind,
    timeline::Timeline,
};

pub(crate) use self::kind::Broken;

/// In seconds.
pub(crate) const ROUNDS: usize = 30;

/// Until the others have started and connected, and until those who wait in the queue have connected there.
const START: Duration = Duration::from_secs(2);
const SETTLE: Duration = Duration::from_secs(1);

/// How many rounds of the queue a wait may take, each of which lets everybody in once at most. Three for the three tasks of one process,
/// which wait for it in turn, and one for the tries that come before a place in the queue.
const ROUNDS_OF_THE_QUEUE: usize = 4;

#[tokio::main]
pub(crate) async fn measure(rounds: usize, broken: Option<Broken>) -> Result<Report, Failure> {
    let cluster = servers::start(Cluster::builder())?;
    let (url, config) = (servers::url(&cluster), cluster.admin_config("postgres"));
    let observer = Observer::connect(&config).await?;
    let detector = Detector::in_postgres(&config).await?;
    let probe = StallProbe::start()?;
    let lockers = Lockers::new(&url)?;

    let from = clock::now() + clock::nanos(START);
    let counted_from = from + clock::nanos(SETTLE);
    let until = counted_from + clock::nanos(Duration::from_secs(u64::try_from(rounds)?));
    let mut contending = JoinSet::new();
    let mut contenders = 0;
    for (kind, tasks) in Kind::contenders(broken) {
        contenders += tasks;
        let time = Time { from, until };
        if kind == Kind::SharedThere {
            let waits = elsewhere::run(url.clone(), tasks, time);
            contending.spawn(async move { Ok::<_, Failure>((kind, waits.await?.concat())) });
            continue;
        }
        for task in 0..tasks {
            let way = lockers.way(kind, &url).await?;
            let contender = Contender { name: kind.nth(task), way, detector: detector.clone(), time };
            contending.spawn(async move { Ok((kind, contender.run().await?)) });
        }
    }

    let mut report = Report::new("mixed", rounds);
    sleep(START + SETTLE).await;
    for _ in 0..rounds {
        // The second is the sample.
        let ((), stall) = probe.stall_during(sleep(Duration::from_secs(1))).await;
        report.count(stall > STALL);
    }
    let waits = timeout(AMPLE, all(contending)).await.map_err(|_elapsed| "somebody waits for a key that is free")??;
    lockers.close().await?;

    let seen = Timeline::new(Time { from: counted_from, until }, waits);
    let of_each = |figure: &dyn Fn(Kind) -> Value| {
        Value::Object(Kind::contenders(broken).map(|(kind, _)| (kind.name().to_owned(), figure(kind))).collect())
    };
    report.say("contenders", contenders);
    report.say("grants", of_each(&|kind| seen.grants(kind).into()));
    report.say("longest_wait_in_grants", of_each(&|kind| seen.longest_wait(kind).into()));
    report.say("longest_wait_ms", of_each(&|kind| seen.longest_millis(kind).round().into()));
    let longest = Kind::contenders(broken).map(|(kind, _)| seen.longest_wait(kind)).max().unwrap_or_default();
    let bound = contenders * ROUNDS_OF_THE_QUEUE;
    report.say("bound", bound);
    report.at_most("longest", longest as f64, bound as f64);
    let violations = detector.violations().await?;
    report.say("two_holders", violations);
    report.must(violations == 0, || format!("two were inside at a time, {violations} times"));
    drop(detector);
    observer.quiet(AMPLE).await?;
    Ok(report)
}

async fn all(mut contending: JoinSet<Result<(Kind, Vec<Wait>), Failure>>) -> Result<Vec<(Kind, Wait)>, Failure> {
    let mut all = Vec::new();
    while let Some(ended) = contending.join_next().await {
        let (kind, waits) = ended??;
        all.extend(waits.into_iter().map(|wait| (kind, wait)));
    }
    Ok(all)
}

/// Those of this process.
struct Lockers {
    queued: Arc<PostgresLocker>,
    shared: Arc<PostgresSharedSession>,
    scoped: Arc<PostgresScopedLocker>,
}

impl Lockers {
    fn new(url: &str) -> Result<Self, Failure> {
        Ok(Self {
            queued: Arc::new(PostgresLocker::from_url(url)?),
            shared: Arc::new(PostgresSharedSession::from_url(url)?),
            scoped: Arc::new(PostgresScopedLocker::from_url(url)?),
        })
    }

    async fn way(&self, kind: Kind, url: &str) -> Result<Way, Failure> {
        Ok(match kind {
            Kind::Queued => Way::Queued(Arc::clone(&self.queued)),
            Kind::Shared | Kind::SharedThere => Way::Shared(Arc::clone(&self.shared)),
            Kind::Scoped => Way::Scoped(Arc::clone(&self.scoped)),
            Kind::Foreign => Way::Foreign(servers::connect(url).await?),
            Kind::Poller => Way::Poller(servers::connect(url).await?),
            Kind::Intruder => Way::Intruder,
        })
    }

    async fn close(&self) -> Result<(), Failure> {
        self.queued.close().await?;
        self.shared.close().await?;
        Ok(self.scoped.close().await?)
    }
}
