//! The server restarts, in an orderly way or as by a crash: both replicas come back, and one of them leads.

use std::{io, time::Duration};

use distributed_lock::{
    Bound, FencingToken,
    lease::{LeaseExit, LeaseState},
};
use libtest_mimic::Trial;
use lock_testkit::{Cluster, Observer, wait_until};
use tests::lease::locker::LockerKind;

use crate::{
    bench::{JOB, deaf, lease, long_lease, obedient, one_stands_by, within},
    referee::Referee,
    replica::Replica,
    server::{AMPLE, Server, ms, shortened, trial_alone},
};

type Restart = fn(&Cluster) -> io::Result<()>;

/// So long a grace that a server is back within it.
const LONG_GRACE: Duration = Duration::from_millis(1_000);

/// D + g for it, the shortest that is taken.
const DELAY: Duration = Duration::from_millis(2_100);

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    let both_come_back = |name, restart: Restart| {
        trial_alone(locker, name, |builder| builder, move |cluster, server| both_come_back(cluster, server, restart))
    };
    let delayed = |name, restart: Restart| {
        trial_alone(locker, name, |builder| builder, move |cluster, server| delayed(cluster, server, restart))
    };
    let mut trials = vec![
        both_come_back("restart::both_come_back_and_one_leads", Cluster::restart),
        both_come_back("restart::both_come_back_from_a_crash_and_one_leads", Cluster::restart_immediate),
    ];
    // The delay is the runner's.
    if locker == LockerKind::Postgres {
        trials.extend([
            delayed("restart::takeover_delay_keeps_the_next_job_out_until_a_deaf_one_is_gone", Cluster::restart),
            delayed("restart::takeover_delay_keeps_the_next_job_out_after_a_crash_too", Cluster::restart_immediate),
        ]);
    }
    trials
}

async fn both_come_back(cluster: Cluster, server: Server, restart: Restart) {
    let referee = Referee::default();
    let start = |name| server.start(name, &server.config(), long_lease(), &referee, obedient);
    let leader = start("leader");
    let before = leader.leads().await.fencing_token();
    let standby = start("standby");
    server.standbys(1).await;
    tokio::task::block_in_place(|| restart(&cluster)).unwrap();
    if server.locker == LockerKind::Postgres {
        standby.event("asked in vain: Unavailable").await;
    }
    leader.event("ended: Ok, SessionEnded, lost").await;
    let next = next_leader([&leader, &standby], before).await;
    // The other one is there too, and leads as soon as it may.
    let observer = Observer::connect(&server.admin).await.unwrap();
    one_stands_by(&observer).await;
    // Told by its socket, and of nothing else.
    let events = leader.events();
    assert_eq!(events[..4], ["stands by", "leads", "told: SessionEnded", "ended: Ok, SessionEnded, lost"]);
    assert!(events[4..].iter().all(|line| line == "leads" || line == "asked in vain: Unavailable"), "{events:?}");
    let (next, other) = if next == 0 { (leader, standby) } else { (standby, leader) };
    assert!(next.runner.step_down(JOB));
    other.leads().await;
    ensure_overlap(&referee, next.promised().overlap_forgotten);
    assert_eq!(referee.terms().len(), 3, "{referee:?}");
    for replica in [next, other] {
        let exit = replica.close().await;
        assert!(matches!(exit, LeaseExit::Closed(_)), "{exit:?}");
    }
    observer.quiet(AMPLE).await.unwrap();
}

/// The job does not mind being told, and goes on for its grace when the server is back. The next one waits for longer than that.
async fn delayed(cluster: Cluster, server: Server, restart: Restart) {
    let lease = lease().with_ttl(Duration::from_secs(3)).with_grace(LONG_GRACE).with_takeover_delay(DELAY);
    let referee = Referee::default();
    let start = |name| server.start(name, &shortened(server.config()), lease.clone(), &referee, deaf);
    let leader = start("leader");
    let before = leader.leads().await.fencing_token();
    let standby = start("standby");
    server.standbys(1).await;
    tokio::task::block_in_place(|| restart(&cluster)).unwrap();
    let next = next_leader([&leader, &standby], before).await;
    ensure_overlap(&referee, Bound::Within(ms(0)));
    assert_eq!(leader.promised().overlap_forgotten, Bound::Within(ms(0)));
    let events = leader.events();
    let lost = ["takes over", "leads", "told: SessionEnded", "ended: Dropped, SessionEnded, lost"];
    assert_eq!(events[1..5], lost);
    let (next, other) = if next == 0 { (leader, standby) } else { (standby, leader) };
    let (_closed, _stood_by) = (next.close().await, other.close().await);
    Observer::connect(&server.admin).await.unwrap().quiet(AMPLE).await.unwrap();
}

fn ensure_overlap(referee: &Referee, bound: Bound) {
    referee.ensure_tokens_rise();
    let overlap = referee.overlap();
    println!("overlap {overlap:?}, bound {bound}");
    assert!(overlap <= within(bound), "two worked for {overlap:?}: {referee:?}");
}

/// The index of the first to lead with a higher token than that.
async fn next_leader(replicas: [&Replica; 2], than: Option<FencingToken>) -> usize {
    let leads =
        |replica: &&Replica| matches!(replica.watch.state(), LeaseState::Leading(hold) if hold.fencing_token() > than);
    let led = wait_until(AMPLE, "one leads", async || replicas.iter().any(leads));
    led.await.unwrap_or_else(|_| panic!("nobody leads: {:?}", replicas.map(Replica::events)));
    let next = usize::from(!leads(&replicas[0]));
    replicas[next].leads().await;
    next
}
