//! Throw-away clusters on a real server.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test; clippy knows only those of the standard harness")]

mod common;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use common::block_on;
use lock_testkit::postgres::StartError;
use lock_testkit::{Cluster, wait_until, wait_until_blocking};
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

fn main() -> ExitCode {
    common::run(&[
        ("cluster_takes_sessions_over_tcp_and_socket", cluster_takes_sessions_over_tcp_and_socket),
        ("dropped_cluster_leaves_no_process_and_no_folder", dropped_cluster_leaves_no_process_and_no_folder),
        ("dropped_cluster_leaves_nothing_even_if_frozen", dropped_cluster_leaves_nothing_even_if_frozen),
        ("killed_postmaster_leaves_nothing_after_drop", killed_postmaster_leaves_nothing_after_drop),
        ("clusters_run_side_by_side_and_stop_alone", clusters_run_side_by_side_and_stop_alone),
        ("restart_immediate_cuts_sessions_and_keeps_data", restart_immediate_cuts_sessions_and_keeps_data),
        (
            "killed_backend_cuts_all_sessions_and_no_stranger_is_killed",
            killed_backend_cuts_all_sessions_and_no_stranger_is_killed,
        ),
        ("stopped_cluster_refuses_and_restarts", stopped_cluster_refuses_and_restarts),
        ("settings_reach_the_server", settings_reach_the_server),
        ("bad_setting_fails_with_the_servers_words", bad_setting_fails_with_the_servers_words),
        ("password_is_asked_for_and_never_shown", password_is_asked_for_and_never_shown),
        ("shared_cluster_gives_databases_of_ones_own", shared_cluster_gives_databases_of_ones_own),
        ("standby_replicates_and_is_read_only", standby_replicates_and_is_read_only),
    ])
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn text(client: &Client, query: &str) -> String {
    client.query_one(query, &[]).await.expect("an answer").get(0)
}

fn pid_of(cluster: &Cluster) -> Pid {
    Pid::from_raw(cluster.postmaster_pid().expect("running").try_into().expect("a pid")).expect("a pid")
}

fn root_of(cluster: &Cluster) -> String {
    cluster.socket_dir().display().to_string()
}

fn processes_in(root: &str) -> usize {
    let name = root.rsplit_once('/').expect("a path").1;
    common::processes_naming(|part| part == name).len()
}

fn cluster_takes_sessions_over_tcp_and_socket() {
    let cluster = Cluster::start().unwrap();
    block_on(async {
        for client in [connect(&cluster.url()).await.unwrap(), cluster.admin().await.unwrap()] {
            let version = text(&client, "SHOW server_version_num").await;
            assert_eq!(version[..2], cluster.major_version().to_string());
            assert_eq!(text(&client, "SHOW fsync").await, "off");
        }
        let admin = cluster.admin().await.unwrap();
        assert_eq!(text(&admin, "SHOW data_directory").await, format!("{}/data", root_of(&cluster)));
        assert_eq!(text(&admin, "SELECT pg_catalog.current_setting('application_name')").await, "lock-testkit");
    });
}

fn dropped_cluster_leaves_no_process_and_no_folder() {
    let cluster = Cluster::start().unwrap();
    let root = root_of(&cluster);
    assert!(processes_in(&root) > 2, "the check sees processes while there are some");
    block_on(async {
        let client = connect(&cluster.url()).await.unwrap();
        drop(cluster);
        assert!(client.query("SELECT 1", &[]).await.is_err());
    });
    assert!(!Path::new(&root).exists());
    assert_eq!(processes_in(&root), 0);
}

fn dropped_cluster_leaves_nothing_even_if_frozen() {
    let cluster = Cluster::start().unwrap();
    let root = root_of(&cluster);
    kill_process(pid_of(&cluster), Signal::STOP).unwrap();
    drop(cluster);
    assert!(!Path::new(&root).exists());
    assert_eq!(processes_in(&root), 0);
}

fn killed_postmaster_leaves_nothing_after_drop() {
    let cluster = Cluster::start().unwrap();
    let root = root_of(&cluster);
    let pid = pid_of(&cluster);
    let backend: i32 = block_on(async {
        let admin = cluster.admin().await.unwrap();
        admin.query_one("SELECT pg_catalog.pg_backend_pid()", &[]).await.unwrap().get(0)
    });
    let segments = || fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let status = fs::read_to_string(cluster.socket_dir().join("data/postmaster.pid")).unwrap();
    let segment = status.lines().nth(6).unwrap().split_whitespace().nth(1).unwrap().to_owned();
    let has_segment = || segments().lines().any(|line| line.split_whitespace().nth(1) == Some(&segment));
    assert!(has_segment(), "the check sees the segment while it is there");
    // A frozen child cannot notice that its postmaster is gone.
    let checkpointer = children_of(pid).into_iter().find(|child| child.as_raw_nonzero().get() != backend).unwrap();
    kill_process(checkpointer, Signal::STOP).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    drop(cluster);
    assert!(!Path::new(&root).exists());
    assert!(!has_segment());
    // The orphans are collected by the system's first process, not by the kit.
    let gone = wait_until_blocking(Duration::from_secs(5), "orphans are gone", || processes_in(&root) == 0);
    gone.unwrap();
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let raw = parent.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{raw}/task/{raw}/children")).unwrap();
    children.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect()
}

fn clusters_run_side_by_side_and_stop_alone() {
    let (one, other) = (Cluster::start().unwrap(), Cluster::start().unwrap());
    assert_ne!(one.port(), other.port());
    drop(one);
    block_on(async { assert!(connect(&other.url()).await.is_ok()) });
}

fn restart_immediate_cuts_sessions_and_keeps_data() {
    let cluster = Cluster::start().unwrap();
    let (url, first) = (cluster.url(), cluster.postmaster_pid());
    block_on(async {
        let client = connect(&url).await.unwrap();
        client.batch_execute("CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)").await.unwrap();
        cluster.restart_immediate().unwrap();
        assert_ne!(cluster.postmaster_pid(), first);
        assert!(client.query("SELECT 1", &[]).await.is_err());
        let client = connect(&url).await.unwrap();
        assert_eq!(text(&client, "SELECT n::text FROM kept").await, "7");
    });
    assert!(cluster.log().contains("not properly shut down"), "{}", cluster.log());
}

fn killed_backend_cuts_all_sessions_and_no_stranger_is_killed() {
    let cluster = Cluster::start().unwrap();
    let postmaster = cluster.postmaster_pid();
    let mut stranger = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    assert!(!cluster.kill_backend(stranger.id().try_into().unwrap()).unwrap());
    assert!(!cluster.kill_backend(postmaster.unwrap().try_into().unwrap()).unwrap());
    assert!(!cluster.kill_backend(0).unwrap());
    assert!(stranger.try_wait().unwrap().is_none(), "a stranger was killed");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    block_on(async {
        let (victim, other) = (cluster.admin().await.unwrap(), cluster.admin().await.unwrap());
        let pid = victim.query_one("SELECT pg_catalog.pg_backend_pid()", &[]).await.unwrap().get(0);
        assert!(cluster.kill_backend(pid).unwrap());
        let cut = async || victim.is_closed() && other.is_closed();
        wait_until(Duration::from_secs(10), "all sessions are cut", cut).await.unwrap();
        let recovered = async || cluster.admin().await.is_ok();
        wait_until(Duration::from_secs(10), "the server takes sessions", recovered).await.unwrap();
        assert!(!cluster.kill_backend(pid).unwrap(), "it is gone");
    });
    assert_eq!(cluster.postmaster_pid(), postmaster);
}

fn stopped_cluster_refuses_and_restarts() {
    let cluster = Cluster::start().unwrap();
    for stop in [Cluster::stop, Cluster::stop_immediate] {
        stop(&cluster).unwrap();
        assert_eq!(cluster.postmaster_pid(), None);
        block_on(async { assert!(connect(&cluster.url()).await.is_err()) });
        stop(&cluster).unwrap();
        cluster.restart().unwrap();
        block_on(async { assert!(connect(&cluster.url()).await.is_ok()) });
    }
}

fn settings_reach_the_server() {
    let cluster = Cluster::builder().durable().setting("max_connections", 17).start().unwrap();
    block_on(async {
        let admin = cluster.admin().await.unwrap();
        assert_eq!(text(&admin, "SHOW max_connections").await, "17");
        assert_eq!(text(&admin, "SHOW fsync").await, "on");
    });
}

fn bad_setting_fails_with_the_servers_words() {
    let error = Cluster::builder().setting("max_connections", "many").start().unwrap_err();
    assert!(matches!(error, StartError::Failed { .. }), "{error}");
    assert!(error.to_string().contains("invalid value for parameter \"max_connections\": \"many\""), "{error}");
}

fn password_is_asked_for_and_never_shown() {
    let cluster = Cluster::builder().password_auth().start().unwrap();
    let password = cluster.password().unwrap();
    assert!(!format!("{cluster:?}").contains(password));
    block_on(async {
        connect(&cluster.url()).await.unwrap();
        cluster.admin().await.unwrap();
        let wrong = cluster.url().replace(password, "wrong");
        let Err(refused) = connect(&wrong).await else { panic!("a wrong password is taken") };
        assert_eq!(refused.code(), Some(&SqlState::INVALID_PASSWORD));
        assert!(connect(&cluster.url_for("other", "postgres")).await.is_err());
    });
}

fn shared_cluster_gives_databases_of_ones_own() {
    let cluster = Cluster::shared().unwrap();
    assert_eq!(cluster.port(), Cluster::shared().unwrap().port());
    block_on(async {
        let (one, other) = (cluster.create_database().await.unwrap(), cluster.create_database().await.unwrap());
        assert_ne!(one, other);
        let client = connect(&cluster.url_for("postgres", &one)).await.unwrap();
        assert_eq!(text(&client, "SELECT pg_catalog.current_database()::text").await, one);
    });
}

fn standby_replicates_and_is_read_only() {
    let primary = Cluster::builder().password_auth().start().unwrap();
    let standby = primary.standby().unwrap();
    block_on(async {
        let client = connect(&primary.url()).await.unwrap();
        client.batch_execute("CREATE TABLE replicated (n int)").await.unwrap();
        let reader = connect(&standby.url()).await.unwrap();
        let arrives = wait_until(Duration::from_secs(10), "the table arrives", async || {
            reader.query("SELECT n FROM replicated", &[]).await.is_ok()
        });
        arrives.await.unwrap();
        let refused = reader.batch_execute("INSERT INTO replicated VALUES (1)").await.unwrap_err();
        assert_eq!(refused.code(), Some(&SqlState::READ_ONLY_SQL_TRANSACTION));
        assert_eq!(text(&reader, "SELECT pg_catalog.pg_is_in_recovery()::text").await, "true");
        reader.query("SELECT pg_catalog.pg_promote()", &[]).await.unwrap();
        reader.batch_execute("INSERT INTO replicated VALUES (1)").await.unwrap();
    });
}
