//! Connecting: servers that are not there yet, and passwords that change between one connection and the next.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    sync::{Arc, Mutex},
};

use libtest_mimic::Trial;
use lock_postgres::PostgresConfig;
use lock_testkit::{Cluster, Observer};
use tempfile::TempDir;
use tests::lease::locker::LockerKind;

use crate::{
    bench::{JOB, long_lease, obedient, one_stands_by, within},
    referee::Referee,
    replica::Replica,
    server::{AMPLE, Server, ms, trial_alone},
};

/// As often as in a minute with the default retry interval of 5 s. Lanes are opened after pauses that grow, which makes fewer.
fn retries(locker: LockerKind) -> usize {
    match locker {
        LockerKind::Postgres => 12,
        LockerKind::Shared => 8,
    }
}

const OLD: &str = "canary-old-7d21";
const NEW: &str = "canary-new-c0b3";

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    let mut trials = vec![
        trial_alone(locker, "connecting::refused_for_a_minute_of_retries_is_told_and_not_fatal", |b| b, refused),
        trial_alone(
            locker,
            "connecting::password_file_that_changed_serves_the_standby_and_the_next_term",
            |builder| builder.password_auth(),
            password_file,
        ),
    ];
    // Where passwords come from is the same for all sessions.
    if locker == LockerKind::Postgres {
        trials.push(trial_alone(
            locker,
            "connecting::password_callback_serves_the_standby_and_the_next_term",
            |builder| builder.password_auth(),
            password_callback,
        ));
    }
    trials
}

/// From the very first attempt on: nothing tells a server that is late from one that never comes.
async fn refused(cluster: Cluster, server: Server) {
    tokio::task::block_in_place(|| cluster.stop()).unwrap();
    let referee = Referee::default();
    let config = server.config();
    let start = |name| server.start(name, &config, long_lease().with_retry_interval(ms(50)), &referee, obedient);
    let (one, other) = (start("one"), start("other"));
    for replica in [&one, &other] {
        replica.nth_event(retries(server.locker), "asked in vain: Unavailable").await;
        replica.watch.health().unwrap();
        assert_eq!(replica.all_events(), ["stands by", "asked in vain: Unavailable"]);
    }
    assert!(referee.terms().is_empty());
    tokio::task::block_in_place(|| cluster.restart()).unwrap();
    let observer = Observer::connect(&server.admin).await.unwrap();
    one_stands_by(&observer).await;
    let leading = |replica: &Replica| replica.events().last().is_some_and(|line| line == "leads");
    let (leader, standby) = if leading(&one) { (one, other) } else { (other, one) };
    leader.leads().await;
    assert!(!leading(&standby), "both lead");
    assert!(leader.runner.step_down(JOB));
    standby.leads().await;
    assert_eq!(referee.overlap(), ms(0));
    for replica in [leader, standby] {
        let _closed = replica.close().await;
    }
    observer.quiet(AMPLE).await.unwrap();
}

async fn password_file(cluster: Cluster, server: Server) {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, OLD);
    let config = app(&cluster, &server).with_password_file(folder.path().join("password"));
    rotated(cluster, server, config, || write(&folder, NEW)).await;
}

async fn password_callback(cluster: Cluster, server: Server) {
    let password = Arc::new(Mutex::new(OLD));
    let given = Arc::clone(&password);
    let config = app(&cluster, &server).with_password_callback(move || {
        let given = (*given.lock().unwrap()).to_owned();
        async move { Ok::<_, io::Error>(given) }
    });
    rotated(cluster, server, config, || *password.lock().unwrap() = NEW).await;
}

/// The role `app`, without a word about its password.
fn app(cluster: &Cluster, server: &Server) -> PostgresConfig {
    let database = server.admin.get_dbname().unwrap();
    PostgresConfig::from_url(cluster.url_for("app", database))
}

/// By a rename, as secret stores do.
fn write(folder: &TempDir, password: &str) {
    let next = folder.path().join("next");
    fs::write(&next, password).unwrap();
    fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(next, folder.path().join("password")).unwrap();
}

/// Sessions that are open live on. What connects next is denied until its source gives the new password, and tried again.
async fn rotated(cluster: Cluster, server: Server, config: PostgresConfig, change: impl FnOnce()) {
    let admin = cluster.admin().await.unwrap();
    admin.batch_execute(&format!("CREATE ROLE app LOGIN PASSWORD '{OLD}'")).await.unwrap();
    let referee = Referee::default();
    let start = |name| server.start(name, &config, long_lease(), &referee, obedient);
    let leader = start("leader");
    let first = leader.leads().await;
    let standby = start("standby");
    let waiter = server.standbys(1).await[0];
    admin.batch_execute(&format!("ALTER ROLE app PASSWORD '{NEW}'")).await.unwrap();
    match server.locker {
        LockerKind::Postgres => {
            server.observer.terminate(waiter).await.unwrap();
            standby.event("asked in vain: Denied").await;
            change();
            server.standbys(1).await;
            first.ensure_valid().unwrap();
            assert_eq!(leader.events(), ["stands by", "leads"]);
            server.observer.terminate(server.holder().await).await.unwrap();
        }
        // The standby has its sessions still; the former leader must connect to stand by.
        LockerKind::Shared => {
            server.observer.terminate(server.holder().await).await.unwrap();
            leader.event("asked in vain: Denied").await;
            change();
        }
    }
    standby.leads().await;
    server.standbys(1).await;
    assert!(standby.runner.step_down(JOB));
    leader.leads().await;
    assert_eq!(referee.terms(), ["leader", "standby", "leader"]);
    referee.ensure_tokens_rise();
    assert!(referee.overlap() <= within(leader.promised().overlap_forgotten));
    for replica in [leader, standby] {
        let _closed = replica.close().await;
    }
    server.quiet().await;
}
