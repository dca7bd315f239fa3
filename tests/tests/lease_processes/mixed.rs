//! Replicas under different locks, as while a service changes from one locker to the other.

use libtest_mimic::Trial;
use lock_testkit::requirement;
use rustix::process::Signal;
use tests::lease::{Failure, clock, locker::LockerKind};

use crate::bench::{Bench, LONG, handed_over, limit, trial};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    match locker {
        LockerKind::Postgres => Vec::new(),
        LockerKind::Shared => {
            let name = "mixed::leaders_on_connections_and_on_lanes_follow_each_other";
            vec![trial(locker, name, each_other)]
        }
    }
}

/// Each stands by behind the other, and follows when it stops and when it is killed.
async fn each_other(bench: Bench) -> Result<(), Failure> {
    let promised = bench.guarantees(LONG)?;
    let (mut leading, mut waiting) = (LockerKind::Postgres, LockerKind::Shared);
    let mut leader = bench.replica_on(leading, LONG)?;
    leader.leads().await?;
    let mut standby = bench.replica_on(waiting, LONG)?;
    for _ in 0..requirement::rounds(2) {
        bench.server.has_a_standby().await?;
        let mark = bench.mark();
        leader.order("stop")?;
        let (ended, next) = (leader.ends().await?, standby.leads().await?);
        handed_over(promised.overlap_ended, &ended, next);
        let released = limit(promised.takeover_released);
        bench.within(mark, next - ended.at, released, &format!("{leading} that stopped is followed by {waiting}"));
        std::mem::swap(&mut leader, &mut standby);
        std::mem::swap(&mut leading, &mut waiting);
    }
    for _ in 0..2 {
        bench.server.has_a_standby().await?;
        let (mark, at) = (bench.mark(), clock::now());
        leader.signal(Signal::KILL)?;
        let next = standby.leads().await?;
        assert!(next > at, "the standby led beside a leader that lived");
        let killed = limit(promised.takeover_killed);
        bench.within(mark, next - at, killed, &format!("{leading} that was killed is followed by {waiting}"));
        leader = bench.replica_on(leading, LONG)?;
        std::mem::swap(&mut leader, &mut standby);
        std::mem::swap(&mut leading, &mut waiting);
    }
    bench.over([leader, standby]).await
}
