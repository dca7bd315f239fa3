//! What others do to the session of a lane behind its back: a pooler, a colleague with the same connection, or a mistake.

use distributed_lock::{Backend, LockGuard, LockerExt, LossCause, Release, Ttl};
use libtest_mimic::Trial;
use lock_postgres::PostgresConfig;
use lock_testkit::wait_until;
use tokio::time::timeout;

use crate::{
    bench::{AMPLE, SHORT_DETECTION, Server, Watch, ms, shortened, trial},
    contested::contested,
    intruder::Intruder,
    lanes::{backend_of, give_back, held, id, ids, names, session, take},
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("meddling::case_27_unlock_of_all_in_a_lane_is_a_loss_of_its_holds_and_no_others", |server| {
            cleared(server, "SELECT pg_advisory_unlock_all()")
        }),
        trial("meddling::case_27_discard_in_a_lane_is_a_loss_of_its_holds_and_no_others", |server| {
            cleared(server, "DISCARD ALL")
        }),
        trial("meddling::key_that_was_unlocked_alone_is_lost_alone", one_unlocked),
        trial("meddling::those_who_wait_for_a_lane_s_beacon_or_try_it_never_get_it", |server| {
            let config = shortened(server.config()).with_heartbeat_interval(ms(20));
            contested(server, move |_| session(&config))
        }),
    ]
}

async fn intruded(server: &Server) -> (Intruder, PostgresConfig) {
    let intruder = Intruder::start(server.port()).await;
    let direct = format!("127.0.0.1:{}", server.port());
    let url = server.url.replace(&direct, &intruder.address.to_string());
    (intruder, shortened(PostgresConfig::from_url(format!("{url}?sslmode=disable"))))
}

/// The session answers as before, so that a heartbeat which only looks whether it does finds nothing.
async fn cleared(server: Server, statements: &str) {
    let (intruder, config) = intruded(&server).await;
    let session = session(&config);
    // More than one lane takes.
    let names = names("k", 300);
    let guards = take(&session, &names).await;
    let (lanes, pid) = (held(&server).await, backend_of(&server, &names[0]).await);
    let is_lost = |guard: &LockGuard| lanes[&pid].contains(&id(guard.key().as_str()));
    let watch = Watch::start();
    intruder.run_in(pid, statements).await;
    let (lost, kept): (Vec<_>, Vec<_>) = guards.into_iter().partition(is_lost);
    for guard in &lost {
        let loss = timeout(AMPLE, guard.lost()).await.expect("it is not noticed");
        // What `DISCARD` takes with the locks, the prepared statements, the server may miss first.
        assert!(matches!(loss.cause(), LossCause::NotOurs | LossCause::HeartbeatTimeout), "{loss:?}");
    }
    watch.within(SHORT_DETECTION, "locks that were cleared are noticed");
    for guard in lost {
        assert!(matches!(guard.release().await, Ok(Release::Lost(_))));
    }
    let gone = wait_until(AMPLE, "the session is destroyed", async || {
        server.observer.sessions().await.unwrap().iter().all(|session| session.pid != pid)
    });
    gone.await.unwrap();
    assert!(!kept.is_empty());
    kept.iter().for_each(|guard| guard.ensure_valid().unwrap());
    let again = session.acquire(names[0].as_str(), Ttl::UNTIL_RELEASED).await.unwrap();
    assert_ne!(backend_of(&server, &names[0]).await, pid);
    again.release().await.unwrap().exclusive().unwrap();
    give_back(kept).await;
    session.close().await.unwrap();
    server.quiet().await;
}

/// The beacon is there, so no heartbeat finds it: somebody has to look at the keys.
async fn one_unlocked(server: Server) {
    let (intruder, config) = intruded(&server).await;
    let session = session(&config);
    let names = names("k", 20);
    let mut guards = take(&session, &names).await;
    let pid = backend_of(&server, &names[0]).await;
    let victim = guards.remove(7);
    let name = victim.key().as_str().to_owned();
    intruder.run_in(pid, &format!("SELECT pg_advisory_unlock({})", id(&name))).await;
    assert!(!held(&server).await[&pid].contains(&id(&name)));
    let loss = timeout(AMPLE, victim.lost()).await.expect("it is not noticed");
    assert_eq!(loss.cause(), LossCause::NotOurs);
    victim.ensure_valid().unwrap_err();
    let rest: Vec<_> = guards.iter().map(|guard| guard.key().as_str().to_owned()).collect();
    guards.iter().for_each(|guard| guard.ensure_valid().unwrap());
    assert_eq!(held(&server).await.remove(&pid), Some(ids(&rest)), "the lane is another, or holds something else");
    assert!(matches!(victim.release().await, Ok(Release::Lost(_))));
    // To both it is a key like any other again.
    let other = server.locker();
    let guard = other.acquire(name.as_str(), Ttl::UNTIL_RELEASED).await.unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    let guard = session.acquire(name.as_str(), Ttl::UNTIL_RELEASED).await.unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    other.close().await.unwrap();
    give_back(guards).await;
    session.close().await.unwrap();
    server.quiet().await;
}
