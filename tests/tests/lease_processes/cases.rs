//! Failures that others had in public, as far as they concern a runner or its process.

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex},
    time::Duration,
};

use distributed_lock::{
    Backend, FencingToken,
    lease::{LeaseConfig, LeaseEvent, LeaseExit, LeaseRunner, LeaseState, Stall, Term},
};
use libtest_mimic::Trial;
use lock_postgres::{PostgresConfig, PostgresLocker};
use lock_testkit::{
    Proxy,
    proxy::{AfterLoss, Flow},
    requirement, wait_until,
};
use tests::lease::{
    AMPLE, Failure, JOB, clock,
    locker::LockerKind,
    process::Event,
    settings::{Settings, Threads},
};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};
use tokio_postgres::NoTls;

use crate::bench::{Bench, LONG, SHORT, apart, handed_over, limit, ms, trial, trial_on};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    let mut trials = vec![
        trial(locker, "cases::case_35_heartbeats_do_not_stack_the_lock_and_a_step_down_frees_it", stacked),
        trial(locker, "cases::case_35_sessions_that_end_do_not_stack_the_lock", reconnecting),
        half_open(locker, "case_38_leader_over_a_half_open_connection_is_followed", |proxy| proxy.both(Flow::Drop)),
        trial(locker, "cases::case_43_job_that_keeps_the_only_thread_for_ever_is_followed", |bench| {
            thread_kept(bench, Threads::One)
        }),
        trial(locker, "cases::case_47_every_request_of_an_election_may_fail_once", every_request),
        trial(locker, "cases::case_47_refusals_that_come_after_other_answers_are_outlived", refused),
        trial(locker, "cases::case_52_stuck_connection_holds_up_neither_health_nor_stop_nor_close", stuck),
    ];
    // What is the runner's own, or a connection's whoever owns it.
    if locker == LockerKind::Postgres {
        trials.extend([
            half_open(locker, "case_38_leader_whose_requests_are_lost_is_followed", |proxy| proxy.up(Flow::Drop)),
            half_open(locker, "case_38_leader_whose_answers_are_lost_is_followed", |proxy| proxy.down(Flow::Drop)),
            trial(locker, "cases::case_43_job_that_leads_for_too_long_is_dropped_and_the_next_leads", |bench| {
                hung(bench, |config| config.with_max_term(ms(600)), Stall::MaxTerm)
            }),
            trial(locker, "cases::case_43_job_without_progress_is_dropped_and_the_next_leads", |bench| {
                hung(bench, |config| config.with_progress_deadline(ms(600)), Stall::Progress)
            }),
            trial(locker, "cases::case_43_job_that_keeps_one_of_two_threads_for_ever_is_followed", |bench| {
                thread_kept(bench, Threads::Two)
            }),
            trial_on(
                locker,
                "cases::case_47_server_that_is_down_at_the_start_is_asked_until_it_is_up",
                |builder| builder,
                down,
            ),
            trial(locker, "cases::case_63_pool_that_retires_its_connections_leaves_the_leader_s", retired),
        ]);
    }
    trials
}

/// A heartbeat every 20 ms.
const BUSY: Settings = Settings { heartbeat: ms(20), ..LONG };

/// A renewal that takes the lock once more would leave it with the session that stepped down.
async fn stacked(bench: Bench) -> Result<(), Failure> {
    let (mut leader, mut standby) = bench.pair(BUSY).await?;
    let promised = bench.guarantees(BUSY)?;
    for _ in 0..requirement::rounds(3) {
        // Some fifty heartbeats.
        sleep(ms(1_000)).await;
        let mark = bench.mark();
        leader.order("step_down")?;
        let (ended, next) = (leader.ends().await?, standby.leads().await?);
        handed_over(promised.overlap_ended, &ended, next);
        bench.within(mark, next - ended.at, limit(promised.takeover_released), "one that stepped down is followed");
        bench.server.has_a_standby().await?;
        std::mem::swap(&mut leader, &mut standby);
    }
    bench.over([leader, standby]).await
}

async fn reconnecting(bench: Bench) -> Result<(), Failure> {
    let (mut leader, mut standby) = bench.pair(BUSY).await?;
    let promised = bench.guarantees(BUSY)?;
    for _ in 0..requirement::rounds(10) {
        bench.server.observer().terminate(bench.server.holder().await?).await?;
        let ended = leader.ends().await?;
        assert!(ended.lost.is_some(), "{ended:?}");
        let next = bench.next_leader(&mut leader, &mut standby).await?;
        // The server forgot the lease before anybody could be told.
        let limit = limit(promised.overlap_forgotten);
        assert!(ended.last_step - next <= clock::nanos(limit), "{ended:?}, {next}");
        bench.server.has_a_standby().await?;
        std::mem::swap(&mut leader, &mut standby);
    }
    leader.order("stop")?;
    let (ended, next) = (leader.ends().await?, standby.leads().await?);
    handed_over(promised.overlap_ended, &ended, next);
    bench.over([leader, standby]).await
}

