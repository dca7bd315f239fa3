//! The server fails over to its hot standby.

use distributed_lock::lease::LeaseState;
use libtest_mimic::Trial;
use lock_postgres::PostgresConfig;
use lock_testkit::{Cluster, Observer, wait_until};
use tests::lease::locker::LockerKind;

use crate::{
    bench::{JOB, long_lease, obedient, one_stands_by, within},
    referee::Referee,
    replica::Replica,
    server::{AMPLE, Server, trial_alone},
};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    let follow = "failover::case_22_both_replicas_follow_to_the_new_primary_with_higher_tokens";
    let mut trials = vec![trial_alone(locker, follow, |b| b, both_follow)];
    // The token is the server's.
    if locker == LockerKind::Postgres {
        let split = "failover::case_22_token_of_the_new_primary_is_above_those_of_one_that_runs_on";
        trials.push(trial_alone(locker, split, |b| b, split_brain));
    }
    trials
}

/// A look at the database of the test on another server.
async fn observer(of: &Cluster) -> Observer {
    Observer::connect(&of.admin_config("postgres")).await.unwrap()
}

async fn promote(standby: &Cluster) {
    let admin = standby.admin().await.unwrap();
    let promoted: bool = admin.query_one("SELECT pg_catalog.pg_promote()", &[]).await.unwrap().get(0);
    assert!(promoted, "it did not become a primary");
}

/// The old primary is gone, as after an orderly failover. Both know both servers by name, and ask for the one that writes.
async fn both_follow(primary: Cluster, server: Server) {
    let standby_server = tokio::task::block_in_place(|| primary.standby()).unwrap();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), standby_server.port());
    let config = PostgresConfig::from_url(format!("postgres://postgres@{hosts}/postgres"));
    let referee = Referee::default();
    let start = |name| server.start(name, &config, long_lease(), &referee, obedient);
    let leader = start("leader");
    leader.leads().await;
    let standby = start("standby");
    one_stands_by(&observer(&primary).await).await;
    tokio::task::block_in_place(|| primary.stop()).unwrap();
    // The old standby refuses meanwhile, since it would grant what the primary has granted.
    standby.event("asked in vain: Misconfigured").await;
    leader.event("ended: Ok, SessionEnded, lost").await;
    assert_eq!(referee.terms(), ["leader"]);
    promote(&standby_server).await;
    let observer = observer(&standby_server).await;
    one_stands_by(&observer).await;
    let leads = |replica: &Replica| matches!(replica.watch.state(), LeaseState::Leading(_));
    let led = wait_until(AMPLE, "one leads", async || leads(&leader) || leads(&standby));
    led.await.unwrap();
    let (next, other) = if leads(&leader) { (leader, standby) } else { (standby, leader) };
    next.leads().await;
    assert!(next.runner.step_down(JOB));
    other.leads().await;
    assert_eq!(referee.terms().len(), 3, "{referee:?}");
    referee.ensure_tokens_rise();
    assert!(referee.overlap() <= within(next.promised().overlap_forgotten), "{referee:?}");
    for replica in [next, other] {
        let _closed = replica.close().await;
    }
    observer.quiet(AMPLE).await.unwrap();
}

/// What no lock can bound: the old primary runs on and can be reached. The resource tells by the token, whoever asks it later.
async fn split_brain(old: Cluster, server: Server) {
    let new = tokio::task::block_in_place(|| old.standby()).unwrap();
    let referee = Referee::default();
    let start = |name, cluster: &Cluster| {
        server.start(name, &PostgresConfig::from_url(cluster.url()), long_lease(), &referee, obedient)
    };
    let left_behind = start("left behind", &old);
    left_behind.leads().await;
    promote(&new).await;
    let next = start("next", &new);
    let token = next.leads().await.fencing_token();
    assert!(left_behind.leads().await.fencing_token() < token);
    // Also for terms that begin there later, with a log that is far ahead of the new one's.
    let ahead = "SELECT pg_catalog.pg_switch_wal(); CREATE TABLE public.ahead (n int4); CHECKPOINT";
    for statement in ahead.split("; ") {
        old.admin().await.unwrap().batch_execute(statement).await.unwrap();
    }
    assert!(left_behind.runner.step_down(JOB));
    left_behind.nth_event(2, "leads").await;
    assert!(left_behind.leads().await.fencing_token() < token);
    for replica in [left_behind, next] {
        let _closed = replica.close().await;
    }
}
