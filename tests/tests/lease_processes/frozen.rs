//! Processes that stand still for a while, by SIGSTOP, as under a debugger, in a paused container or on a suspended machine.

use distributed_lock::Bound;
use libtest_mimic::Trial;
use lock_testkit::{proxy::Flow, requirement, wait_until};
use rustix::process::Signal;
use tests::lease::{AMPLE, Failure, clock, locker::LockerKind, process::Event, settings::Settings};
use tokio::time::{sleep, timeout};

use crate::bench::{Bench, SHORT, apart, handed_over, limit, ms, trial};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    let mut trials = vec![
        trial(locker, "frozen::leader_that_stands_still_for_less_than_d_goes_on_in_the_same_term", shorter_than_d),
        trial(locker, "frozen::answer_that_came_while_the_leader_stood_still_is_no_silence", answered),
        trial(
            locker,
            "frozen::leader_that_stands_still_for_longer_than_d_says_so_and_ends_before_the_next_leads",
            longer_than_d,
        ),
        trial(
            locker,
            "frozen::leader_that_goes_on_between_its_deadline_and_t_never_works_beside_the_next",
            until_nearly_t,
        ),
        trial(
            locker,
            "frozen::leader_that_stands_still_for_longer_than_t_is_followed_and_its_job_is_dropped_unpolled",
            longer_than_t,
        ),
        trial(
            locker,
            "frozen::standby_in_the_queue_holds_others_up_for_no_longer_than_the_bound_and_wakes_as_a_standby",
            standby,
        ),
    ];
    // The server grants a lock to a process that stands still only where it waits in the queue.
    if locker == LockerKind::Postgres {
        let name = "frozen::standby_that_was_granted_the_lease_while_it_stood_still_leads_when_it_goes_on";
        trials.push(trial(locker, name, granted));
    }
    trials
}

/// Below tau too, which an answer that is due may take.
async fn shorter_than_d(bench: Bench) -> Result<(), Failure> {
    let (mut leader, mut standby) = bench.pair(SHORT).await?;
    let promised = bench.guarantees(SHORT)?;
    assert!(promised.detection > ms(400) + SHORT.heartbeat);
    let mut went_on = 0;
    for _ in 0..requirement::rounds(3) {
        leader.freeze().await?;
        sleep(ms(400)).await;
        went_on = clock::now();
        leader.signal(Signal::CONT)?;
        sleep(ms(300)).await;
        assert_eq!((leader.said(), standby.said()), (None, None));
    }
    leader.order("stop")?;
    let (ended, next) = (leader.ends().await?, standby.leads().await?);
    assert!(ended.last_step > went_on, "it works no more: {ended:?}");
    handed_over(promised.overlap_ended, &ended, next);
    bench.over([leader, standby]).await
}

/// It stands still for longer than tau, with an answer on its way that is there when it goes on.
async fn answered(bench: Bench) -> Result<(), Failure> {
    let mut leader = bench.remote_replica(SHORT)?;
    let mut standby = bench.leads_before(&mut leader, SHORT).await?;
    let promised = bench.guarantees(SHORT)?;
    let proxy = leader.proxy.clone().ok_or("no proxy")?;
    let mut went_on = 0;
    for _ in 0..requirement::rounds(3) {
        proxy.reset_counts();
        proxy.down(Flow::Hold);
        // Counted when it reaches the proxy, and held there.
        wait_until(AMPLE, "an answer is on its way", async || proxy.counts().ready > 0).await?;
        leader.freeze().await?;
        proxy.pass();
        sleep(SHORT.query_timeout + ms(100)).await;
        went_on = clock::now();
        leader.signal(Signal::CONT)?;
        sleep(ms(300)).await;
        assert_eq!((leader.said(), standby.said()), (None, None));
    }
    leader.order("stop")?;
    let (ended, next) = (leader.ends().await?, standby.leads().await?);
    assert!(ended.last_step > went_on, "it works no more: {ended:?}");
    handed_over(promised.overlap_ended, &ended, next);
    bench.over([leader, standby]).await
}

/// The lease is still ours when it goes on, but no renewal was confirmed for D: it is lost, unless an answer lay there already.
async fn longer_than_d(bench: Bench) -> Result<(), Failure> {
    let promised = bench.guarantees(SHORT)?;
    let (mut leader, mut standby) = bench.pair(SHORT).await?;
    for _ in 0..requirement::rounds(1) {
        leader.freeze().await?;
        sleep(promised.detection + ms(150)).await;
        leader.signal(Signal::CONT)?;
        let told = timeout(promised.detection, leader.next()).await;
        let ended = match told {
            Ok(Ok(Event::Lost(lost))) => {
                let mut ended = leader.ends().await?;
                ended.lost = Some(lost);
                println!("lost");
                ended
            }
            Ok(other) => return Err(other?.unexpected()),
            Err(_elapsed) => {
                assert_eq!(standby.said(), None);
                leader.order("stop")?;
                let ended = leader.ends().await?;
                assert_eq!(ended.lost, None);
                println!("went on");
                ended
            }
        };
        let next = bench.next_leader(&mut leader, &mut standby).await?;
        apart(promised.overlap_frozen, &ended, next);
        assert!(ended.at <= next, "its lease was given up before its job had ended: {ended:?}, {next}");
        bench.server.has_a_standby().await?;
        std::mem::swap(&mut leader, &mut standby);
    }
    bench.over([leader, standby]).await
}

