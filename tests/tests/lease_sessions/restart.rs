//! The server restarts, in an orderly way or as by a crash: both replicas come back, and one of them leads.

use std::{io, time::Duration};

use distributed_lock::{
    Backend, Bound, FencingToken,
    lease::{LeaseExit, LeaseState},
};
use libtest_mimic::Trial;
use lock_testkit::{Cluster, Observer, wait_until};

use crate::{
    bench::{JOB, deaf, lease, obedient, one_queues, within},
    referee::Referee,
    replica::Replica,
    server::{AMPLE, Server, ms, shortened, trial_alone},
};

type Restart = fn(&Cluster) -> io::Result<()>;

/// D + g of [`lease`], the shortest that is taken.
const DELAY: Duration = Duration::from_millis(1_350);

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |name, restart: Restart, delay| {
        trial_alone(name, |builder| builder, move |cluster, server| restarted(cluster, server, restart, delay))
    };
    vec![
        trial("restart::both_come_back_and_one_leads", Cluster::restart, None),
        trial("restart::both_come_back_from_a_crash_and_one_leads", Cluster::restart_immediate, None),
        trial("restart::takeover_delay_keeps_the_next_job_out_until_a_deaf_one_is_gone", Cluster::restart, Some(DELAY)),
        trial(
            "restart::takeover_delay_keeps_the_next_job_out_after_a_crash_too",
            Cluster::restart_immediate,
            Some(DELAY),
        ),
    ]
}

/// Without a delay jobs mind their orders, since a server that is back soon would let two work for up to D + g. With it they are deaf.
async fn restarted(cluster: Cluster, server: Server, restart: Restart, delay: Option<Duration>) {
    let referee = Referee::default();
    let (mut lease, job) = (lease(), if delay.is_some() { deaf } else { obedient });
    lease.takeover_delay = delay;
    let start = |name| Replica::start(name, &shortened(server.config()), lease.clone(), &referee, job);
    let leader = start("leader");
    let before = leader.leads().await.fencing_token();
    let standby = start("standby");
    server.waiters(1).await;
    let promised = leader.runner.guarantees().overlap_forgotten;
    assert_eq!(promised, Bound::Within(if delay.is_some() { ms(0) } else { DELAY }));
    tokio::task::block_in_place(|| restart(&cluster)).unwrap();
    standby.event("asked in vain: Unavailable").await;
    let ended = if delay.is_some() { "ended: Dropped, SessionEnded, lost" } else { "ended: Ok, SessionEnded, lost" };
    leader.event(ended).await;
    let next = next_leader([&leader, &standby], before).await;
    // The other one is there too, and leads as soon as it may.
    let observer = Observer::connect(&server.admin).await.unwrap();
    one_queues(&observer).await;
    ensure_told_once(&leader, ended);
    let (mut stopped, other) = if next == 0 { (leader, standby) } else { (standby, leader) };
    assert!(stopped.runner.stop(JOB));
    other.leads().await;
    referee.ensure_tokens_rise();
    let overlap = referee.overlap();
    println!("overlap {overlap:?}, bound {promised}");
    assert!(overlap <= within(promised), "two worked for {overlap:?}: {referee:?}");
    assert_eq!(referee.terms().len(), 3, "{referee:?}");
    let exit = stopped.exit().await;
    assert!(matches!(exit, LeaseExit::Stopped(Some(_))), "{exit:?}");
    stopped.locker.close().await.unwrap();
    let exit = other.close().await;
    assert!(matches!(exit, LeaseExit::Closed(Some(_))), "{exit:?}");
    observer.quiet(AMPLE).await.unwrap();
}

/// The index of the first to lead with a higher token than that.
async fn next_leader(replicas: [&Replica; 2], than: Option<FencingToken>) -> usize {
    let leads =
        |replica: &&Replica| matches!(replica.watch.state(), LeaseState::Leading(hold) if hold.fencing_token() > than);
    let led = wait_until(AMPLE, "one leads", async || replicas.iter().any(leads));
    led.await.unwrap_or_else(|_| panic!("nobody leads: {:?}", replicas.map(Replica::events)));
    usize::from(!leads(&replicas[0]))
}

/// The leader heard of it by its socket, and of nothing else.
fn ensure_told_once(leader: &Replica, ended: &str) {
    let mut events = leader.events();
    events.retain(|line| line != "takes over");
    assert_eq!(events[..4], ["stands by", "leads", "told: SessionEnded", ended]);
    assert!(events[4..].iter().all(|line| line == "leads" || line == "asked in vain: Unavailable"), "{events:?}");
}
