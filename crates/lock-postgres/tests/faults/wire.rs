//! What our sessions send: nothing after which the server's idle timer would not run.
//!
//! The timer runs between the end of one statement and the next complete message. So no message may stay without its end (a
//! `Parse` without a `Sync`, a `Flush`), no session that holds a lock may listen, and each statement is short, so that a cut in the
//! middle of one, which cannot be ruled out, is rare.

use std::sync::atomic::Ordering;

use distributed_lock::{Attempt, LockerExt, ScopedLockerExt, Ttl, Wait};
use futures_util::FutureExt;
use libtest_mimic::{Failed, Trial};
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresScopedLocker};
use lock_testkit::{Cluster, requirement, wait_until};
use tokio::{
    io::{AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    runtime::Builder,
    time::sleep,
};

use crate::{
    bench::{AMPLE, SHORT_TTL, Server, ms, shortened, trial},
    intruder::read,
    recorder::{LIMIT, Recorder, url_through},
    silence::pool,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("wire::sessions_send_short_complete_statements_and_never_listen", statements),
        requirement::trial("wire::changes_of_a_ttl_that_go_together_are_a_short_write", Cluster::shared, |cluster| {
            changes(cluster);
            Ok::<_, Failed>(())
        }),
        trial("wire::statement_without_an_end_is_found", planted),
        trial("wire::session_that_is_cut_off_while_it_is_reset_ends_by_its_idle_limit", cut_in_reset),
    ]
}

async fn statements(server: Server) {
    let recorder = Recorder::start(&server).await;
    let config = || shortened(PostgresConfig::from_url(recorder.url(&server))).with_hand_over(true);
    let (ours, theirs) = (PostgresLocker::new(&config()).unwrap(), PostgresLocker::new(&config()).unwrap());
    let scoped = PostgresScopedLocker::new(&config()).unwrap();

    // A grant that waited, its renewal to another TTL, heartbeats, a release.
    let first = theirs.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let elapsed = ours.acquire_within("k", ms(5_000), ms(50)).await.unwrap();
    assert!(elapsed.is_contended());
    let (waited, released) = tokio::join!(ours.acquire("k", ms(5_000)), first.release());
    released.unwrap().exclusive().unwrap();
    let mut guard = waited.unwrap();
    guard.renew(ms(8_000)).await.unwrap();
    recorder.wait_for(2).await;
    guard.release().await.unwrap().exclusive().unwrap();

    // The same around a body, and in the transaction form.
    let first = theirs.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    // As long as several heartbeats take.
    let body = async |_| sleep(ms(700)).await;
    let (ran, released) = tokio::join!(scoped.with_lock("k", body), first.release());
    ran.unwrap();
    released.unwrap().exclusive().unwrap();
    let first = theirs.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let (ran, released) = tokio::join!(
        scoped.with_transaction("k", Wait::Forever, |_| Box::pin(async { Ok::<_, ()>(1) })),
        first.release()
    );
    assert!(matches!(ran.unwrap(), Attempt::Acquired(Ok(1))));
    released.unwrap().exclusive().unwrap();

    let house = async || recorder.housekeeping().iter().any(|text| text.contains("listen "));
    wait_until(AMPLE, "a session that keeps house listens", house).await.unwrap();
    let faults = recorder.faults();
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(recorder.statements() > 20, "the recorder saw too little to say anything");
}

/// As many as may be unanswered at a time. On one thread, so that they are all there before anybody sends one.
fn changes(cluster: &Cluster) {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let server = Server::on(cluster).await;
        for borrowed in [false, true] {
            let recorder = Recorder::start(&server).await;
            let url = recorder.url(&server);
            let locker = match borrowed {
                false => PostgresLocker::new(&PostgresConfig::from_url(url)),
                true => PostgresLocker::with_pool(pool(url, 1), &PostgresConfig::for_pool()),
            };
            let locker = locker.unwrap();
            let mut guard = locker.acquire("k", ms(60_000)).await.unwrap();
            let before = recorder.statements();
            recorder.longest.store(0, Ordering::SeqCst);
            for more in 0..8 {
                assert!(guard.renew(ms(50_000 + more)).now_or_never().is_none());
            }
            let all = wait_until(AMPLE, "all are sent", async || recorder.statements() >= before + 8);
            all.await.unwrap();
            let longest = recorder.longest.load(Ordering::SeqCst);
            println!("borrowed {borrowed}: {longest} bytes");
            assert!(longest > LIMIT / 4, "not sent together, borrowed {borrowed}: {longest} bytes");
            assert!(longest <= LIMIT, "borrowed {borrowed}: {longest} bytes");
            guard.ensure_valid().unwrap();
            guard.release().await.unwrap().exclusive().unwrap();
        }
    });
}

/// The check itself can fail.
async fn planted(server: Server) {
    let recorder = Recorder::start(&server).await;
    let mut raw = TcpStream::connect(recorder.address).await.unwrap();
    let startup = [&8_u32.to_be_bytes()[..], &196_608_u32.to_be_bytes()[..]].concat();
    raw.write_all(&startup).await.unwrap();
    raw.write_all(&message(b'P', b"\0select 1\0\0\0")).await.unwrap();
    raw.write_all(&message(b'H', b"")).await.unwrap();
    raw.write_all(&message(b'Q', b"listen x\0")).await.unwrap();
    wait_until(AMPLE, "the recorder has it", async || recorder.faults().len() >= 2).await.unwrap();
}

/// What a body left in its session is taken back in two steps: the server must be bound after each.
async fn cut_in_reset(server: Server) {
    let cutter = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = url_through(cutter.local_addr().unwrap(), &server);
    let port = server.port();
    tokio::spawn(async move {
        while let Ok((client, _)) = cutter.accept().await {
            tokio::spawn(cut_after(client, port, "discard"));
        }
    });
    let config = shortened(PostgresConfig::from_url(url)).with_watchdog(false);
    let scoped = PostgresScopedLocker::new(&config).unwrap();
    let ran = scoped.with_transaction("k", Wait::Forever, |_| Box::pin(async { Ok::<_, ()>(1) })).await;
    assert!(matches!(ran.unwrap(), Attempt::Acquired(Ok(1))));
    let left = async || server.observer.sessions().await.unwrap();
    assert_eq!(left().await.len(), 1, "the server has not heard of the end");
    wait_until(SHORT_TTL * 3, "the session is gone", async || left().await.is_empty()).await.unwrap();
}

/// Carries a connection until one message has this in it: the last that the server gets, and the client is not told.
async fn cut_after(client: TcpStream, port: u16, last: &'static str) {
    let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
    let mut typed = false;
    while let Some(message) = read(&mut from_client, typed).await {
        typed = true;
        to_server.write_all(&message).await.unwrap();
        if String::from_utf8_lossy(&message).contains(last) {
            // Keeps the connection to the server open.
            return std::future::pending().await;
        }
    }
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[kind][..], &length.to_be_bytes()[..], body].concat()
}
