//! How jobs end: told and deaf, with a panic, with an error, with a value that nobody should believe.

use std::{
    panic::{self, panic_any},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distributed_lock::{
    LossCause,
    lease::{CancelReason, LeaseExit, Term},
};
use libtest_mimic::Trial;
use tests::lease::locker::LockerKind;
use tokio::time::sleep;

use crate::{
    bench::{GRACE, JOB, Outcome, Pair, Work, deaf, intruded, lease, meddle, within},
    referee::Referee,
    server::{Server, Watch, ms, trial},
};

const FAULT: &str = "a fault in the job";

/// Nobody is told of the job's own panic: with a backtrace that takes longer than what is measured.
pub(crate) fn hush_the_job_s_panic() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if panic.payload().downcast_ref::<&str>() != Some(&FAULT) {
            tell(panic);
        }
    }));
}

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    let mut trials = vec![
        trial(locker, "jobs::deaf_job_of_a_stopped_run_is_dropped_after_its_grace_and_only_then_followed", deaf_job),
        trial(locker, "jobs::panic_is_reported_and_released_and_followed", |server| {
            ends_by_itself(
                server,
                || panic_any(FAULT),
                "ended: Panicked, kept, released",
                |exit| matches!(exit, LeaseExit::Panicked(message) if message == FAULT),
            )
        }),
        trial(locker, "jobs::value_under_a_lease_that_the_release_finds_lost_is_no_exit", value_under_a_lost_lease),
    ];
    // What the runner makes of an end does not depend on who holds the lock.
    if locker == LockerKind::Postgres {
        trials.extend([
            trial(locker, "jobs::error_is_reported_and_released_and_followed", |server| {
                ends_by_itself(
                    server,
                    || Err("no paper"),
                    "ended: Err, kept, released",
                    |exit| matches!(exit, LeaseExit::Failed("no paper")),
                )
            }),
            trial(locker, "jobs::value_is_reported_and_released_and_followed", |server| {
                ends_by_itself(
                    server,
                    || Ok("printed"),
                    "ended: Ok, kept, released",
                    |exit| matches!(exit, LeaseExit::Finished("printed")),
                )
            }),
            trial(locker, "jobs::value_after_a_loss_that_was_told_is_no_exit", value_after_a_loss),
            trial(locker, "jobs::panic_after_a_loss_is_an_exit", panic_after_a_loss),
        ]);
    }
    trials
}

async fn deaf_job(server: Server) {
    let mut pair = Pair::patient(&server, deaf).await;
    let watch = Watch::start();
    assert!(pair.leader.runner.stop(JOB));
    let (exit, follows) = tokio::join!(pair.leader.exit(), pair.standby.event("leads"));
    let LeaseExit::Stopped(Some(end)) = exit else { panic!("{exit:?}") };
    assert!(matches!(end.reason, Some(CancelReason::Stopped)) && end.result.is_none() && end.loss.is_none(), "{end:?}");
    assert_eq!(end.overrun, ms(0));
    assert!(follows - watch.start >= GRACE, "the grace was cut short");
    let bound = within(pair.leader.promised().takeover_released);
    watch.at_within(follows, GRACE + bound, "the standby leads");
    assert_eq!(pair.leader.events(), ["stands by", "leads", "told: Stopped", "ended: Dropped, kept, released"]);
    assert!(pair.leader.has_no_end(), "an exit's term went to the hook too");
    let promised = pair.leader.promised();
    pair.ensure_overlap(promised.overlap_ended);
    pair.end_after_exit(&server).await;
}

/// The first of the two jobs ends when it is told by the test; the second one runs.
async fn ends_by_itself(
    server: Server,
    ending: fn() -> Outcome,
    event: &'static str,
    is_right: fn(&LeaseExit<&'static str, &'static str>) -> bool,
) {
    let end = Arc::new(tokio::sync::Semaphore::new(0));
    let ordered = Arc::clone(&end);
    let job = move |term: Term| -> Work {
        let ordered = Arc::clone(&ordered);
        Box::pin(async move {
            tokio::select! {
                permit = ordered.acquire() => {
                    permit.unwrap().forget();
                    ending()
                }
                _why = term.cancelled() => Ok("wound down"),
            }
        })
    };
    let mut pair = Pair::patient(&server, job).await;
    let watch = Watch::start();
    end.add_permits(1);
    let exit = pair.leader.exit().await;
    assert!(is_right(&exit), "{exit:?}");
    let promised = pair.leader.promised();
    watch.at_within(pair.standby.event("leads").await, within(promised.takeover_released), "the standby leads");
    assert_eq!(pair.leader.events(), ["stands by", "leads", event]);
    assert!(pair.leader.has_no_end());
    pair.ensure_overlap(promised.overlap_ended);
    // The process lives: its runner runs the same name once more, behind the other.
    pair.leader.run("leader", deaf);
    pair.ensure_roles_can_change_back(&server).await;
    pair.ensure_overlap(promised.overlap_ended);
    pair.end(&server).await;
}

