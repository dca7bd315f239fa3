//! Servers that are silent, far away, of another world, or that ended a session unseen; and what is in flight meanwhile.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use distributed_lock::{Attempt, Backend, Contention, ErrorKind, LockerExt, Loss, LossCause, Ran, Ttl};
use libtest_mimic::{Failed, Trial};
use lock_postgres::{PostgresConfig, PostgresLocker};
use lock_testkit::{Cluster, Observer, proxy::Flow, requirement, wait_until};
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep, timeout},
};
use tokio_postgres::NoTls;

use crate::bench::{AMPLE, Server, Watch, ms, shortened, state_of, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let on_one_thread = |name, test: fn(&Cluster)| {
        requirement::trial(name, Cluster::shared, move |cluster| {
            test(cluster);
            Ok::<_, Failed>(())
        })
    };
    vec![
        trial("silence::work_in_its_grace_has_ended_before_another_gets_in", work_in_its_grace),
        trial("silence::work_whose_heartbeat_was_refused_has_ended_before_another_gets_in", refused_heartbeat),
        trial("silence::refused_shortening_frees_the_key_by_the_deadline_that_the_holder_was_told", refused_shortening),
        trial("silence::ping_of_a_silent_server_ends", ping_ends),
        trial("silence::closing_waits_for_a_release_in_flight", closing_waits),
        trial("silence::wait_over_a_slow_network_elapses_and_is_no_error", slow_network),
        trial("silence::borrowed_connection_in_an_open_transaction_is_refused_and_closed", open_transaction),
        requirement::trial("silence::borrowed_connection_to_another_server_is_refused", Cluster::start, |other| {
            Runtime::new()?.block_on(two_servers(&other));
            Ok::<_, Failed>(())
        }),
        on_one_thread("silence::renewal_ends_although_nobody_polls_its_keeper", renewal_ends),
        on_one_thread("silence::sessions_that_ended_unseen_are_replaced", ended_unseen),
    ]
}

/// Answers are lost, requests are not: the server would give the key away as soon as our socket closed.
async fn work_in_its_grace(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&config).unwrap();
    let loss = work_until_dropped(&server, &locker, async || proxy.down(Flow::Drop)).await;
    assert_eq!(loss.cause(), LossCause::HeartbeatTimeout);
}

/// The server refuses the heartbeat, and keeps the lock of a session that goes on.
async fn refused_heartbeat(server: Server) {
    let admin = server.admin().await;
    admin.batch_execute("CREATE ROLE refused_heartbeat LOGIN").await.unwrap();
    let locker = PostgresLocker::from_url(&server.url_of("refused_heartbeat")).unwrap();
    let refuse = "REVOKE EXECUTE ON FUNCTION pg_catalog.pg_try_advisory_lock(int4, int4) FROM public";
    let loss = work_until_dropped(&server, &locker, async || admin.batch_execute(refuse).await.unwrap()).await;
    assert_eq!((loss.cause(), state_of(&loss).as_deref()), (LossCause::HeartbeatTimeout, Some("42501")));
}

/// Nobody works under the lock any more by then, though the server has agreed to no more than the longer TTL of before.
async fn refused_shortening(server: Server) {
    let admin = server.admin().await;
    admin.batch_execute("CREATE ROLE refused_shortening LOGIN").await.unwrap();
    let locker = PostgresLocker::from_url(&server.url_of("refused_shortening")).unwrap();
    let mut guard = locker.acquire("k", ms(16_000)).await.unwrap();
    let rival = server.rival("k", &guard.hold()).await;
    let refuse = "REVOKE EXECUTE ON FUNCTION pg_catalog.pg_try_advisory_lock(int4, int4) FROM public";
    admin.batch_execute(refuse).await.unwrap();
    let watch = Watch::start();
    assert_eq!(guard.renew(ms(2_000)).await.unwrap_err().kind(), ErrorKind::Lost);
    let allow = "GRANT EXECUTE ON FUNCTION pg_catalog.pg_try_advisory_lock(int4, int4) TO public";
    admin.batch_execute(allow).await.unwrap();
    let (_rival, at) = rival.granted().await;
    watch.at_within(at, ms(2_000), "the key of a hold whose shortening was refused is free");
}

/// Work that is told of the loss, and ends only when it is dropped, while another queues for the key.
async fn work_until_dropped(server: &Server, locker: &PostgresLocker, disturb: impl AsyncFnOnce()) -> Loss {
    let mut guard = locker.acquire("k", ms(8_000)).await.unwrap();
    let rival = server.rival("k", &guard.hold()).await;
    disturb().await;
    let last = Arc::new(Mutex::new(Instant::now()));
    let ticking = Arc::clone(&last);
    let work = async move {
        loop {
            *ticking.lock().unwrap() = Instant::now();
            sleep(ms(5)).await;
        }
    };
    let ran: Ran<()> = guard.run(ms(4_000), work).await.unwrap();
    let Ran::Lost { value: None, loss, .. } = ran else { panic!("{ran:?}") };
    let (_rival, granted) = rival.granted().await;
    let last = *last.lock().unwrap();
    assert!(last <= granted, "both worked for {:?}", last - granted);
    loss
}