/// Its own deadline has passed, and the server is about to let the next one in, or has just done so.
async fn until_nearly_t(bench: Bench) -> Result<(), Failure> {
    let promised = bench.guarantees(SHORT)?;
    let (mut leader, mut standby) = bench.pair(SHORT).await?;
    for earlier in [ms(200), ms(120), ms(40)] {
        leader.freeze().await?;
        let went_on = SHORT.ttl - earlier;
        sleep(went_on).await;
        leader.signal(Signal::CONT)?;
        let ended = leader.ends().await?;
        assert!(ended.lost.is_some(), "{ended:?}");
        let next = bench.next_leader(&mut leader, &mut standby).await?;
        apart(promised.overlap_frozen, &ended, next);
        bench.server.has_a_standby().await?;
        std::mem::swap(&mut leader, &mut standby);
    }
    bench.over([leader, standby]).await
}

/// The server does it alone: the watchdog, which would come a little later, is off.
async fn longer_than_t(bench: Bench) -> Result<(), Failure> {
    let settings = Settings { watchdog: false, ..SHORT };
    let (mut leader, mut standby) = bench.pair(settings).await?;
    let promised = bench.guarantees(settings)?;
    for _ in 0..requirement::rounds(1) {
        let mark = bench.mark();
        leader.freeze().await?;
        let sent = bench.server.last_statement().await?;
        let next = standby.leads().await?;
        bench.within(mark, next - sent, limit(promised.takeover_frozen), "a frozen leader is followed");
        // The next one works for a while before the former one goes on.
        sleep(ms(100)).await;
        let went_on = clock::now();
        leader.signal(Signal::CONT)?;
        let ended = leader.ends().await?;
        apart(promised.overlap_frozen, &ended, next);
        assert!(ended.lost.is_some_and(|lost| lost.deadline <= next), "it relied on more: {ended:?}, {next}");
        assert!(ended.polled < went_on, "its job was polled when it went on at {went_on}: {ended:?}");
        // It stands by again, and the next one was not disturbed.
        bench.server.has_a_standby().await?;
        assert_eq!((leader.said(), standby.said()), (None, None));
        std::mem::swap(&mut leader, &mut standby);
    }
    bench.over([leader, standby]).await
}

/// For less than T_w, so that the grant is still there. Whoever is behind it waits on.
async fn granted(bench: Bench) -> Result<(), Failure> {
    let (mut leader, mut first) = bench.pair(SHORT).await?;
    let mut second = bench.replica(SHORT)?;
    bench.server.has_standbys(2).await?;
    let promised = bench.guarantees(SHORT)?;
    first.freeze().await?;
    leader.order("stop")?;
    let ended = leader.ends().await?;
    sleep(ms(500)).await;
    let went_on = clock::now();
    first.signal(Signal::CONT)?;
    let next = first.leads().await?;
    assert!(next > went_on);
    handed_over(promised.overlap_ended, &ended, next);
    // Longer than a waiter may be silent: it is a holder now.
    sleep(ms(1_200)).await;
    assert_eq!((leader.said(), first.said(), second.said()), (None, None, None));
    first.order("stop")?;
    let (ended, next) = (first.ends().await?, second.leads().await?);
    handed_over(promised.overlap_ended, &ended, next);
    bench.over([leader, first, second]).await
}

async fn standby(bench: Bench) -> Result<(), Failure> {
    let (mut leader, mut first) = bench.pair(SHORT).await?;
    let mut second = bench.replica(SHORT)?;
    bench.server.has_standbys(2).await?;
    let promised = bench.guarantees(SHORT)?;
    first.freeze().await?;
    let mark = bench.mark();
    leader.order("stop")?;
    let (ended, next) = (leader.ends().await?, second.leads().await?);
    handed_over(promised.overlap_ended, &ended, next);
    let (Bound::Within(cut), Bound::Within(released)) = (promised.cleanup.cut_waiter, promised.takeover_released)
    else {
        return Err("unbounded".into());
    };
    bench.within(mark, next - ended.at, cut + released, "the next behind a frozen standby leads");
    first.signal(Signal::CONT)?;
    // It does not wake as a leader, but queues anew, as the one that was stopped does.
    bench.server.has_standbys(2).await?;
    assert_eq!((leader.said(), first.said(), second.said()), (None, None, None));
    second.order("stop")?;
    let ended = second.ends().await?;
    let next = tokio::select! {
        next = leader.leads() => next?,
        next = first.leads() => next?,
    };
    handed_over(promised.overlap_ended, &ended, next);
    bench.over([leader, first, second]).await
}