fn half_open(locker: LockerKind, name: &str, switch: fn(&Proxy)) -> Trial {
    trial(locker, &format!("cases::{name}"), move |bench| cut_off(bench, switch))
}

/// As when a cable is pulled, or one direction of a way is lost: no end is seen.
async fn cut_off(bench: Bench, switch: fn(&Proxy)) -> Result<(), Failure> {
    // D is 2.4 s, far from the last moment at which a job is told whatever fails, a grace before the deadline.
    let settings = Settings { ttl: ms(4_000), ..SHORT };
    let promised = bench.guarantees(settings)?;
    let mut leader = bench.remote_replica(settings)?;
    let mut standby = bench.leads_before(&mut leader, settings).await?;
    let proxy = leader.proxy.clone().ok_or("no proxy")?;
    let (mark, cut) = (bench.mark(), clock::now());
    switch(&proxy);
    let ended = leader.ends().await?;
    let lost = ended.lost.ok_or("it does not know")?;
    bench.within(mark, lost.at - cut, promised.detection, "a leader that is cut off knows");
    let next = standby.leads().await?;
    apart(promised.overlap_partitioned, &ended, next);
    bench.within(mark, next - cut, limit(promised.takeover_partitioned), "a leader that is cut off is followed");
    // Nothing of the old term comes through when it is healed, and it stands by again.
    proxy.pass();
    bench.server.has_a_standby().await?;
    assert_eq!((leader.said(), standby.said()), (None, None));
    bench.over([leader, standby]).await
}

/// Of the terms that began.
type Tokens = Arc<Mutex<Vec<FencingToken>>>;

/// Runs a job that leaves its token, and then neither ends nor shows progress.
fn hangs(runner: &LeaseRunner, tokens: &Tokens) -> JoinHandle<distributed_lock::Result<LeaseExit<(), Failure>>> {
    let (runner, tokens) = (runner.clone(), Arc::clone(tokens));
    tokio::spawn(async move {
        let job = |term: Term| {
            tokens.lock().unwrap().extend(term.fencing_token());
            std::future::pending()
        };
        runner.run(JOB, job).await
    })
}

async fn leads(runner: &LeaseRunner) -> Result<(), Failure> {
    let mut watch = runner.watch(JOB)?;
    let leads = watch.wait_for(|state| matches!(state, LeaseState::Leading(_)));
    timeout(AMPLE, leads).await.map_err(|_elapsed| "it does not lead")?.ok_or("the runner is gone")?;
    Ok(())
}

/// Renewals go on all the time, so nothing but the limit ends it.
async fn hung(bench: Bench, limited: fn(LeaseConfig) -> LeaseConfig, stall: Stall) -> Result<(), Failure> {
    let (locker, _) = bench.runner(SHORT)?;
    let runner = LeaseRunner::new(locker, limited(SHORT.lease()))?;
    let (_, next) = bench.runner(SHORT)?;
    let tokens = Tokens::default();
    let (mark, began) = (bench.mark(), clock::now());
    let hung = hangs(&runner, &tokens);
    leads(&runner).await?;
    let behind = hangs(&next, &tokens);
    bench.server.has_a_standby().await?;
    let exit = timeout(AMPLE, hung).await.map_err(|_elapsed| "a job that hangs is not dropped")???;
    let LeaseExit::Stalled(why, end) = exit else { return Err("it did not stall".into()) };
    let grace = SHORT.grace;
    bench.within(mark, clock::now() - began, ms(600) + grace, "a job that hangs is dropped");
    assert_eq!((why, end.result.is_none(), end.loss.is_none()), (stall, true, true));
    wait_until(AMPLE, "the next job runs", async || tokens.lock().unwrap().len() == 2).await?;
    let got = tokens.lock().unwrap().clone();
    assert!(matches!(got[..], [first, second] if first < second && end.fencing_token == Some(first)), "{got:?}");
    // One without a limit leads on.
    sleep(ms(600) + grace * 2).await;
    leads(&next).await?;
    assert!(!behind.is_finished());
    runner.close().await?;
    next.close().await?;
    assert!(matches!(behind.await??, LeaseExit::Closed(Some(_))));
    drop((runner, next));
    bench.over([]).await
}

