//! One holder per key: tasks of one session, sessions of one process, names with one id.

use std::{sync::Arc, time::Duration};

use distributed_lock::{Attempt, Backend, Contention, LockKey, Locker, LockerExt, Ttl};
use libtest_mimic::Trial;
use lock_postgres::{KeyScheme, PostgresSharedSession};
use lock_testkit::Detector;
use tokio::{sync::Barrier, task::JoinSet, time::timeout};

use crate::{
    bench::{AMPLE, Server, contention, ms, trial},
    lanes::session,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("exclusion::case_05_of_two_tasks_of_one_session_one_holds_and_the_other_is_told_so", two_tasks),
        trial("exclusion::crowds_of_two_sessions_of_one_process_hold_one_at_a_time", two_crowds),
        trial("exclusion::waiters_of_two_sessions_of_one_process_both_get_the_key", waiters_of_both),
        trial("exclusion::case_07_names_with_one_id_collide_and_hold_one_after_the_other", collision),
    ]
}

const ROUNDS: u32 = 500;

/// The server would say yes to both: to it they are one session.
async fn two_tasks(server: Server) {
    let session = Arc::new(session(&server.short()));
    let (detector, step) = (Detector::in_memory(), Arc::new(Barrier::new(2)));
    let mut tasks = JoinSet::new();
    for task in 0..2 {
        let (session, detector, step) = (Arc::clone(&session), detector.clone(), Arc::clone(&step));
        tasks.spawn(async move {
            let mut won = 0;
            for round in 0..ROUNDS {
                step.wait().await;
                match session.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap() {
                    Attempt::Acquired(guard) => {
                        let inside = detector.enter("k", &format!("{task} in round {round}")).await.unwrap();
                        won += 1;
                        // Until the other has had its answer.
                        step.wait().await;
                        inside.leave().await.unwrap();
                        guard.release().await.unwrap().exclusive().unwrap();
                    }
                    Attempt::Contended(why) => {
                        assert_eq!(why, Contention::HeldHere);
                        step.wait().await;
                    }
                }
            }
            won
        });
    }
    let mut won = 0;
    while let Some(task) = timeout(AMPLE * 2, tasks.join_next()).await.expect("they hang") {
        won += task.unwrap();
    }
    assert_eq!(won, ROUNDS, "in each round exactly one");
    session.close().await.unwrap();
    server.quiet().await;
}

