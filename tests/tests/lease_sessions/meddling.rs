//! Somebody else is in the leader's session, as a pooler or a colleague's tool can be: its locks are cleared, or its heartbeats fail.

use std::time::Duration;

use libtest_mimic::Trial;
use tests::lease::locker::LockerKind;

use crate::{
    bench::{deaf, intruded, lease, meddle, within},
    referee::Referee,
    replica::next_leader,
    server::{Server, Watch, shortened, trial},
};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    let noticed = |name: &str, meddled: Meddled| {
        trial(locker, &format!("meddling::{name}_within_the_detection_bound"), move |server| noticed(server, meddled))
    };
    vec![
        // Prepared statements go with the locks, so the server refuses the heartbeat and says nothing of the lock.
        noticed("discard_all_is_noticed", Meddled { by: "DISCARD ALL", loss: "HeartbeatTimeout", forgotten: true }),
        noticed(
            "unlock_of_everything_is_noticed",
            Meddled { by: "SELECT pg_catalog.pg_advisory_unlock_all()", loss: "NotOurs", forgotten: true },
        ),
        noticed(
            "case_11_heartbeats_without_their_statement_end_the_term",
            Meddled { by: "DEALLOCATE ALL", loss: "HeartbeatTimeout", forgotten: false },
        ),
        noticed(
            "case_11_heartbeats_in_a_failed_transaction_end_the_term",
            Meddled { by: "BEGIN; SELECT 1/0", loss: "HeartbeatTimeout", forgotten: false },
        ),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Meddled {
    by: &'static str,
    loss: &'static str,
    /// Whether the server has given the lease away at once.
    forgotten: bool,
}

async fn noticed(server: Server, Meddled { by, loss, forgotten }: Meddled) {
    let (intruder, intruded) = intruded(&server).await;
    let referee = Referee::default();
    let mut leader = server.start("leader", &shortened(intruded), lease(), &referee, deaf);
    leader.leads().await;
    let mut standby = server.start("standby", &shortened(server.config()), lease(), &referee, deaf);
    server.standbys(1).await;
    let promised = leader.promised();
    let watch = Watch::start();
    meddle(&server, &intruder, by).await;
    watch.at_within(leader.event(&format!("told: {loss}")).await, promised.detection, "the leader is told");
    let (told, ended) = (format!("told: {loss}"), format!("ended: Dropped, {loss}, lost"));
    leader.event(&ended).await;
    // Where the server has kept the lock it is free when the job has ended.
    let kept = if forgotten { Duration::ZERO } else { promised.detection + promised.grace };
    let takeover = within(promised.takeover_killed) + kept;
    let next = next_leader(&mut leader, &mut standby).await;
    watch.at_within(next.at, takeover, "one leads again");
    // The other one has its place in the queue, on a session that nobody meddled with.
    server.standbys(1).await;
    let lost = ["stands by", "leads", &told, &ended, "leads"];
    let (of_next, of_other) = if next.again { (&lost[..], &lost[..2]) } else { (&lost[..2], &lost[..]) };
    assert_eq!(standby.events(), of_next);
    let _closed = standby.close().await;
    leader.leads().await.ensure_valid().unwrap();
    let overlap = referee.overlap();
    let bound = if forgotten { promised.overlap_forgotten } else { promised.overlap_ended };
    println!("overlap {overlap:?}, bound {bound}");
    assert!(overlap <= within(bound), "two worked for {overlap:?}");
    referee.ensure_tokens_rise();
    let [next, other] = if next.again { ["leader", "standby"] } else { ["standby", "leader"] };
    assert_eq!(referee.terms(), ["leader", next, other]);
    assert_eq!(leader.events(), of_other);
    let _closed = leader.close().await;
    server.quiet().await;
}