/// The runner cannot act, as it runs in the same task; the lease ends all the same, by the server or by another thread of the process.
async fn thread_kept(bench: Bench, threads: Threads) -> Result<(), Failure> {
    let settings = Settings { threads, ..SHORT };
    let (mut leader, mut standby) = bench.pair(settings).await?;
    let promised = bench.guarantees(settings)?;
    let mark = bench.mark();
    leader.order("block 600000")?;
    let Event::Blocks { at } = leader.next().await? else { return Err("it does not block".into()) };
    let next = standby.leads().await?;
    bench.within(mark, next - at, limit(promised.takeover_frozen), "a leader whose thread hangs is followed");
    bench.over([leader, standby]).await
}

/// Both are started while there is no server.
async fn down(bench: Bench, cluster: lock_testkit::Cluster) -> Result<(), Failure> {
    tokio::task::block_in_place(|| cluster.stop())?;
    let (mut one, mut other) = (bench.replica(SHORT)?, bench.replica(SHORT)?);
    // Some attempts that fail.
    sleep(ms(1_000)).await;
    assert_eq!((one.said(), other.said()), (None, None));
    tokio::task::block_in_place(|| cluster.restart())?;
    let (mark, up) = (bench.mark(), clock::now());
    let next = tokio::select! {
        next = one.leads() => next?,
        next = other.leads() => next?,
    };
    // The retry interval of 100 ms, its jitter, and connecting.
    bench.within(mark, next - up, ms(500), "one leads once the server is up");
    let server = tests::lease::server::Server::connect(&bench.admin).await?;
    server.has_a_standby().await?;
    assert_eq!((one.said(), other.said()), (None, None));
    drop((one, other));
    Ok(())
}

/// The nth request of each runner fails, in one of two ways.
async fn every_request(bench: Bench) -> Result<(), Failure> {
    let (settings, mut elections) = (bench.with(SHORT), JoinSet::new());
    for after in [AfterLoss::Close, AfterLoss::Silence] {
        for nth in 1..=12 {
            let proxy = Proxy::start((Ipv4Addr::LOCALHOST, bench.port()))?;
            let url = proxy.url(&bench.url);
            elections.spawn(async move {
                let failures = Arc::new(Mutex::new(Vec::new()));
                let log = Arc::clone(&failures);
                let config = SHORT.lease().with_hook(move |event| match event {
                    LeaseEvent::AcquireFailed { error, retry_in: Some(_), .. } => {
                        log.lock().unwrap().push(error.kind())
                    }
                    LeaseEvent::AcquireFailed { .. } => panic!("{event}"),
                    _ => {}
                });
                let (locker, _) = settings.runner(&url)?;
                let runner = LeaseRunner::new(locker, config)?;
                proxy.lose_reply(nth, after);
                let name = format!("{after:?} {nth}");
                let ran = timeout(AMPLE, runner.run(name.as_str(), async |_term| Ok::<_, ()>(clock::now()))).await;
                let exit = ran.map_err(|_elapsed| format!("{name}: no election"))??;
                assert!(matches!(exit, LeaseExit::Finished(_)), "{name}: {exit:?}");
                let failures = failures.lock().unwrap().clone();
                println!("{name}: {failures:?}");
                Ok::<_, Failure>(usize::from(!failures.is_empty()))
            });
        }
    }
    let mut failed = 0;
    for election in elections.join_all().await {
        failed += election?;
    }
    assert!(failed > 8, "only {failed} elections met a failure");
    bench.over([]).await
}

