//! What lanes send, and what must never hold one up: nothing that stops the server's idle timer, nothing that can hang.

use std::sync::Arc;

use distributed_lock::{AcquireOptions, Backend, LockKey, Locker, LockerExt, Ttl, Wait};
use libtest_mimic::Trial;
use lock_postgres::PostgresConfig;
use lock_testkit::{Cluster, wait_until};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::{
    bench::{AMPLE, SHORT_TTL, Server, ms, shortened, trial, trial_alone},
    lanes::{backend_of, give_back, names, session, take},
    recorder::Recorder,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("wire::lanes_send_short_complete_statements_and_neither_listen_nor_notify", statements),
        trial_alone(
            "wire::commit_of_a_notice_that_hangs_loses_no_lane_and_holds_nobody_up",
            |builder| builder,
            stuck_notice,
        ),
    ]
}

/// Batches, heartbeats, renewals, waits on one another, a request to step down.
async fn statements(server: Server) {
    let recorder = Recorder::start(&server).await;
    let config = shortened(PostgresConfig::from_url(recorder.url(&server))).with_hand_over(true);
    let (ours, theirs) = (Arc::new(session(&config)), session(&config));
    let names = names("k", 300);
    let mut guards = take(&ours, &names).await;
    guards[0].renew(ms(5_000)).await.unwrap();
    recorder.wait_for(4).await;

    // One waits here and one there, and the first asks the holder to step down.
    let (waiting, key) = (Arc::clone(&ours), LockKey::new(names[1].as_str()).unwrap());
    let local = tokio::spawn(async move { waiting.acquire(&key, Ttl::UNTIL_RELEASED).await });
    let key = LockKey::new(names[0].as_str()).unwrap();
    let asks = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_wait(Wait::UpTo(ms(500))).with_step_down_request();
    assert!(theirs.acquire_opts(&key, &asks).await.unwrap().is_contended());
    let foreign = async { timeout(AMPLE, theirs.acquire(&key, Ttl::UNTIL_RELEASED)).await };
    let (foreign, ()) = tokio::join!(foreign, async {
        give_back(guards).await;
    });
    let local = timeout(AMPLE, local).await.expect("a local waiter does not get it").unwrap().unwrap();
    let foreign = foreign.expect("a waiter of another session does not get it").unwrap();
    recorder.wait_for(4).await;
    give_back(vec![local, foreign]).await;
    ours.close().await.unwrap();
    theirs.close().await.unwrap();
    let faults = recorder.faults();
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(recorder.statements() > 20, "the recorder saw too little to say anything");
    server.quiet().await;
}

/// A commit with a notice waits for a standby that is not there. Until it has ended, every other notice of the server hangs.
async fn hanging_commit(server: &Server) -> JoinHandle<()> {
    let stuck = async || {
        let sessions = server.observer.sessions().await.unwrap();
        sessions.iter().any(|session| session.wait_event.as_deref() == Some("SyncRep"))
    };
    // The server may not have heard yet of the standby that it is to wait for.
    loop {
        let stranger = server.stranger().await;
        let commit = tokio::spawn(async move {
            let commit = "BEGIN; INSERT INTO public.written VALUES (1); NOTIFY anything; COMMIT";
            stranger.batch_execute(commit).await.unwrap();
        });
        let seen = wait_until(AMPLE, "a commit hangs", async || commit.is_finished() || stuck().await);
        seen.await.unwrap();
        if !commit.is_finished() {
            return commit;
        }
    }
}

async fn stuck_notice(_cluster: Cluster, server: Server) {
    let admin = server.admin().await;
    admin.batch_execute("CREATE TABLE public.written (n int4)").await.unwrap();
    let (ours, theirs) = (session(&server.short()), session(&server.short()));
    let (mine, other) = (names("mine", 10), names("theirs", 10));
    let (guards, others) = (take(&ours, &mine).await, take(&theirs, &other).await);
    let lanes = [backend_of(&server, &mine[0]).await, backend_of(&server, &other[0]).await];
    for change in ["ALTER SYSTEM SET synchronous_standby_names = 'missing'", "SELECT pg_reload_conf()"] {
        admin.batch_execute(change).await.unwrap();
    }
    let hanging = hanging_commit(&server).await;

    let (start, mut rounds) = (Instant::now(), 0);
    // A lane that hangs is lost well before.
    while start.elapsed() < SHORT_TTL * 3 {
        // From one process to the other, whatever becomes of the word that it is free.
        let guard = ours.acquire("hand over", Ttl::UNTIL_RELEASED).await.unwrap();
        let next = async { timeout(AMPLE, theirs.acquire("hand over", Ttl::UNTIL_RELEASED)).await };
        let release = async {
            timeout(AMPLE, guard.release()).await.expect("a release hangs").unwrap().exclusive().unwrap();
        };
        let (next, ()) = tokio::join!(next, release);
        give_back(vec![next.expect("a waiter does not get it").unwrap()]).await;
        let some = timeout(AMPLE, take(&ours, &names("free", 20))).await.expect("an acquire hangs");
        timeout(AMPLE, give_back(some)).await.expect("a release hangs");
        rounds += 1;
    }
    println!("{rounds} rounds beside a commit that hangs");
    assert!(!hanging.is_finished(), "nothing hung");
    guards.iter().chain(&others).for_each(|guard| guard.ensure_valid().unwrap());
    assert_eq!(lanes, [backend_of(&server, &mine[0]).await, backend_of(&server, &other[0]).await], "a lane was lost");

    for change in ["ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"] {
        admin.batch_execute(change).await.unwrap();
    }
    timeout(AMPLE, hanging).await.expect("the commit hangs on").unwrap();
    give_back(guards).await;
    give_back(others).await;
    timeout(AMPLE, ours.close()).await.expect("closing hangs").unwrap();
    timeout(AMPLE, theirs.close()).await.expect("closing hangs").unwrap();
    drop(admin);
    server.quiet().await;
}
