//! Leaders that are cut off in the middle of a write, so that no timer of the server runs.

use libtest_mimic::Trial;
use lock_testkit::{Proxy, requirement};
use tests::lease::{Failure, locker::LockerKind};
use tokio::time::sleep;

use crate::bench::{Bench, SHORT, apart, ms, trial};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    let name = "half_written::leader_cut_in_the_middle_of_a_renewal_is_followed_by_way_of_the_standby_s_watchdog";
    vec![trial(locker, name, cut)]
}

async fn cut(bench: Bench) -> Result<(), Failure> {
    let promised = bench.guarantees(SHORT)?;
    let notes = promised.notes.join("; ");
    assert!(notes.contains("a freeze in the middle of a write") && notes.contains("freed within 2.8s"), "{notes}");
    for _ in 0..requirement::rounds(1) {
        let mut leader = bench.remote_replica(SHORT)?;
        let mut standby = bench.leads_before(&mut leader, SHORT).await?;
        let mark = bench.mark();
        let proxy = leader.proxy.clone().ok_or("no proxy")?;
        let ended = tokio::select! {
            ended = leader.ends() => ended?,
            () = halve(&proxy) => unreachable!("for ever"),
        };
        assert!(ended.lost.is_some(), "it does not know: {ended:?}");
        // The half of its renewal that arrived. The key is still taken, and stays so beyond T.
        let sent = bench.server.last_statement().await?;
        let next = bench.next_leader(&mut leader, &mut standby).await?;
        apart(promised.overlap_partitioned, &ended, next);
        let overdue = i64::try_from((SHORT.ttl + ms(250)).as_nanos())?;
        assert!(next - sent >= overdue, "freed before its lease was over for certain, after {} ns", next - sent);
        bench.within(mark, next - sent, ms(2_800), "a leader cut in the middle of a write is followed");
        drop((leader, standby));
    }
    bench.over([]).await
}

/// One connection after the other, since that with the leader's lease may not be the only one, nor the first to write.
async fn halve(proxy: &Proxy) {
    loop {
        proxy.halve_next_bind();
        sleep(ms(50)).await;
    }
}
