//! Answers that come when their term is over: nothing of an old term touches the next one.

use distributed_lock::lease::{CancelReason, LeaseExit};
use libtest_mimic::Trial;
use lock_testkit::{proxy::Flow, requirement, wait_until};
use tests::lease::locker::LockerKind;

use crate::{
    bench::{JOB, Pair, long_lease, obedient, within},
    referee::Referee,
    server::{AMPLE, Server, Watch, ms, trial},
};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    vec![
        trial(locker, "old_terms::case_11_heartbeat_answered_after_the_run_began_anew_touches_nobody", late_heartbeat),
        trial(locker, "old_terms::case_11_release_answered_after_the_run_began_anew_touches_nobody", late_release),
        trial(
            locker,
            "old_terms::case_11_slow_answers_of_stopped_runs_touch_no_later_run_on_their_session",
            slow_answers,
        ),
    ]
}

/// Where the release cannot be sent while a heartbeat is in flight, the end of the session gives the lease up.
async fn late_heartbeat(server: Server) {
    let pair = Pair::start(&server, obedient).await;
    pair.hold_answers_of_a_heartbeat().await;
    stopped_and_run_again(pair, &server).await;
}

/// The release is carried out, and nobody hears of it.
async fn late_release(server: Server) {
    let pair = Pair::start(&server, obedient).await;
    pair.heartbeat_is_answered().await;
    pair.proxy.down(Flow::Hold);
    stopped_and_run_again(pair, &server).await;
}

async fn stopped_and_run_again(mut pair: Pair, server: &Server) {
    let promised = pair.leader.promised();
    let watch = Watch::start();
    let old = pair.leader.leads().await;
    assert!(pair.leader.runner.stop(JOB));
    let exit = pair.leader.exit().await;
    let LeaseExit::Stopped(Some(end)) = &exit else { panic!("{exit:?}") };
    assert!(matches!(end.reason, Some(CancelReason::Stopped)) && end.result == Some(Ok("wound down")), "{end:?}");
    watch.at_within(pair.standby.event("leads").await, within(promised.takeover_partitioned), "the standby leads");
    pair.leader.run("leader", obedient);
    // All that was held back comes at once: the answers of the old term, and those to the new attempt.
    pair.proxy.pass();
    pair.ensure_roles_can_change_back(server).await;
    pair.ensure_overlap(promised.overlap_ended);
    old.ensure_valid().unwrap_err();
    let events = pair.leader.events();
    // A lane misses the answer before the release has waited for long enough.
    let ended = match server.locker {
        LockerKind::Postgres => "ended: Ok, kept, Unavailable",
        LockerKind::Shared => "ended: Ok, HeartbeatTimeout, lost",
    };
    assert_eq!(events, ["stands by", "leads", "told: Stopped", ended, "stands by", "leads"]);
    pair.end(server).await;
}

/// The same session serves one run after the other, with an answer to the last one still under way at each end.
async fn slow_answers(server: Server) {
    let (proxy, proxied) = server.proxy();
    let referee = Referee::default();
    let mut replica = server.start("leader", &proxied.with_pool_size(1), long_lease(), &referee, obedient);
    replica.leads().await;
    let session = server.holder().await;
    proxy.down(Flow::Delay(ms(150)));
    for _ in 0..requirement::rounds(2) {
        let old = replica.leads().await;
        proxy.reset_counts();
        let sent = wait_until(AMPLE, "a heartbeat", async || proxy.counts().frontend(b'B') > 0);
        sent.await.unwrap();
        assert!(replica.runner.stop(JOB));
        let exit = replica.exit().await;
        assert!(matches!(&exit, LeaseExit::Stopped(Some(end)) if end.loss.is_none()), "{exit:?}");
        replica.run("leader", obedient);
        let new = replica.leads().await;
        assert!(new.fencing_token() > old.fencing_token());
        old.ensure_valid().unwrap_err();
        new.ensure_valid().unwrap();
        assert_eq!(server.holder().await, session, "the session was not used again");
    }
    let lines = replica.events();
    let of_a_run = ["stands by", "leads", "told: Stopped", "ended: Ok, kept, released"];
    assert!(lines.chunks(4).all(|run| run == &of_a_run[..run.len()]), "{lines:?}");
    let _closed = replica.close().await;
    drop(proxy);
    server.quiet().await;
}