async fn ping_ends(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&config).unwrap();
    locker.ping().await.unwrap();
    proxy.down(Flow::Drop);
    let pinged = timeout(AMPLE, locker.ping()).await.expect("a ping hangs");
    assert_eq!(pinged.unwrap_err().kind(), ErrorKind::Unavailable);
}

async fn closing_waits(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&config).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    proxy.up(Flow::Delay(ms(300)));
    let (_how, held) = tokio::join!(guard.release(), async {
        locker.close().await.unwrap();
        server.observer.key_locks().await.unwrap()
    });
    assert_eq!(held, [], "closing said that all is free");
}

async fn slow_network(server: Server) {
    let (proxy, config) = server.proxy();
    let (locker, other) = (PostgresLocker::new(&config).unwrap(), server.locker());
    locker.ping().await.unwrap();
    let _guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    proxy.both(Flow::Delay(ms(100)));
    let waited = locker.acquire_within("k", Ttl::UNTIL_RELEASED, ms(2_000)).await.unwrap();
    assert!(matches!(waited, Attempt::Contended(Contention::WaitElapsed)), "{waited:?}");
}

pub(crate) fn pool(url: String, size: usize) -> deadpool_postgres::Pool {
    let mut config = deadpool_postgres::Config::new();
    config.url = Some(url);
    config.pool = Some(deadpool_postgres::PoolConfig::new(size));
    config.create_pool(Some(deadpool_postgres::Runtime::Tokio1), NoTls).unwrap()
}

fn borrowing(pool: &deadpool_postgres::Pool) -> PostgresLocker {
    PostgresLocker::with_pool(pool.clone(), &shortened(PostgresConfig::for_pool())).unwrap()
}

/// The idle limit of a session does not act inside a transaction.
async fn open_transaction(server: Server) {
    let pool = pool(server.url.clone(), 1);
    let locker = borrowing(&pool);
    pool.get().await.unwrap().batch_execute("begin").await.unwrap();
    let refused = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Misconfigured, "{refused:?}");
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    // The one that was closed can be seen for a moment more.
    let one = wait_until(AMPLE, "there is one session, in no transaction", async || {
        let sessions = server.observer.sessions().await.unwrap();
        matches!(&sessions[..], [session] if session.state.as_deref() == Some("idle"))
    });
    one.await.unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    pool.close();
    server.quiet().await;
}

async fn two_servers(other: &Cluster) {
    let first = Cluster::start().unwrap();
    let mut both = tokio_postgres::Config::new();
    both.user("postgres").dbname("postgres").host("127.0.0.1").host("127.0.0.1");
    both.port(first.port()).port(other.port());
    let manager = deadpool_postgres::Manager::new(both, NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(2).build().unwrap();
    let locker = borrowing(&pool);
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    // The next connection leads to the second server.
    first.stop_immediate().unwrap();
    guard.lost().await;
    let refused = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Misconfigured, "{refused:?}");
}

fn renewal_ends(cluster: &Cluster) {
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let (_server, _locker, mut guard) = first.block_on(async {
        let server = Server::on(cluster).await;
        let locker = server.locker();
        let guard = locker.acquire("k", ms(2_000)).await.unwrap();
        (server, locker, guard)
    });
    let renewed = second.block_on(async { timeout(AMPLE, guard.renew(ms(2_000))).await });
    assert_eq!(renewed.expect("a renewal hangs").unwrap_err().kind(), ErrorKind::Lost);
}

/// On one thread, so that the driver's task has not been polled since the server ended the session.
fn ended_unseen(cluster: &Cluster) {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let server = Server::on(cluster).await;
        let pool = pool(server.url.clone(), 1);
        for locker in [server.locker(), borrowing(&pool)] {
            for _ in 0..2 {
                let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
                guard.release().await.unwrap().exclusive().unwrap();
                end_all(&server);
            }
            locker.ping().await.unwrap();
            locker.close().await.unwrap();
        }
    });
}

/// Ends all sessions from another thread, and waits there until they are gone.
fn end_all(server: &Server) {
    let end = || {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let observer = Observer::connect(&server.admin).await.unwrap();
            for session in observer.sessions().await.unwrap() {
                observer.terminate(session.pid).await.unwrap();
            }
            observer.quiet(Duration::from_secs(10)).await.unwrap();
        });
    };
    std::thread::scope(|scope| scope.spawn(end).join().unwrap());
}
