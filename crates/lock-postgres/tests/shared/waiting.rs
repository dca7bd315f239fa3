//! Waits of one session: in which order they end, what wakes them, and that none holds up those for another key.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use distributed_lock::{Attempt, Backend, Locker, LockerExt, Ttl};
use futures_util::future::join_all;
use libtest_mimic::Trial;
use lock_postgres::PostgresSharedSession;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    bench::{AMPLE, Server, Watch, ms, trial},
    lanes::{
        all_are_in_line, backend_of, first_waits_in_the_server, give_back, id, names, nobody_waits_in_the_server,
        session, start, take,
    },
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("waiting::waiters_of_one_session_are_served_in_the_order_they_came", in_order),
        trial("waiting::first_waiter_that_gives_up_leaves_its_turn_to_the_next", first_gives_up),
        trial("waiting::waiter_is_woken_by_a_release_and_by_the_end_of_a_lane", woken),
        trial("waiting::key_that_is_stuck_holds_up_nobody_who_wants_another", stuck),
    ]
}

/// Of whom a line waits first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Behind {
    /// A holder or a waiter of the same session, of whom the server shows nothing.
    Ours,
    Others,
}

impl Behind {
    async fn first_in_line_waits(self, server: &Server, session: &PostgresSharedSession, key: &str) {
        if self == Self::Others {
            first_waits_in_the_server(server, key).await;
        }
        all_are_in_line(session).await;
    }
}

/// Tasks that wait for it, one after the other; who is served out of turn panics. How many were served.
async fn queue(
    server: &Server,
    session: &Arc<PostgresSharedSession>,
    key: &str,
    count: usize,
    behind: Behind,
) -> (JoinSet<()>, Arc<AtomicUsize>) {
    let (mut waiters, served) = (JoinSet::new(), Arc::<AtomicUsize>::default());
    for place in 0..count {
        let (ours, counts, name) = (Arc::clone(session), Arc::clone(&served), key.to_owned());
        let waits = async move {
            let guard = ours.acquire(name.as_str(), Ttl::UNTIL_RELEASED).await.unwrap();
            assert_eq!(counts.fetch_add(1, Ordering::SeqCst), place, "served out of turn");
            guard.release().await.unwrap().exclusive().unwrap();
        };
        start(&mut waiters, waits).await;
        let of_it = if place == 0 { behind } else { Behind::Ours };
        of_it.first_in_line_waits(server, session, key).await;
    }
    (waiters, served)
}

async fn all(mut waiters: JoinSet<()>) {
    while let Some(waiter) = timeout(AMPLE, waiters.join_next()).await.expect("a waiter does not get it") {
        waiter.unwrap();
    }
}

/// Behind a lane of their own session, one of another, and one who is no lane.
async fn in_order(server: Server) {
    let (ours, theirs) = (Arc::new(session(&server.short())), session(&server.short()));
    let locker = server.locker();
    let holders: [(&dyn Locker, Behind); 3] =
        [(&*ours, Behind::Ours), (&theirs, Behind::Others), (&locker, Behind::Others)];
    for (holder, behind) in holders {
        nobody_waits_in_the_server(&server, "k").await;
        let guard = holder.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
        let (waiters, served) = queue(&server, &ours, "k", 6, behind).await;
        // What is looked for is that nothing happens.
        sleep(ms(200)).await;
        assert_eq!(served.load(Ordering::SeqCst), 0, "one got a key that is held");
        guard.release().await.unwrap().exclusive().unwrap();
        all(waiters).await;
        assert_eq!(served.load(Ordering::SeqCst), 6);
    }
    ours.close().await.unwrap();
    theirs.close().await.unwrap();
    locker.close().await.unwrap();
    drop(locker);
    server.quiet().await;
}