/// Too many connections for a while, then no right to log in, as while a server is restored or a password changed.
async fn refused(bench: Bench) -> Result<(), Failure> {
    let (admin, connection) = bench.admin.connect(NoTls).await?;
    tokio::spawn(connection);
    let role = format!("of_{}", bench.admin.get_dbname().ok_or("no database")?);
    admin.batch_execute(&format!("CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")).await?;
    let (locker, _) = bench.runner_at(&bench.url.replace("//postgres@", &format!("//{role}@")), SHORT)?;
    let codes = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&codes);
    let runner = LeaseRunner::new(
        locker,
        SHORT.lease().with_hook(move |event| {
            if let LeaseEvent::AcquireFailed { error, .. } = event {
                log.lock().unwrap().push(error.code().unwrap_or("none").to_owned());
            }
        }),
    )?;
    let tokens = Tokens::default();
    let running = hangs(&runner, &tokens);
    let times = |code: &str| codes.lock().unwrap().iter().filter(|seen| *seen == code).count();
    wait_until(AMPLE, "two refusals by number", async || times("53300") >= 2).await?;
    admin.batch_execute(&format!("ALTER ROLE {role} NOLOGIN CONNECTION LIMIT -1")).await?;
    wait_until(AMPLE, "two refusals by right", async || times("28000") >= 2).await?;
    assert!(!running.is_finished());
    let failures = codes.lock().unwrap().len();
    let (mark, may) = (bench.mark(), clock::now());
    admin.batch_execute(&format!("ALTER ROLE {role} LOGIN")).await?;
    leads(&runner).await?;
    let paused = match bench.locker {
        LockerKind::Postgres => ms(0),
        // A lane is opened after a pause that doubles with each failure, from 50 ms on.
        LockerKind::Shared => ms(50 << failures.min(7)),
    };
    bench.within(mark, clock::now() - may, paused + ms(500), "it leads once it may");
    runner.close().await?;
    assert!(matches!(running.await??, LeaseExit::Closed(Some(_))));
    drop(runner);
    bench.over([]).await
}

async fn stuck(bench: Bench) -> Result<(), Failure> {
    let proxy = Proxy::start((Ipv4Addr::LOCALHOST, bench.port()))?;
    let (locker, runner) = bench.runner_at(&proxy.url(&bench.url), SHORT)?;
    let promised = runner.guarantees();
    let tokens = Tokens::default();
    let running = hangs(&runner, &tokens);
    leads(&runner).await?;
    let watch = runner.watch(JOB)?;
    proxy.reset_counts();
    proxy.both(Flow::Drop);
    // Its request is lost, or it was under way before and its answer is.
    let lost = || proxy.counts().frontend(b'B') > 0 || proxy.counts().ready > 0;
    wait_until(AMPLE, "a renewal is in flight", async || lost()).await?;
    let (mark, start) = (bench.mark(), clock::now());
    for _ in 0..1_000 {
        let _health = (runner.health(), watch.health(), watch.state());
    }
    assert!(runner.stop(JOB));
    bench.within(mark, clock::now() - start, ms(100), "a thousand looks and an order");
    let exit = timeout(AMPLE, running).await.map_err(|_elapsed| "the run does not end")???;
    let LeaseExit::Stopped(Some(end)) = exit else { return Err(format!("not stopped: {exit:?}").into()) };
    assert!(end.result.is_none());
    // What a release may take, which is tau of the runner.
    let bound = promised.grace + ms(800);
    bench.within(mark, clock::now() - start, bound, "a run over a stuck connection ends");
    let start = clock::now();
    runner.close().await?;
    bench.within(mark, clock::now() - start, ms(100), "the runner closes");
    let _how = locker.close().await;
    drop((locker, runner, proxy));
    bench.over([]).await
}

/// The server ends what lies idle, and the pool is told all the time to part with what lies in it.
async fn retired(bench: Bench) -> Result<(), Failure> {
    let (admin, connection) = bench.admin.connect(NoTls).await?;
    tokio::spawn(connection);
    let database = bench.admin.get_dbname().ok_or("no database")?;
    admin.batch_execute(&format!("ALTER DATABASE {database} SET idle_session_timeout = '100ms'")).await?;
    let mut config = deadpool_postgres::Config::new();
    config.url = Some(bench.url.clone());
    config.pool = Some(deadpool_postgres::PoolConfig::new(3));
    let pool = config.create_pool(Some(deadpool_postgres::Runtime::Tokio1), NoTls)?;
    let settings = PostgresConfig::for_pool().with_heartbeat_interval(SHORT.heartbeat);
    let locker = PostgresLocker::with_pool(pool.clone(), &settings.with_query_timeout(SHORT.query_timeout))?;
    let runner = LeaseRunner::new(Arc::new(locker), SHORT.lease())?;
    let tokens = Tokens::default();
    let running = hangs(&runner, &tokens);
    leads(&runner).await?;
    let holder = bench.server.holder().await?;
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        // Whoever else uses the pool leaves connections there.
        drop(pool.get().await);
        pool.retain(|_, _| false);
        sleep(ms(20)).await;
        runner.health()?;
        assert_eq!(bench.server.holder().await?, holder);
    }
    assert_eq!(tokens.lock().unwrap().len(), 1, "more than one term");
    runner.close().await?;
    assert!(matches!(running.await??, LeaseExit::Closed(Some(_))));
    drop((runner, pool));
    bench.over([]).await
}
