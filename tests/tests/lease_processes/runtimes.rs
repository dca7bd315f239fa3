//! Runtimes that are blocked or shut down under a job, in a process that lives on.

use std::time::Duration;

use distributed_lock::{
    ErrorKind,
    lease::{LeaseState, Term},
};
use libtest_mimic::Trial;
use tests::lease::{
    Failure, JOB, clock,
    locker::LockerKind,
    process::{Ended, Event, Replica},
    settings::{Settings, Threads},
};
use tokio::sync::mpsc;

use crate::bench::{Bench, LONG, SHORT, apart, limit, ms, trial};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    let mut trials = vec![
        trial(
            locker,
            "runtimes::one_thread_blocked_for_longer_than_t_is_a_loss_that_the_job_sees_at_once_on_waking",
            |bench| blocked_beyond_t(bench, Threads::One),
        ),
        trial(
            locker,
            "runtimes::one_thread_blocked_for_longer_than_d_is_a_loss_while_the_lease_is_still_ours",
            |bench| blocked_beyond_d(bench, Threads::One),
        ),
        trial(locker, "runtimes::lease_of_one_thread_that_is_dropped_is_free_at_once", |bench| {
            gone(bench, Threads::One, "drop")
        }),
        trial(locker, "runtimes::lease_of_workers_that_are_shut_down_is_free_at_once", |bench| {
            gone(bench, Threads::Two, "shutdown")
        }),
    ];
    // Lanes have a thread of their own, whatever the application's runtime is.
    if locker == LockerKind::Postgres {
        trials.extend([
            trial(
                locker,
                "runtimes::one_of_two_workers_blocked_for_longer_than_t_is_a_loss_that_the_job_sees_at_once_on_waking",
                |bench| blocked_beyond_t(bench, Threads::Two),
            ),
            trial(
                locker,
                "runtimes::one_of_two_workers_blocked_for_longer_than_d_is_a_loss_while_the_lease_is_still_ours",
                |bench| blocked_beyond_d(bench, Threads::Two),
            ),
            trial(
                locker,
                "runtimes::run_reports_the_loss_and_the_overrun_of_a_job_that_blocked_its_only_thread",
                |bench| reported(bench, Threads::One),
            ),
            trial(
                locker,
                "runtimes::run_reports_the_loss_and_the_overrun_of_a_job_that_blocked_one_of_two_workers",
                |bench| reported(bench, Threads::Two),
            ),
            trial(locker, "runtimes::lease_of_workers_that_are_dropped_is_free_at_once", |bench| {
                gone(bench, Threads::Two, "drop")
            }),
            trial(locker, "runtimes::lease_of_one_thread_that_is_shut_down_is_free_at_once", |bench| {
                gone(bench, Threads::One, "shutdown")
            }),
        ]);
    }
    trials
}

async fn blocks(leader: &mut Replica, millis: u64) -> Result<i64, Failure> {
    leader.order(&format!("block {millis}"))?;
    match leader.next().await? {
        Event::Blocks { at } => Ok(at),
        other => Err(other.unexpected()),
    }
}

/// Whether it could prove then that it led.
async fn wakes(leader: &mut Replica) -> Result<(i64, bool), Failure> {
    match leader.next().await? {
        Event::Wakes { at, valid } => Ok((at, valid)),
        other => Err(other.unexpected()),
    }
}

/// With one thread nobody renews, and the server ends the session. With another worker, or with a thread of its own, the locker still
/// proves that the process lives, never past T, and gives the key back by then: the runner renews from the task of the job.
async fn blocked_beyond_t(bench: Bench, threads: Threads) -> Result<(), Failure> {
    let settings = Settings { threads, ..SHORT };
    let (mut leader, mut standby) = bench.pair(settings).await?;
    let promised = bench.guarantees(settings)?;
    let mark = bench.mark();
    let at = blocks(&mut leader, 2_800).await?;
    let next = standby.leads().await?;
    bench.within(mark, next - at, limit(promised.takeover_frozen), "a leader that blocks its thread is followed");
    let (woke, valid) = wakes(&mut leader).await?;
    assert!(woke > next, "it did not block for long enough");
    assert!(!valid, "it could prove that it led beside the next one");
    let ended = leader.ends().await?;
    assert!(ended.lost.is_some(), "the runner does not say that it was lost: {ended:?}");
    apart(promised.overlap_frozen, &ended, next);
    // It stands by again.
    bench.server.has_a_standby().await?;
    assert_eq!((leader.said(), standby.said()), (None, None));
    bench.over([leader, standby]).await
}