/// Each of these tasks takes the key so often, and nobody else is inside meanwhile.
pub(crate) async fn crowd(lockers: Vec<Arc<dyn Locker>>, detector: &Detector, rounds: usize, whose: &str) {
    let mut tasks = JoinSet::new();
    for (task, locker) in lockers.into_iter().enumerate() {
        let (detector, whose) = (detector.clone(), format!("{whose}, task {task}"));
        tasks.spawn(async move {
            for round in 0..rounds {
                let acquired = timeout(AMPLE * 2, locker.acquire("k", Ttl::UNTIL_RELEASED)).await;
                let guard = acquired.unwrap_or_else(|_| panic!("{whose} waits for ever in round {round}")).unwrap();
                let inside = detector.enter("k", &format!("{whose}, round {round}")).await.unwrap();
                guard.ensure_valid().unwrap();
                tokio::task::yield_now().await;
                inside.leave().await.unwrap();
                guard.release().await.unwrap().exclusive().unwrap();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
}

async fn two_crowds(server: Server) {
    let sessions = [(); 2].map(|()| Arc::new(session(&server.short())));
    let detector = Detector::in_memory();
    let lockers = (0..6).map(|task| Arc::clone(&sessions[task % 2]) as Arc<dyn Locker>).collect();
    crowd(lockers, &detector, 20, "one process").await;
    assert_eq!(detector.violations().await.unwrap(), 0);
    for session in sessions {
        session.close().await.unwrap();
    }
    server.quiet().await;
}

/// Behind one who is no lane, and behind a lane of one of the two.
async fn waiters_of_both(server: Server) {
    let sessions = [(); 2].map(|()| Arc::new(session(&server.short())));
    let stranger: Arc<dyn Locker> = Arc::new(server.locker());
    for holder in [Arc::clone(&stranger), Arc::clone(&sessions[0]) as Arc<dyn Locker>] {
        let (guard, detector) = (holder.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap(), Detector::in_memory());
        let inside = detector.enter("k", "the holder").await.unwrap();
        let mut waiters = JoinSet::new();
        for (number, session) in sessions.iter().enumerate() {
            let (session, detector) = (Arc::clone(session), detector.clone());
            waiters.spawn(async move {
                let guard = session.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
                let inside = detector.enter("k", &format!("waiter {number}")).await.unwrap();
                guard.ensure_valid().unwrap();
                inside.leave().await.unwrap();
                guard.release().await.unwrap().exclusive().unwrap();
            });
        }
        // Long enough for each to have asked the server: what is waited for is that nothing happens.
        let early = timeout(ms(300), waiters.join_next()).await;
        assert!(early.is_err(), "a wait for a held key ended: {early:?}");
        inside.leave().await.unwrap();
        guard.release().await.unwrap().exclusive().unwrap();
        while let Some(waiter) = timeout(AMPLE, waiters.join_next()).await.expect("a waiter does not get it") {
            waiter.unwrap();
        }
    }
    for session in sessions {
        session.close().await.unwrap();
    }
    stranger.close().await.unwrap();
    server.quiet().await;
}

/// Found by a search for short vectors in the lattice of FNV-1a: whoever chooses names can do that.
const TWINS: [&str; 2] = ["cb100pd0m28aaa", "lu17v2m1gg1flb"];

async fn collision(server: Server) {
    let [one, other] = TWINS.map(|name| LockKey::new(name).unwrap());
    assert_eq!(KeyScheme::Fnv1a.id(0, &one), KeyScheme::Fnv1a.id(0, &other));
    let config = server.short().with_key_scheme(KeyScheme::Fnv1a);
    let (ours, theirs) = (Arc::new(session(&config)), session(&config));
    let attempt = async |by: &PostgresSharedSession, key: &LockKey| {
        contention(by.try_acquire(key, Ttl::UNTIL_RELEASED).await.unwrap())
    };
    let collides =
        |held: &LockKey, wanted: &LockKey| Contention::Collision { held: held.clone(), wanted: wanted.clone() };

    let guard = ours.acquire(&one, Ttl::UNTIL_RELEASED).await.unwrap();
    assert_eq!(attempt(&ours, &other).await, collides(&one, &other));
    assert_eq!(attempt(&ours, &one).await, Contention::HeldHere);
    assert_eq!(attempt(&theirs, &other).await, Contention::Held);
    // Nothing that could be told apart from a deadlock only by its silence.
    let waited = timeout(AMPLE, ours.acquire_within(&other, Ttl::UNTIL_RELEASED, ms(200))).await.expect("it hangs");
    assert!(matches!(contention(waited.unwrap()), Contention::WaitElapsed | Contention::Collision { .. }));

    let (waiting, wanted) = (Arc::clone(&ours), other.clone());
    let waiter = tokio::spawn(async move { waiting.acquire(&wanted, Ttl::UNTIL_RELEASED).await });
    guard.release().await.unwrap().exclusive().unwrap();
    let second = timeout(AMPLE, waiter).await.expect("its twin is free, and it waits on").unwrap().unwrap();
    assert_eq!(second.key(), &other);
    assert_eq!(attempt(&ours, &one).await, collides(&other, &one));
    second.release().await.unwrap().exclusive().unwrap();

    // Both asked for at once: one of them.
    for _ in 0..50 {
        let (first, second) = tokio::join!(
            ours.try_acquire(&one, Ttl::UNTIL_RELEASED),
            ours.try_acquire(&other, Duration::from_secs(60)),
        );
        let answers = [first.unwrap(), second.unwrap()];
        assert_eq!(answers.iter().filter(|answer| answer.is_contended()).count(), 1, "{answers:?}");
        for guard in answers.into_iter().filter_map(Attempt::acquired) {
            guard.release().await.unwrap().exclusive().unwrap();
        }
    }
    ours.close().await.unwrap();
    theirs.close().await.unwrap();
    server.quiet().await;
}
