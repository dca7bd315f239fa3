//! Somebody clears the locks of the leader's session from within it, as a pooler or a colleague's tool does.

use distributed_lock::LossCause;
use libtest_mimic::Trial;

use crate::{
    bench::{deaf, intruded, lease, within},
    referee::Referee,
    replica::Replica,
    server::{Server, Watch, shortened, trial},
};

pub(crate) fn trials() -> Vec<Trial> {
    let cleared = |name: &str, statements| {
        trial(&format!("meddling::{name}_is_noticed_within_the_detection_bound"), move |server| {
            cleared(server, statements)
        })
    };
    vec![
        cleared("discard_all", "DISCARD ALL"),
        cleared("unlock_of_everything", "SELECT pg_catalog.pg_advisory_unlock_all()"),
    ]
}

async fn cleared(server: Server, statements: &'static str) {
    let (intruder, intruded) = intruded(&server).await;
    let referee = Referee::default();
    let leader = Replica::start("leader", &shortened(intruded), lease(), &referee, deaf);
    leader.leads().await;
    let standby = Replica::start("standby", &shortened(server.config()), lease(), &referee, deaf);
    server.waiters(1).await;
    let promised = leader.runner.guarantees();
    let watch = Watch::start();
    intruder.run(statements).await;
    watch.at_within(standby.event("leads").await, within(promised.takeover_killed), "the standby leads");
    let ended = if statements == "DISCARD ALL" {
        // Prepared statements went with the locks, so the answer is an error of the session.
        leader.event("ended: Dropped, SessionEnded, lost").await
    } else {
        leader.event("ended: Dropped, NotOurs, lost").await
    };
    watch.at_within(ended, within(promised.overlap_forgotten), "the job is gone");
    let overlap = referee.overlap();
    println!("overlap {overlap:?}, bound {}", promised.overlap_forgotten);
    assert!(overlap <= within(promised.overlap_forgotten), "two worked for {overlap:?}");
    let loss = leader.only_end().loss.unwrap().cause();
    assert!(matches!(loss, LossCause::NotOurs | LossCause::SessionEnded), "{loss:?}");
    // It has its place in the queue again, on a session that nobody meddled with.
    server.waiters(1).await;
    let _closed = standby.close().await;
    leader.leads().await.ensure_valid().unwrap();
    referee.ensure_tokens_rise();
    assert_eq!(referee.terms(), ["leader", "standby", "leader"]);
    let _closed = leader.close().await;
    server.quiet().await;
}
