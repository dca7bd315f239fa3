//! Faults that others had in public, by their number in the list of cases, as far as they are the runner's.

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    Backend, Hold,
    lease::{CancelReason, LeaseExit, Stall, Term},
};
use libtest_mimic::Trial;
use lock_postgres::PostgresConfig;
use lock_testkit::{Proxy, proxy::Flow, wait_until_blocking};
use tests::lease::{locker::LockerKind, standbys::Line};
use tokio::{sync::Notify, task::spawn_blocking, time::sleep};

use crate::{
    bench::{GRACE, Pair, Work, deaf, lease, long_lease, obedient, within},
    referee::{LastStep, Referee},
    replica::Replica,
    server::{AMPLE, Server, Watch, ms, trial},
};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    let mut trials = vec![
        trial(locker, "cases::case_13_lease_outlasts_a_deaf_job_and_is_over_for_what_it_spawned", spawned),
        trial(locker, "cases::case_14_idle_timeouts_of_the_role_end_neither_leader_nor_standby", idle_timeouts),
    ];
    // What the runner does with a job does not depend on who holds the lock.
    if locker == LockerKind::Postgres {
        trials.extend([
            trial(locker, "cases::case_13_lease_is_over_for_what_a_job_spawned_that_panicked", spawned_before_a_panic),
            trial(locker, "cases::case_13_job_that_overstays_its_longest_term_is_followed_only_when_gone", overstays),
        ]);
    }
    trials
}

/// On a thread, which cannot be dropped with the job that spawned it.
fn work_on_a_thread(hold: Hold, last: LastStep) -> tokio::task::JoinHandle<()> {
    spawn_blocking(move || wait_until_blocking(AMPLE, "its hold is over", || !last.step(&hold)).unwrap())
}

/// How much later the answer to a release comes than the server carries it out: what looks at the answer only is found out.
const LATE: Duration = Duration::from_millis(200);

/// A leader over a network whose answers are late, and a standby next to the server.
async fn far_and_near(
    server: &Server,
    referee: &Referee,
    job: impl Fn(Term) -> Work + Send + Sync + 'static,
) -> (Proxy, Replica, Replica) {
    let (proxy, proxied) = server.proxy();
    let leader = server.start("leader", &proxied, long_lease(), referee, job);
    leader.leads().await;
    let standby = server.start("standby", &server.config(), long_lease(), referee, obedient);
    server.standbys(1).await;
    proxy.down(Flow::Delay(LATE));
    (proxy, leader, standby)
}

/// Its hold says that it is over before the lease is given up.
async fn spawned(server: Server) {
    let (last, referee) = (LastStep::default(), Referee::default());
    let seen = last.clone();
    let job = move |term: Term| -> Work {
        let thread = work_on_a_thread(term.hold(), seen.clone());
        Box::pin(async move {
            thread.await.unwrap();
            std::future::pending().await
        })
    };
    let (proxy, leader, standby) = far_and_near(&server, &referee, job).await;
    let watch = Watch::start();
    let (closed, led) = tokio::join!(leader.runner.close(), standby.event("leads"));
    closed.unwrap();
    let promised = leader.promised();
    assert!(led - watch.start >= GRACE, "the lease was given up within the job's grace");
    watch.at_within(led, GRACE + LATE + within(promised.takeover_released), "the standby leads");
    standby.leads().await;
    referee.ensure_stopped_before("standby", &last);
    assert_eq!(referee.overlap(), within(promised.overlap_ended));
    assert_eq!(leader.events(), ["stands by", "leads", "told: Closed", "ended: Dropped, kept, released"]);
    let (exit, _closed) = (leader.close().await, standby.close().await);
    assert!(matches!(&exit, LeaseExit::Closed(Some(end)) if end.result.is_none()), "{exit:?}");
    drop(proxy);
    server.quiet().await;
}

async fn spawned_before_a_panic(server: Server) {
    let (last, referee, go) = (LastStep::default(), Referee::default(), Arc::new(Notify::new()));
    let (seen, told) = (last.clone(), Arc::clone(&go));
    let job = move |term: Term| -> Work {
        let (_detached, told) = (work_on_a_thread(term.hold(), seen.clone()), Arc::clone(&told));
        Box::pin(async move {
            told.notified().await;
            panic!("a fault beside a thread")
        })
    };
    let (proxy, mut leader, standby) = far_and_near(&server, &referee, job).await;
    go.notify_one();
    let exit = leader.exit().await;
    assert!(matches!(&exit, LeaseExit::Panicked(message) if message == "a fault beside a thread"), "{exit:?}");
    standby.leads().await;
    referee.ensure_stopped_before("standby", &last);
    assert_eq!(referee.overlap(), within(leader.promised().overlap_ended));
    let _closed = standby.close().await;
    leader.locker.close().await.unwrap();
    drop(proxy);
    server.quiet().await;
}

async fn overstays(server: Server) {
    let mut pair = Pair::with(&server, |config| config, long_lease().with_max_term(ms(600)), deaf).await;
    let exit = pair.leader.exit().await;
    let LeaseExit::Stalled(Stall::MaxTerm, end) = exit else { panic!("{exit:?}") };
    assert!(matches!(end.reason, Some(CancelReason::Stalled(Stall::MaxTerm))) && end.result.is_none(), "{end:?}");
    pair.standby.leads().await;
    pair.ensure_overlap(pair.leader.promised().overlap_ended);
    let told = "told: Stalled(MaxTerm)";
    assert_eq!(pair.leader.events(), ["stands by", "leads", told, "ended: Dropped, kept, released"]);
    pair.end_after_exit(&server).await;
}

/// Both sessions are silent for longer than the role's limits: the leader's between its heartbeats, the standby's in the queue.
async fn idle_timeouts(server: Server) {
    let admin = server.admin().await;
    // Roles are the whole server's, so each locker has one.
    let role = format!("case_14_runner_{}", server.locker);
    let create = format!(
        "CREATE ROLE {role} LOGIN;
        ALTER ROLE {role} SET idle_session_timeout = '1s';
        ALTER ROLE {role} SET idle_in_transaction_session_timeout = '1s'"
    );
    admin.batch_execute(&create).await.unwrap();
    let (referee, config) = (Referee::default(), PostgresConfig::from_url(server.url_of(&role)));
    // A heartbeat every 3.5 s.
    let lease = lease().with_ttl(Duration::from_secs(28));
    let leader = server.start("leader", &config, lease.clone(), &referee, obedient);
    let holder = leader.leads().await;
    let standby = server.start("standby", &config, lease, &referee, obedient);
    server.standbys(1).await;
    sleep(ms(2_500)).await;
    let locks = server.observer.advisory_locks().await.unwrap();
    let state = |pid: i32| locks.iter().find(|lock| lock.pid == Some(pid)).and_then(|lock| lock.state.as_deref());
    let Line { holders, standbys } = server.line().await;
    let states: Vec<_> = holders.into_iter().chain(standbys).map(state).collect();
    assert_eq!(states, [Some("idle"), Some("active")], "an open transaction, or one is gone");
    holder.ensure_valid().unwrap();
    assert_eq!((leader.events(), standby.events()), (lines(&["stands by", "leads"]), lines(&["stands by"])));
    let _closed = leader.close().await;
    standby.leads().await;
    assert_eq!(referee.overlap(), ms(0));
    let _closed = standby.close().await;
    server.quiet().await;
}

fn lines(lines: &[&str]) -> Vec<String> {
    lines.iter().map(ToString::to_string).collect()
}