/// The first is the one who asks the server. Dropped, or at the end of its budget, it must not take the turn of the others along.
async fn first_gives_up(server: Server) {
    let (ours, theirs) = (Arc::new(session(&server.short())), session(&server.short()));
    let locker = server.locker();
    let holders: [(&dyn Locker, Behind); 3] =
        [(&*ours, Behind::Ours), (&theirs, Behind::Others), (&locker, Behind::Others)];
    for (holder, behind) in holders {
        for elapses in [false, true] {
            nobody_waits_in_the_server(&server, "k").await;
            let guard = holder.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
            let asks = Arc::clone(&ours);
            let limit = if elapses { ms(1_000) } else { AMPLE * 2 };
            let mut first = JoinSet::new();
            let waits = async move { asks.acquire_within("k", Ttl::UNTIL_RELEASED, limit).await };
            let handle = start(&mut first, waits).await;
            behind.first_in_line_waits(&server, &ours, "k").await;
            let (waiters, served) = queue(&server, &ours, "k", 3, Behind::Ours).await;
            assert!(first.try_join_next().is_none(), "it ended before the others came");
            if !elapses {
                handle.abort();
            }
            let gave_up = first.join_next().await.unwrap();
            match elapses {
                true => assert!(matches!(gave_up.unwrap(), Ok(Attempt::Contended(_)))),
                false => assert!(gave_up.unwrap_err().is_cancelled()),
            }
            assert_eq!(served.load(Ordering::SeqCst), 0, "one got a key that is held");
            guard.release().await.unwrap().exclusive().unwrap();
            all(waiters).await;
        }
    }
    ours.close().await.unwrap();
    theirs.close().await.unwrap();
    locker.close().await.unwrap();
    drop(locker);
    server.quiet().await;
}

/// By then four polls have gone, and the next comes after more than two seconds.
const RARE: Duration = Duration::from_secs(5);

async fn woken(server: Server) {
    let (ours, theirs) = (Arc::new(session(&server.config())), session(&server.config()));
    let released = theirs.acquire("released", Ttl::UNTIL_RELEASED).await.unwrap();
    let ended = theirs.acquire("ended", Ttl::UNTIL_RELEASED).await.unwrap();
    let wait = |key: &'static str| {
        let ours = Arc::clone(&ours);
        tokio::spawn(async move { (ours.acquire(key, Ttl::UNTIL_RELEASED).await.unwrap(), Instant::now()) })
    };
    let (first, second) = (wait("released"), wait("ended"));
    sleep(RARE).await;
    assert!(!first.is_finished() && !second.is_finished(), "a wait for a held key ended");
    let watch = Watch::start();
    released.release().await.unwrap().exclusive().unwrap();
    let (guard, at) = timeout(AMPLE, first).await.expect("it is never woken").unwrap();
    watch.at_within(at, ms(100), "a waiter of another session has a released key");
    guard.release().await.unwrap().exclusive().unwrap();

    let watch = Watch::start();
    server.observer.terminate(backend_of(&server, "ended").await).await.unwrap();
    let (guard, at) = timeout(AMPLE, second).await.expect("it is never woken").unwrap();
    watch.at_within(at, ms(200), "a waiter of another session has the key of a lane that ended");
    ended.ensure_valid().unwrap_err();
    guard.release().await.unwrap().exclusive().unwrap();
    drop(ended);
    ours.close().await.unwrap();
    theirs.close().await.unwrap();
    server.quiet().await;
}

/// Some keys are held for ever by a stranger, with waiters here; the neighbours of these keys come and go.
async fn stuck(server: Server) {
    let (session, stranger) = (Arc::new(session(&server.short())), server.stranger().await);
    let stuck = names("stuck", 3);
    // It opens the lane, which the first to wait would have to wait for while the next come.
    give_back(take(&session, &names("free", 1)).await).await;
    for name in &stuck {
        stranger.execute("SELECT pg_advisory_lock($1)", &[&id(name)]).await.unwrap();
    }
    let waiting = join_all(stuck.iter().map(|name| queue(&server, &session, name, 4, Behind::Others))).await;
    let neighbours = async {
        for round in 0..10 {
            let turns = names(&format!("of round {round}"), 50);
            let turns = turns.iter().map(|name| {
                let session = &session;
                async move {
                    let guard = session.acquire(name.as_str(), Ttl::UNTIL_RELEASED).await.unwrap();
                    guard.ensure_valid().unwrap();
                    guard.release().await.unwrap().exclusive().unwrap();
                }
            });
            join_all(turns).await;
        }
    };
    // The stuck keys stay so for longer than this takes, so nothing of it has waited for them.
    timeout(AMPLE, neighbours).await.expect("neighbours of a stuck key wait for it");
    for (waiters, served) in &waiting {
        assert_eq!((waiters.len(), served.load(Ordering::SeqCst)), (4, 0), "a waiter of a stuck key has ended");
    }
    drop(stranger);
    for (waiters, _) in waiting {
        all(waiters).await;
    }
    session.close().await.unwrap();
    server.quiet().await;
}
