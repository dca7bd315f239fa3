//! That no kind of waiter starves another.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use distributed_lock::{Backend, Locker, LockerExt, Ttl};
use libtest_mimic::Trial;
use lock_testkit::wait_until;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    bench::{AMPLE, Server, ms, trial},
    lanes::session,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("fairness::case_50_waiter_of_a_session_does_not_starve_beside_a_crowd_in_the_server_s_queue", |server| {
            let crowd: Arc<dyn Locker> = Arc::new(server.locker());
            let lone: Arc<dyn Locker> = Arc::new(session(&server.short()));
            not_starved(server, crowd, lone)
        }),
        trial("fairness::case_50_waiter_in_the_server_s_queue_does_not_starve_beside_a_session_s_crowd", |server| {
            let crowd: Arc<dyn Locker> = Arc::new(session(&server.short()));
            let lone: Arc<dyn Locker> = Arc::new(server.locker());
            not_starved(server, crowd, lone)
        }),
        trial("fairness::case_50_waiter_of_one_session_does_not_starve_beside_another_session_s_crowd", |server| {
            let [crowd, lone] = [(); 2].map(|()| Arc::new(session(&server.short())) as Arc<dyn Locker>);
            not_starved(server, crowd, lone)
        }),
    ]
}

/// Tasks that take the key again and again.
const CROWD: usize = 4;

/// Grants to others, counted from its call, after which a waiter has the key. It has to find out that others queue, and to open a
/// connection, before it has a place.
const WITHIN: usize = 20;

/// One waits while a crowd takes the key in turn, several times.
async fn not_starved(server: Server, crowd: Arc<dyn Locker>, lone: Arc<dyn Locker>) {
    let (grants, done) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let mut tasks = JoinSet::new();
    for _ in 0..CROWD {
        let (locker, grants, done) = (Arc::clone(&crowd), Arc::clone(&grants), Arc::clone(&done));
        tasks.spawn(async move {
            while !done.load(Ordering::SeqCst) {
                let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
                grants.fetch_add(1, Ordering::SeqCst);
                // Its work.
                sleep(ms(20)).await;
                guard.release().await.unwrap().exclusive().unwrap();
            }
        });
    }
    let mut longest = 0;
    for round in 0..5 {
        let before = grants.load(Ordering::SeqCst);
        let under_way = async || grants.load(Ordering::SeqCst) > before + CROWD;
        wait_until(AMPLE, "the crowd takes turns", under_way).await.unwrap();
        let called = grants.load(Ordering::SeqCst);
        let waited = timeout(AMPLE, lone.acquire("k", Ttl::UNTIL_RELEASED)).await;
        let guard = waited.unwrap_or_else(|_| panic!("it starves in round {round}")).unwrap();
        let others = grants.load(Ordering::SeqCst) - called;
        assert!(others <= WITHIN, "round {round}: {others} grants to others, {WITHIN} are allowed");
        longest = longest.max(others);
        guard.release().await.unwrap().exclusive().unwrap();
    }
    println!("{longest} grants to others at most, {WITHIN} are allowed");
    done.store(true, Ordering::SeqCst);
    while let Some(task) = timeout(AMPLE, tasks.join_next()).await.expect("one of the crowd starves") {
        task.unwrap();
    }
    crowd.close().await.unwrap();
    lone.close().await.unwrap();
    drop((crowd, lone));
    server.quiet().await;
}
