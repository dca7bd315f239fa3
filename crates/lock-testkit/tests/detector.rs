//! The two-holder detector, on a real server and in memory.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test; clippy knows only those of the standard harness")]

mod common;

use std::process::ExitCode;
use std::time::Duration;

use common::block_on;
use libtest_mimic::{Arguments, Trial};
use lock_testkit::detector::{DetectorError, TwoHolders};
use lock_testkit::{Cluster, Detector, Observer, wait_until};
use tokio_postgres::Config;

fn main() -> ExitCode {
    let both: &[(&str, Watch)] = &[
        ("second_owner_is_a_violation_with_both_names", second_owner_is_a_violation_with_both_names),
        ("one_after_the_other_and_other_keys_are_fine", one_after_the_other_and_other_keys_are_fine),
        ("dropped_owner_has_left_before_the_next_enters", dropped_owner_has_left_before_the_next_enters),
        ("abandoned_entry_is_in_nobodys_way", abandoned_entry_is_in_nobodys_way),
    ];
    let in_memory = both.iter().map(|&(name, body)| {
        Trial::test(format!("memory::{name}"), move || {
            body(Detector::in_memory());
            Ok(())
        })
    });
    let in_postgres = both.iter().map(|&(name, body)| {
        lock_testkit::requirement::trial(format!("postgres::{name}"), Cluster::shared, move |_| {
            // The detector's task must run while the body blocks, so it gets a runtime of its own.
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            body(runtime.block_on(Detector::in_postgres(&runtime.block_on(database())))?);
            Ok(())
        })
    });
    let real: &[(&str, common::Body)] = &[
        ("detectors_of_one_database_watch_together", detectors_of_one_database_watch_together),
        ("owner_removed_by_another_is_told", owner_removed_by_another_is_told),
        ("detector_without_its_session_is_blind", detector_without_its_session_is_blind),
    ];
    let trials = in_memory.chain(in_postgres).chain(real.iter().map(common::trial)).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

type Watch = fn(Detector);

async fn database() -> Config {
    let cluster = Cluster::shared().unwrap();
    cluster.admin_config(&cluster.create_database().await.unwrap())
}

fn two_holders(result: Result<impl std::fmt::Debug, DetectorError>) -> TwoHolders {
    match result {
        Err(DetectorError::TwoHolders(violation)) => violation,
        other => panic!("{other:?}"),
    }
}

fn second_owner_is_a_violation_with_both_names(detector: Detector) {
    block_on(async {
        let inside = detector.enter("key", "one").await.unwrap();
        let violation = two_holders(detector.clone().enter("key", "two").await);
        assert_eq!(violation, TwoHolders { key: "key".into(), inside: Some("one".into()), entered: "two".into() });
        assert_eq!(violation.to_string(), "two holders of \"key\": two entered while one was inside");
        two_holders(detector.enter("key", "one").await);
        assert_eq!(detector.violations().await.unwrap(), 2);
        inside.leave().await.unwrap();
    });
}

fn one_after_the_other_and_other_keys_are_fine(detector: Detector) {
    block_on(async {
        let other = detector.enter("other", "one").await.unwrap();
        for owner in ["one", "two", "one"] {
            detector.enter("key", owner).await.unwrap().leave().await.unwrap();
        }
        other.leave().await.unwrap();
        assert_eq!(detector.violations().await.unwrap(), 0);
    });
}

fn dropped_owner_has_left_before_the_next_enters(detector: Detector) {
    block_on(async {
        for owner in ["one", "two", "three"] {
            drop(detector.enter("key", owner).await.unwrap());
        }
        assert_eq!(detector.violations().await.unwrap(), 0);
    });
}

fn abandoned_entry_is_in_nobodys_way(detector: Detector) {
    block_on(async {
        // Polled once: the order to enter is given, and nobody waits for the answer.
        let abandoned = tokio::time::timeout(Duration::ZERO, detector.enter("key", "one")).await;
        drop(abandoned);
        detector.enter("key", "two").await.unwrap().leave().await.unwrap();
    });
}

fn detectors_of_one_database_watch_together() {
    block_on(async {
        let config = database().await;
        let (one, two) = tokio::join!(Detector::in_postgres(&config), Detector::in_postgres(&config));
        let (one, two) = (one.unwrap(), two.unwrap());
        let inside = one.enter("key", "one").await.unwrap();
        assert_eq!(two_holders(two.enter("key", "two").await).inside.as_deref(), Some("one"));
        inside.leave().await.unwrap();
        two.enter("key", "two").await.unwrap().leave().await.unwrap();
        assert_eq!((one.violations().await.unwrap(), two.violations().await.unwrap()), (1, 1));
    });
}

fn owner_removed_by_another_is_told() {
    block_on(async {
        let config = database().await;
        let detector = Detector::in_postgres(&config).await.unwrap();
        let inside = detector.enter("key", "one").await.unwrap();
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("DELETE FROM lock_testkit.inside").await.unwrap();
        assert!(matches!(inside.leave().await, Err(DetectorError::NotInside { .. })));
    });
}

fn detector_without_its_session_is_blind() {
    block_on(async {
        let config = database().await;
        let detector = Detector::in_postgres(&config).await.unwrap();
        let observer = Observer::connect(&config).await.unwrap();
        assert_eq!(observer.sessions().await.unwrap(), [], "the detector's session is the kit's");
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let end = "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
                   WHERE datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()";
        client.execute(end, &[]).await.unwrap();
        let blind = wait_until(Duration::from_secs(10), "the session has ended", async || {
            matches!(detector.enter("key", "one").await, Err(DetectorError::Blind(_)))
        });
        blind.await.unwrap();
        assert!(matches!(detector.violations().await, Err(DetectorError::Blind(_))));
    });
}