/// It returns its value when it hears of the loss, or a little later: the value is the hook's, and the run goes on.
async fn value_after_a_loss(server: Server) {
    let job = |term: Term| -> Work {
        Box::pin(async move {
            let lost = matches!(term.cancelled().await, CancelReason::Lost(_));
            sleep(GRACE / 3).await;
            Ok(if lost { "so far" } else { "wound down" })
        })
    };
    let pair = Pair::patient(&server, job).await;
    server.observer.terminate(server.holder().await).await.unwrap();
    pair.leader.event("ended: Ok, SessionEnded, lost").await;
    pair.ensure_roles_can_change_back(&server).await;
    let end = pair.leader.only_end();
    assert_eq!(end.result, Some(Ok("so far")));
    assert!(matches!(&end.reason, Some(CancelReason::Lost(loss)) if loss.cause() == LossCause::SessionEnded));
    assert!(end.overrun >= GRACE / 3 && end.overrun < within(pair.leader.promised().overlap_forgotten));
    pair.ensure_overlap(pair.leader.promised().overlap_forgotten);
    pair.end(&server).await;
}

/// The locks of its session were cleared, and the job returns before a heartbeat could find that. The release does.
async fn value_under_a_lost_lease(server: Server) {
    let (intruder, intruded) = intruded(&server).await;
    // No heartbeat for seconds.
    let lease = lease().with_ttl(Duration::from_secs(30));
    let referee = Referee::default();
    let (first, done) = (Arc::new(AtomicBool::new(true)), Arc::new(tokio::sync::Notify::new()));
    let (is_first, end) = (Arc::clone(&first), Arc::clone(&done));
    let job = move |term: Term| -> Work {
        let (is_first, end) = (is_first.swap(false, Ordering::SeqCst), Arc::clone(&end));
        Box::pin(async move {
            if is_first {
                end.notified().await;
                return Ok("believes that it led");
            }
            term.cancelled().await;
            Ok("wound down")
        })
    };
    let replica = server.start("leader", &intruded, lease, &referee, job);
    let hold = replica.leads().await;
    meddle(&server, &intruder, "SELECT pg_catalog.pg_advisory_unlock_all()").await;
    hold.ensure_valid().unwrap();
    done.notify_one();
    replica.event("ended: Ok, NotOurs, lost").await;
    replica.nth_event(2, "leads").await;
    let end = replica.only_end();
    assert_eq!(end.result, Some(Ok("believes that it led")));
    assert!(end.reason.is_none() && end.loss.unwrap().cause() == LossCause::NotOurs);
    assert_eq!(replica.events(), ["stands by", "leads", "ended: Ok, NotOurs, lost", "leads"]);
    referee.ensure_tokens_rise();
    let exit = replica.close().await;
    assert!(matches!(exit, LeaseExit::Closed(Some(end)) if end.result == Some(Ok("wound down"))));
    server.quiet().await;
}

/// A panic is a fault of the program whatever became of the lease, so the run does not go on as if nothing had happened.
async fn panic_after_a_loss(server: Server) {
    let job = |term: Term| -> Work {
        Box::pin(async move {
            if matches!(term.cancelled().await, CancelReason::Lost(_)) {
                panic!("a fault while winding down");
            }
            Ok("wound down")
        })
    };
    let mut pair = Pair::patient(&server, job).await;
    server.observer.terminate(server.holder().await).await.unwrap();
    let exit = pair.leader.exit().await;
    assert!(matches!(&exit, LeaseExit::Panicked(message) if message == "a fault while winding down"), "{exit:?}");
    pair.standby.leads().await;
    assert_eq!(
        pair.leader.events(),
        ["stands by", "leads", "told: SessionEnded", "ended: Panicked, SessionEnded, lost"]
    );
    pair.ensure_overlap(pair.leader.promised().overlap_forgotten);
    pair.end_after_exit(&server).await;
}
