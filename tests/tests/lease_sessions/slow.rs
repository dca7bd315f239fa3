//! A network that is slow, but not too slow: every answer comes within its time, so nothing is lost.

use std::time::Duration;

use distributed_lock::lease::LeaseConfig;
use libtest_mimic::Trial;
use lock_postgres::PostgresConfig;
use lock_testkit::{proxy::Flow, wait_until};
use tests::lease::locker::LockerKind;
use tokio::time::Instant;

use crate::{
    bench::{Pair, lease, obedient},
    server::{AMPLE, Server, ms, shortened, trial},
};

type Times = fn(PostgresConfig) -> PostgresConfig;

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    // T, g and the shorter of the two tau: the runner's is what fits twice into T beside the grace, the
    // locker's T/2 unless it is set.
    let times: [(u64, u64, Times, u64); 4] = [
        (2_000, 300, |config| config, 665),
        (2_000, 100, |config| config, 765),
        (3_000, 300, |config| config, 1_135),
        (2_000, 300, shortened, 500),
    ];
    // A tau that follows from T, and one that is set.
    let of_lanes = [0, 3];
    let is_tried = |(n, _): &(usize, _)| locker == LockerKind::Postgres || of_lanes.contains(n);
    let slow = times.into_iter().enumerate().filter(is_tried).map(|(_, (ttl, grace, times, tau))| {
        let lease = lease().with_ttl(ms(ttl)).with_grace(ms(grace));
        let name = format!("slow::answers_after_four_fifths_of_a_tau_of_{tau}_ms_lose_nothing");
        trial(locker, &name, move |server| slow(server, lease, times, ms(tau) * 4 / 5))
    });
    slow.collect()
}

/// For longer than the lease, so that it lives on nothing of before.
async fn slow(server: Server, lease: LeaseConfig, times: Times, delay: Duration) {
    let slow_time = lease.ttl * 5 / 4;
    let pair = Pair::with(&server, times, lease, obedient).await;
    let hold = pair.leader.leads().await;
    pair.proxy.down(Flow::Delay(delay));
    let end = Instant::now() + slow_time;
    let over = wait_until(AMPLE, "the slow time is over", async || {
        hold.ensure_valid().unwrap_or_else(|error| panic!("{error}: {:?}", pair.leader.events()));
        Instant::now() >= end
    });
    over.await.unwrap();
    assert_eq!(pair.leader.events(), ["stands by", "leads"]);
    assert_eq!(pair.standby.events(), ["stands by"]);
    pair.proxy.pass();
    pair.ensure_overlap(pair.leader.promised().overlap_partitioned);
    pair.end(&server).await;
}
