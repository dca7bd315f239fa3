//! Guards dropped where nobody can await: without a runtime, in another, after their own, while unwinding.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::mpsc,
    thread,
    time::Duration,
};

use distributed_lock::{Backend, LockGuard, LockerExt, Ttl};
use libtest_mimic::Trial;
use lock_postgres::PostgresLocker;
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
    time::{Instant, timeout},
};

use crate::bench::{AMPLE, CHECK_INTERVAL, SHORT_TTL, Server, Watch, ms, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let case = |name: &str, end: fn(Runtime, LockGuard, Next)| {
        trial(&format!("dropping::case_36_drop_{name}_frees_the_key"), move |server| dropped(server, end))
    };
    vec![
        case("in_a_thread_without_a_runtime", |runtime, guard, next| {
            next.gets_it(|| thread::spawn(move || drop(guard)).join().unwrap());
            drop(runtime);
        }),
        case("after_block_on_of_a_runtime_that_is_not_polled_again", |runtime, guard, next| {
            next.gets_it(|| drop(guard));
            drop(runtime);
        }),
        case("in_another_runtime", |runtime, guard, next| {
            let other = Builder::new_current_thread().enable_all().build().unwrap();
            next.gets_it(|| other.block_on(async { drop(guard) }));
            drop(runtime);
        }),
        case("after_its_runtime_was_shut_down", |runtime, guard, next| {
            next.gets_it(|| {
                runtime.shutdown_background();
                drop(guard);
            });
        }),
        case("by_a_panic_in_its_runtime", |runtime, guard, next| {
            next.gets_it(|| {
                let run = AssertUnwindSafe(|| {
                    runtime.block_on(async {
                        let _guard = guard;
                        resume_unwind(Box::new("the test's own panic"))
                    })
                });
                catch_unwind(run).unwrap_err();
            });
        }),
        case("with_a_thread_local", |runtime, guard, next| {
            thread_local!(static KEPT: RefCell<Option<LockGuard>> = const { RefCell::new(None) });
            next.gets_it(|| thread::spawn(move || KEPT.set(Some(guard))).join().unwrap());
            drop(runtime);
        }),
        case("in_the_middle_of_a_heartbeat", |runtime, guard, next| {
            // A heartbeat is sent when the runtime runs, and its answer is never read.
            runtime.block_on(async { timeout(ms(205), std::future::pending::<()>()).await }).unwrap_err();
            next.gets_it(|| drop(guard));
            drop(runtime);
        }),
        trial("dropping::runtime_that_ends_before_its_guard_is_a_loss_before_another_gets_in", runtime_ends_first),
        trial("dropping::runtime_that_is_not_polled_is_a_loss_before_another_gets_in", runtime_stands_still),
        trial("dropping::locker_dropped_before_its_guards_frees_nothing_too_early", locker_dropped_first),
    ]
}

/// One who queues for the key.
struct Next(mpsc::Receiver<Instant>);

impl Next {
    fn gets_it(self, end: impl FnOnce()) {
        let watch = Watch::start();
        end();
        let at = self.0.recv_timeout(AMPLE).expect("the key is free in the end");
        watch.at_within(at, ms(100), "the key of a dropped guard is free");
    }
}

/// Takes a lock in a runtime of its own, which nothing but `end` polls again. The server alone would keep it for 17 s.
async fn dropped(server: Server, end: fn(Runtime, LockGuard, Next)) {
    let config = server.config().with_heartbeat_interval(ms(200));
    let (taken, take) = oneshot::channel();
    let (granted, grant) = mpsc::channel();
    let (ready, go) = mpsc::channel::<()>();
    let ending = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (locker, guard) = runtime.block_on(async {
            let locker = PostgresLocker::new(&config).unwrap();
            let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
            (locker, guard)
        });
        taken.send(guard.hold()).unwrap();
        go.recv().unwrap();
        end(runtime, guard, Next(grant));
        drop(locker);
    });
    let rival = server.rival("k", &take.await.unwrap()).await;
    ready.send(()).unwrap();
    let (guard, at) = rival.granted().await;
    granted.send(at).unwrap();
    tokio::task::block_in_place(|| ending.join()).unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    server.quiet().await;
}

async fn runtime_ends_first(server: Server) {
    let config = server.config();
    let (hand_over, taken) = oneshot::channel();
    let (end, ended) = mpsc::channel::<()>();
    let owner = thread::spawn(move || {
        let runtime = Runtime::new().unwrap();
        let (locker, guard) = runtime.block_on(async {
            let locker = PostgresLocker::new(&config).unwrap();
            let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
            (locker, guard)
        });
        hand_over.send((locker, guard)).unwrap();
        ended.recv().unwrap();
        drop(runtime);
    });
    let (locker, guard) = taken.await.unwrap();
    guard.ensure_valid().unwrap();
    let rival = server.rival("k", &guard.hold()).await;
    end.send(()).unwrap();
    tokio::task::block_in_place(|| owner.join()).unwrap();
    // It panics if the guard is still valid when it is granted.
    let (next, _) = rival.granted().await;
    timeout(AMPLE, guard.lost()).await.expect("its holder is told");
    guard.release().await.unwrap().exclusive().unwrap_err();
    next.release().await.unwrap().exclusive().unwrap();
    // The locker works on in this runtime.
    locker.acquire("k", Duration::from_secs(5)).await.unwrap().release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

/// Nobody proves ownership then, so the server frees the key after the TTL of the session.
async fn runtime_stands_still(server: Server) {
    let config = server.short();
    let (hand_over, taken) = oneshot::channel();
    let (go_on, stands_still) = mpsc::channel::<()>();
    let owner = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (locker, guard) = runtime.block_on(async {
            let locker = PostgresLocker::new(&config).unwrap();
            let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
            (locker, guard)
        });
        hand_over.send(guard.hold()).unwrap();
        stands_still.recv().unwrap();
        assert!(guard.ensure_valid().is_err(), "valid when its runtime goes on");
        runtime.block_on(async { guard.release().await.unwrap().exclusive().unwrap_err() });
        runtime.block_on(async { locker.close().await.unwrap() });
    });
    let hold = taken.await.unwrap();
    let watch = Watch::start();
    let rival = server.rival("k", &hold).await;
    hold.ensure_valid().unwrap();
    let (rival, at) = rival.granted().await;
    watch.at_within(at, SHORT_TTL + CHECK_INTERVAL, "the key is free");
    go_on.send(()).unwrap();
    tokio::task::block_in_place(|| owner.join()).unwrap();
    rival.ensure_valid().unwrap();
    rival.release().await.unwrap().exclusive().unwrap();
    server.quiet().await;
}

async fn locker_dropped_first(server: Server) {
    let locker = server.locker();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let rival = server.rival("k", &guard.hold()).await;
    drop(locker);
    // Longer than the server would keep a session that nobody keeps alive.
    assert!(timeout(Duration::from_millis(2_500), guard.lost()).await.is_err());
    guard.ensure_valid().unwrap();
    assert!(rival.is_waiting());
    guard.release().await.unwrap().exclusive().unwrap();
    let (rival, _) = rival.granted().await;
    rival.release().await.unwrap().exclusive().unwrap();
    server.quiet().await;
}