/// The job can still prove that it leads when it wakes. The runner takes the lease as lost, since no renewal was confirmed for D, and
/// gives it up in order.
async fn blocked_beyond_d(bench: Bench, threads: Threads) -> Result<(), Failure> {
    let settings = Settings { threads, ..SHORT };
    let promised = bench.guarantees(settings)?;
    let (mut leader, mut standby) = bench.pair(settings).await?;
    blocks(&mut leader, u64::try_from((promised.detection + ms(50)).as_millis())?).await?;
    let (_woke, valid) = wakes(&mut leader).await?;
    let ended = leader.ends().await?;
    assert!(valid || ended.lost.is_some_and(|lost| lost.deadline < lost.at), "it was ours: {ended:?}");
    assert!(ended.lost.is_some(), "no renewal was confirmed for D: {ended:?}");
    let next = bench.next_leader(&mut leader, &mut standby).await?;
    apart(promised.overlap_frozen, &ended, next);
    // A lane's own timer gives it up at the deadline, should the job have blocked for so long on a busy machine.
    let over = bench.locker == LockerKind::Shared && ended.lost.is_some_and(|lost| lost.deadline <= next);
    assert!(ended.at <= next || over, "it was given up before its job had ended: {ended:?}, {next}");
    bench.over([leader, standby]).await
}

/// How the first term ended, and what of it can be seen from another thread meanwhile.
async fn reported(bench: Bench, threads: Threads) -> Result<(), Failure> {
    let settings = Settings { threads, ..SHORT };
    let (_, runner) = bench.runner(settings)?;
    let blocked = ms(2_800);
    let running = std::thread::spawn({
        let runner = runner.clone();
        move || {
            let runtime = settings.runtime()?;
            let (tell, mut told) = mpsc::unbounded_channel();
            let mut first = true;
            let job = move |term: Term| {
                let first = std::mem::take(&mut first);
                async move {
                    if first {
                        block(blocked);
                        return Ok(term.ensure_valid().is_ok());
                    }
                    term.cancelled().await;
                    Err(())
                }
            };
            let run = runtime.spawn(async move { runner.run_with(JOB, job, |end| _ = tell.send(end)).await });
            let end = runtime.block_on(told.recv()).ok_or("no term ended")?;
            Ok::<_, Failure>((end, run, runtime))
        }
    });
    let mut watch = runner.watch(JOB)?;
    watch.wait_for(|state| matches!(state, LeaseState::Leading(_))).await.ok_or("the runner is gone")?;
    runner.health()?;
    let mut standby = bench.replica(settings)?;
    let next = standby.leads().await?;
    // The job still runs, and whoever asks is told so.
    assert_eq!(runner.health().unwrap_err().kind(), ErrorKind::Lost);
    let ended = tokio::task::spawn_blocking(move || running.join()).await?;
    let (end, run, runtime) = ended.map_err(|_panic| "the runtime's thread panicked")??;
    assert!(clock::now() > next, "it did not block for long enough");
    assert_eq!(end.result, Some(Ok(false)), "it could prove that it led beside the next one");
    assert!(end.reason.is_none(), "it was told, and heard it: {:?}", end.reason);
    let loss = end.loss.ok_or("the loss is not reported")?;
    println!("{loss}, ran on for {:?}", end.overrun);
    assert!(end.overrun > ms(500) && end.overrun < blocked, "{:?}", end.overrun);
    standby.order("stop")?;
    standby.ends().await?;
    run.abort();
    runtime.shutdown_background();
    drop(runner);
    bench.over([standby]).await
}

#[expect(clippy::disallowed_methods, reason = "a job that blocks its thread is what is tested")]
fn block(time: Duration) {
    std::thread::sleep(time);
}

/// All tasks are dropped where they are, those that keep the lease included, in any order.
async fn gone(bench: Bench, threads: Threads, order: &str) -> Result<(), Failure> {
    let settings = Settings { threads, ..LONG };
    let (mut leader, mut standby) = bench.pair(settings).await?;
    let promised = bench.guarantees(settings)?;
    let mark = bench.mark();
    leader.order(order)?;
    let (mut lost, mut ended, mut gone) = (None, None, None);
    while ended.is_none() || gone.is_none() {
        match leader.next().await? {
            Event::Lost(loss) => lost = Some(loss),
            Event::Ended { at, last_step, polled } => ended = Some(Ended { at, last_step, polled, lost }),
            Event::Gone { at } => gone = Some(at),
            other => return Err(other.unexpected()),
        }
    }
    let (ended, gone) = ended.zip(gone).ok_or("unreachable")?;
    let next = standby.leads().await?;
    // A job that is dropped is not told.
    let overlap = ended.last_step - next;
    assert!(overlap <= 0, "two worked at a time: {ended:?}, {next}");
    bench.within(
        mark,
        next - gone.min(ended.at),
        limit(promised.takeover_killed),
        "a runtime that is gone is followed",
    );
    // The process lives.
    leader.end_orders();
    assert!(leader.exits().await?.success());
    bench.over([standby]).await
}
