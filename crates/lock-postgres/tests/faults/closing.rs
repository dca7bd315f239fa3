//! Closing a locker: nothing is given out after it, and nothing of it is left in the server.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distributed_lock::{Backend, ErrorKind, LockerExt, ScopedLockerExt, Ttl};
use libtest_mimic::{Failed, Trial};
use lock_postgres::{PostgresLocker, PostgresScopedLocker};
use lock_testkit::{Cluster, proxy::Flow, requirement, requirement::rounds, wait_until};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::bench::{AMPLE, Server, ms, shortened, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let unpolled = |name, end| {
        requirement::trial(name, Cluster::shared, move |cluster| {
            unpolled(cluster, end);
            Ok::<_, Failed>(())
        })
    };
    vec![
        trial("closing::nothing_is_given_out_after_it_and_nothing_is_left", against_acquires),
        trial("closing::free_session_far_away_has_ended_when_it_returns", free_far_away),
        trial("closing::session_given_back_far_away_has_ended_when_it_returns", given_back_far_away),
        trial("closing::free_session_of_a_server_that_is_silent_costs_a_second", free_and_silent),
        unpolled("closing::heartbeat_that_nobody_polls_any_more_does_not_keep_it_waiting", End::Close),
        unpolled("closing::heartbeat_that_nobody_polls_any_more_does_not_keep_its_place", End::Drop),
    ]
}

/// Lockers that are closed at random times while others take places, wait for them, connect, and give them back.
async fn against_acquires(server: Server) {
    for round in 0..rounds(20) {
        let config = server.config().with_pool_size(2).with_watchdog(false).with_conn_wait_forever();
        let (session, scoped) = (PostgresLocker::new(&config).unwrap(), PostgresScopedLocker::new(&config).unwrap());
        let lockers = Arc::new((session, scoped));
        let closed = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for n in 0..6 {
            let (lockers, closed) = (Arc::clone(&lockers), Arc::clone(&closed));
            let key = format!("{}", n % 3);
            tasks.spawn(async move {
                loop {
                    let was_closed = closed.load(Ordering::SeqCst);
                    let acquired = match n % 2 {
                        0 => lockers.0.acquire(key.as_str(), Ttl::UNTIL_RELEASED).await.map(Some),
                        _ => lockers.1.with_lock(key.as_str(), async |_| ()).await.map(|()| None).map_err(Into::into),
                    };
                    match acquired {
                        Ok(guard) => {
                            assert!(!was_closed, "given out after closing");
                            // Closing may take it away first.
                            let _how = match guard {
                                Some(guard) => Some(guard.release().await),
                                None => None,
                            };
                        }
                        Err(error) if error.kind() == ErrorKind::Closed => return,
                        // A session that closing ended meanwhile.
                        Err(error) => assert!(lockers.0.ping().await.is_err(), "{error:?}"),
                    }
                }
            });
        }
        // A `RandomState` differs from call to call.
        sleep(Duration::from_micros(RandomState::new().hash_one(round) % 20_000)).await;
        let (first, second) = tokio::join!(lockers.0.close(), lockers.1.close());
        first.unwrap();
        second.unwrap();
        closed.store(true, Ordering::SeqCst);
        assert_eq!(server.observer.sessions().await.unwrap(), [], "left in the server");
        assert_eq!(server.observer.advisory_locks().await.unwrap(), []);
        tasks.join_all().await;
        assert_eq!(server.observer.sessions().await.unwrap(), [], "opened after closing");
    }
}

/// The end of a session is as far away as its answers.
async fn free_far_away(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&config.with_watchdog(false)).unwrap();
    locker.ping().await.unwrap();
    proxy.up(Flow::Delay(ms(300)));
    locker.close().await.unwrap();
    assert_eq!(server.observer.sessions().await.unwrap(), [], "closing said that all have ended");
}

async fn given_back_far_away(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&config.with_watchdog(false)).unwrap();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    proxy.up(Flow::Delay(ms(300)));
    // It gives the key back, and the session.
    locker.close().await.unwrap();
    assert_eq!(server.observer.sessions().await.unwrap(), [], "closing said that all have ended");
    drop(guard);
}

/// It owns nothing, so its end is not worth as long a wait as that of a holder.
async fn free_and_silent(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&config.with_watchdog(false)).unwrap();
    locker.ping().await.unwrap();
    proxy.both(Flow::Drop);
    timeout(ms(5_000), locker.close()).await.expect("within the second").unwrap();
}

#[derive(Clone, Copy, Debug)]
enum End {
    Close,
    Drop,
}

/// A keeper that asked the server on a runtime that never runs again.
fn unpolled(cluster: &Cluster, end: End) {
    let (main, first) = (Runtime::new().unwrap(), Builder::new_current_thread().enable_all().build().unwrap());
    let server = main.block_on(Server::on(cluster));
    let (proxy, config) = server.proxy();
    let config = shortened(config).with_pool_size(1).with_close_timeout(ms(5_000)).with_session_ttl(ms(17_000));
    let locker = PostgresLocker::new(&config).unwrap();
    let guard = first.block_on(async {
        let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
        proxy.reset_counts();
        proxy.down(Flow::Hold);
        let asked = wait_until(AMPLE, "a heartbeat is sent", async || proxy.counts().frontend(b'B') > 0);
        asked.await.unwrap();
        guard
    });
    proxy.pass();
    main.block_on(async {
        match end {
            End::Close => drop((locker.close().await.unwrap(), guard)),
            End::Drop => {
                drop(guard);
                let next = timeout(AMPLE / 4, locker.acquire("k", Ttl::UNTIL_RELEASED)).await;
                next.expect("the only place is free").unwrap().release().await.unwrap().exclusive().unwrap();
                locker.close().await.unwrap();
            }
        }
        server.quiet().await;
    });
    drop(first);
}
