//! The server ends the leader's session: what nobody told the leader, its socket or its next heartbeat does.

use std::pin::pin;

use distributed_lock::{
    LossCause,
    lease::{CancelReason, LeaseExit, Term},
};
use libtest_mimic::Trial;
use lock_testkit::wait_until;
use tests::lease::locker::LockerKind;
use tokio_postgres::NoTls;

use crate::{
    bench::{GRACE, JOB, Pair, Work, deaf, obedient, within},
    server::{AMPLE, Server, Watch, ms, state_of, trial},
};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    vec![
        trial(locker, "terminated::case_01_right_after_a_heartbeat_is_told_at_once", after_a_heartbeat),
        trial(locker, "terminated::case_01_job_that_does_not_mind_is_dropped_after_its_grace", not_minded),
        trial(locker, "terminated::case_01_during_a_heartbeat_is_told_within_the_detection_bound", during_a_heartbeat),
        trial(locker, "terminated::case_01_while_the_job_runs_sql_elsewhere_is_told_at_once", while_the_job_runs_sql),
        trial(locker, "terminated::standby_loses_its_place_and_nothing_else", standby),
    ]
}

/// The leader hears of it by its socket, long before a heartbeat would find it.
async fn after_a_heartbeat(server: Server) {
    let mut pair = Pair::patient(&server, obedient).await;
    let holder = server.holder().await;
    pair.heartbeat_is_answered().await;
    let watch = Watch::start();
    server.observer.terminate(holder).await.unwrap();
    watch.at_within(pair.leader.event("told: SessionEnded").await, ms(100), "the leader is told");
    let bound = within(pair.standby.promised().takeover_killed);
    let next = pair.next_leader().await;
    watch.at_within(next.at, bound, "one leads again");
    pair.ensure_roles_can_change_back(&server).await;
    pair.ensure_overlap(pair.leader.promised().overlap_forgotten);
    let end = pair.former(&next).first_end();
    let loss = end.loss.expect("it was lost");
    assert_eq!((loss.cause(), state_of(&loss).as_deref()), (LossCause::SessionEnded, Some("57P01")));
    assert_eq!(end.result, Some(Ok("wound down")));
    pair.ensure_told(&next, &["stands by", "leads", "told: SessionEnded", "ended: Ok, SessionEnded, lost"]);
    pair.end(&server).await;
}

/// The server has forgotten the lease, so this is where two can work: for D + g at most.
async fn not_minded(server: Server) {
    let pair = Pair::patient(&server, deaf).await;
    server.observer.terminate(server.holder().await).await.unwrap();
    let told = pair.leader.event("told: SessionEnded").await;
    let ended = pair.leader.event("ended: Dropped, SessionEnded, lost").await;
    assert!(ended - told >= GRACE, "the grace was cut to {:?}", ended - told);
    pair.standby.event("leads").await;
    pair.ensure_roles_can_change_back(&server).await;
    assert!(pair.referee.overlap() > ms(0), "the successor had to wait for the server, which had forgotten the lease");
    pair.ensure_overlap(pair.leader.promised().overlap_forgotten);
    let end = pair.leader.only_end();
    assert!(end.result.is_none() && end.overrun >= GRACE, "{end:?}");
    pair.end(&server).await;
}

/// The network holds the server's last words back, so only the missing answer tells.
async fn during_a_heartbeat(server: Server) {
    let pair = Pair::start(&server, obedient).await;
    let holder = server.holder().await;
    pair.hold_answers_of_a_heartbeat().await;
    let watch = Watch::start();
    server.observer.terminate(holder).await.unwrap();
    let promised = pair.leader.promised();
    watch.at_within(pair.standby.event("leads").await, within(promised.takeover_killed), "the standby leads");
    watch.at_within(pair.leader.event("told: HeartbeatTimeout").await, promised.detection, "the leader is told");
    pair.leader.event("ended: Ok, HeartbeatTimeout, lost").await;
    // What comes late is about a term that is over.
    pair.proxy.pass();
    pair.ensure_roles_can_change_back(&server).await;
    pair.ensure_overlap(promised.overlap_forgotten);
    assert_eq!(pair.leader.only_end().loss.unwrap().cause(), LossCause::HeartbeatTimeout);
    assert_eq!(
        pair.leader.events(),
        ["stands by", "leads", "told: HeartbeatTimeout", "ended: Ok, HeartbeatTimeout, lost", "leads"]
    );
    pair.end(&server).await;
}

/// A connection that works says nothing of the one that held the lease.
async fn while_the_job_runs_sql(server: Server) {
    let url = server.url.clone();
    let job = move |term: Term| -> Work { Box::pin(query(url.clone(), term)) };
    let mut pair = Pair::patient(&server, job).await;
    let runs = wait_until(AMPLE, "the job's statement", async || {
        let sessions = server.observer.sessions().await.unwrap();
        sessions.iter().any(|session| session.wait_event.as_deref() == Some("PgSleep"))
    });
    runs.await.unwrap();
    let holder = server.holder().await;
    let watch = Watch::start();
    server.observer.terminate(holder).await.unwrap();
    watch.at_within(pair.leader.event("told: SessionEnded").await, ms(100), "the leader is told");
    let next = pair.next_leader().await;
    pair.ensure_roles_can_change_back(&server).await;
    pair.ensure_overlap(pair.leader.promised().overlap_forgotten);
    assert_eq!(pair.former(&next).first_end().result, Some(Ok("gave its statement up")));
    pair.ensure_told(&next, &["stands by", "leads", "told: SessionEnded", "ended: Ok, SessionEnded, lost"]);
    pair.end(&server).await;
}

/// One statement after the other, on a connection that has nothing to do with the lease.
async fn query(url: String, term: Term) -> Result<&'static str, &'static str> {
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut cancelled = pin!(term.cancelled());
    loop {
        tokio::select! {
            why = &mut cancelled => {
                assert_eq!(term.ensure_valid().is_err(), matches!(why, CancelReason::Lost(_)));
                return Ok("gave its statement up");
            }
            ran = client.batch_execute("SELECT pg_catalog.pg_sleep(0.3)") => ran.map_err(|_| "its statement failed")?,
        }
    }
}

/// The leader does not notice.
async fn standby(server: Server) {
    let mut pair = Pair::patient(&server, obedient).await;
    let leads = pair.leader.leads().await;
    for n in 1..=3 {
        let waiter = server.standbys(1).await[0];
        server.observer.terminate(waiter).await.unwrap();
        match server.locker {
            LockerKind::Postgres => _ = pair.standby.nth_event(n, "asked in vain: Unavailable").await,
            // Its other sessions live, so there may be nothing to tell.
            LockerKind::Shared => server.stands_by_no_more(waiter).await,
        }
    }
    server.standbys(1).await;
    leads.ensure_valid().unwrap();
    assert_eq!(pair.leader.events(), ["stands by", "leads"]);
    assert!(pair.leader.runner.stop(JOB));
    let exit = pair.leader.exit().await;
    pair.standby.leads().await;
    pair.ensure_overlap(pair.leader.promised().overlap_ended);
    assert_eq!(pair.leader.events()[2..], ["told: Stopped", "ended: Ok, kept, released"]);
    let mut events = pair.standby.events();
    events.retain(|line| line != "asked in vain: Unavailable");
    assert_eq!(events, ["stands by", "leads"]);
    assert!(matches!(&exit, LeaseExit::Stopped(Some(end)) if end.result == Some(Ok("wound down"))), "{exit:?}");
    pair.end_after_exit(&server).await;
}
