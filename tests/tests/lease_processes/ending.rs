//! Leaders and standbys that end, in order or not.

use libtest_mimic::Trial;
use rustix::process::Signal;
use tests::lease::{Failure, clock, locker::LockerKind, process::Replica};
use tokio::time::sleep;

use crate::bench::{Bench, LONG, SHORT, handed_over, limit, ms, trial};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    vec![
        trial(locker, "ending::stopped_run_is_followed_at_once_and_stands_by_again", stopped),
        trial(locker, "ending::replica_whose_orders_end_closes_and_is_followed_at_once", |bench| {
            leaves(bench, |leader| {
                leader.end_orders();
                Ok(())
            })
        }),
        trial(locker, "ending::sigterm_ends_the_job_in_order_and_the_next_leads_at_once", |bench| {
            leaves(bench, |leader| leader.signal(Signal::TERM))
        }),
        trial(locker, "ending::killed_leader_is_followed_at_once", killed),
        trial(locker, "ending::standby_that_gets_sigterm_leaves_the_queue_and_nobody_notices", leaving_standby),
        trial(locker, "ending::killed_standby_is_noticed_by_nobody", killed_standby),
    ]
}

async fn stopped(bench: Bench) -> Result<(), Failure> {
    let (mut leader, mut standby) = bench.pair(LONG).await?;
    let (mark, promised) = (bench.mark(), bench.guarantees(LONG)?);
    leader.order("stop")?;
    let (ended, next) = (leader.ends().await?, standby.leads().await?);
    handed_over(promised.overlap_ended, &ended, next);
    bench.within(mark, next - ended.at, limit(promised.takeover_released), "a stopped run is followed");
    bench.server.has_a_standby().await?;
    assert_eq!((leader.said(), standby.said()), (None, None));
    bench.over([leader, standby]).await
}

/// `leave` makes the leader's process end by itself.
async fn leaves(bench: Bench, leave: fn(&mut Replica) -> Result<(), Failure>) -> Result<(), Failure> {
    let (mut leader, mut standby) = bench.pair(LONG).await?;
    let (mark, promised) = (bench.mark(), bench.guarantees(LONG)?);
    leave(&mut leader)?;
    let (ended, next) = (leader.ends().await?, standby.leads().await?);
    handed_over(promised.overlap_ended, &ended, next);
    bench.within(mark, next - ended.at, limit(promised.takeover_released), "a replica that left is followed");
    let status = leader.exits().await?;
    assert!(status.success(), "{status}");
    assert_eq!(standby.said(), None);
    bench.over([standby]).await
}

async fn killed(bench: Bench) -> Result<(), Failure> {
    let (leader, mut standby) = bench.pair(LONG).await?;
    let promised = bench.guarantees(LONG)?;
    let (mark, at) = (bench.mark(), clock::now());
    leader.signal(Signal::KILL)?;
    let next = standby.leads().await?;
    assert!(next > at, "the standby led beside a leader that lived");
    bench.within(mark, next - at, limit(promised.takeover_killed), "a killed leader is followed");
    bench.over([leader, standby]).await
}

async fn killed_standby(bench: Bench) -> Result<(), Failure> {
    let (mut leader, standby) = bench.pair(SHORT).await?;
    let mut second = bench.replica(SHORT)?;
    bench.server.has_standbys(2).await?;
    let promised = bench.guarantees(SHORT)?;
    let (mark, at) = (bench.mark(), clock::now());
    standby.signal(Signal::KILL)?;
    bench.server.has_standbys(1).await?;
    bench.within(mark, clock::now() - at, limit(promised.cleanup.live), "a killed standby is gone from the queue");
    // Until every proof of before would have run out.
    sleep(SHORT.ttl).await;
    assert_eq!((leader.said(), second.said()), (None, None));
    let stopped = clock::now();
    leader.order("stop")?;
    let (ended, next) = (leader.ends().await?, second.leads().await?);
    assert!(ended.last_step + clock::nanos(ms(1_000)) > stopped, "it had not worked for long: {ended:?}");
    handed_over(promised.overlap_ended, &ended, next);
    bench.over([leader, standby, second]).await
}

async fn leaving_standby(bench: Bench) -> Result<(), Failure> {
    let (mut leader, mut standby) = bench.pair(LONG).await?;
    let promised = bench.guarantees(LONG)?;
    let (mark, at) = (bench.mark(), clock::now());
    standby.signal(Signal::TERM)?;
    let status = standby.exits().await?;
    assert!(status.success(), "{status}");
    // It waits until the server has seen that it is gone.
    bench.within(mark, clock::now() - at, limit(promised.cleanup.live), "a standby that is told to end is gone");
    bench.server.has_standbys(0).await?;
    leader.order("stop")?;
    assert_eq!(leader.ends().await?.lost, None);
    // Nobody else was there.
    leader.leads().await?;
    bench.over([leader]).await
}
