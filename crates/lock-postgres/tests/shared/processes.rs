//! Processes that want one key. Each is this very program: what it is to do comes by the environment.

use std::{env, process::ExitCode, process::Stdio, sync::Arc};

use distributed_lock::{Backend, Locker};
use libtest_mimic::Trial;
use lock_postgres::PostgresConfig;
use lock_testkit::{APPLICATION_NAME, Detector};
use tokio::{process::Command, runtime::Runtime, time::timeout};

use crate::{
    bench::{AMPLE, Server, shortened, trial},
    exclusion::crowd,
    lanes::session,
};

const URL: &str = "LOCK_TEST_SHARED_URL";

/// Tasks of a process, and how often each takes the key.
const TASKS: usize = 3;
const ROUNDS: usize = 15;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("processes::crowds_of_three_processes_hold_one_at_a_time", three)]
}

/// One of the processes, if this is one.
pub(crate) fn worker() -> Option<ExitCode> {
    let url = env::var(URL).ok()?;
    Runtime::new().unwrap().block_on(work(&url));
    Some(ExitCode::SUCCESS)
}

async fn work(url: &str) {
    let mut config: tokio_postgres::Config = url.parse().unwrap();
    let detector = Detector::in_postgres(config.application_name(APPLICATION_NAME)).await.unwrap();
    let session = Arc::new(session(&shortened(PostgresConfig::from_url(url))));
    let lockers = (0..TASKS).map(|_| Arc::clone(&session) as Arc<dyn Locker>).collect();
    crowd(lockers, &detector, ROUNDS, &format!("process {}", std::process::id())).await;
    session.close().await.unwrap();
}

async fn three(server: Server) {
    let children: Vec<_> = (0..2)
        .map(|_| {
            let mut command = Command::new(env::current_exe().unwrap());
            command.env(URL, &server.url).stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap()
        })
        .collect();
    work(&server.url).await;
    for mut child in children {
        let exit = timeout(AMPLE * 3, child.wait()).await.expect("a process does not come to its end").unwrap();
        assert!(exit.success(), "{exit}");
    }
    let detector = Detector::in_postgres(&server.admin).await.unwrap();
    assert_eq!(detector.violations().await.unwrap(), 0);
    server.quiet().await;
}
