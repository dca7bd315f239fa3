//! Who holds and who waits, ending a holder, and requests to step down, between lockers that know nothing of each other.

use std::{
    collections::BTreeSet,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use distributed_lock::{
    AcquireOptions, Backend, ErrorKind, Holder, Inspect, LockGuard, LockKey, Locker, LockerExt, LossCause,
    ScopedLockerExt, SessionId, Ttl, Wait,
};
use libtest_mimic::Trial;
use lock_postgres::{KeyScheme, PostgresConfig, PostgresLocker, PostgresScopedLocker};
use lock_testkit::{proxy::Flow, requirement, wait_until};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::bench::{AMPLE, Server, Watch, ms, shortened, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("inspect::holders_and_waiters_of_every_kind_are_seen_in_queue_order", seen),
        trial("inspect::end_holder_ends_exactly_that_session", end_holder),
        trial("inspect::missing_rights_are_denied_with_what_to_grant", rights),
        trial("inspect::request_reaches_the_right_hold_and_nobody_else", step_down),
        trial("inspect::what_is_sent_names_no_lock", payload),
        trial("inspect::hand_over_by_an_acquire_that_asks", hand_over),
        trial("inspect::head_of_the_queue_gets_it_and_is_not_asked_in_turn", head_of_the_queue),
        trial("inspect::calls_that_are_dropped_midway_leave_nothing", dropped),
        trial("inspect::silent_server_is_given_up_in_time_and_asked_anew", silent),
        trial("inspect::locker_that_moves_to_another_runtime_opens_another_session", runtimes),
        trial("inspect::refused_housekeeping_session_is_opened_again_after_pauses_that_grow", refused),
        trial("inspect::request_is_heard_after_the_housekeeping_session_was_ended", reopened),
        trial("inspect::housekeeping_session_comes_when_needed_and_goes_with_the_locker", sessions),
        trial("inspect::over_a_pool_of_the_users", borrowed),
    ]
}

const KEY: &str = "k";

fn key() -> LockKey {
    LockKey::new(KEY).unwrap()
}

fn id() -> i64 {
    KeyScheme::default().id(0, &key())
}

/// A locker whose sessions call themselves so.
fn named(server: &Server, name: &str) -> PostgresLocker {
    PostgresLocker::from_url(&format!("{}?application_name={name}", server.url)).unwrap()
}

async fn take(locker: &PostgresLocker) -> LockGuard {
    locker.try_acquire(KEY, Ttl::UNTIL_RELEASED).await.unwrap().acquired().unwrap()
}

async fn only_holder(locker: &impl Inspect) -> Holder {
    let [holder] = <[_; 1]>::try_from(locker.holders(&key()).await.unwrap()).unwrap();
    holder
}

fn queue(locker: PostgresLocker) -> JoinHandle<LockGuard> {
    tokio::spawn(async move { locker.acquire(KEY, Ttl::UNTIL_RELEASED).await.unwrap() })
}

/// Whether the holder is asked within that time.
async fn is_asked(guard: &LockGuard, within: Duration) -> bool {
    timeout(within, async { guard.hold().step_down_requested().await }).await.is_ok()
}

async fn seen(server: Server) {
    let operator = server.locker();
    assert!(operator.holders(&key()).await.unwrap().is_empty() && operator.waiters(&key()).await.unwrap().is_empty());

    let billing = named(&server, "billing");
    let guard = take(&billing).await;
    let first = queue(named(&server, "first"));
    server.waiters(1).await;
    let second = queue(named(&server, "second"));
    server.waiters(2).await;

    let holder = only_holder(&operator).await;
    assert_eq!((holder.application_name.as_deref(), holder.host.as_deref()), (Some("billing"), Some("127.0.0.1")));
    assert!(holder.held_for.is_some_and(|held_for| held_for < AMPLE) && holder.fencing_token.is_none());
    let pid = server.holder().await;
    assert!(holder.session.as_str().starts_with(&format!("{pid}.")), "{holder:?}");
    let waiters = operator.waiters(&key()).await.unwrap();
    let names: Vec<_> = waiters.iter().map(|waiter| waiter.application_name.as_deref().unwrap()).collect();
    assert_eq!(names, ["first", "second"]);
    assert!(waiters[0].waiting_for > waiters[1].waiting_for && waiters[1].waiting_for.is_some(), "{waiters:?}");
    let another = LockKey::new("another").unwrap();
    assert!(
        operator.holders(&another).await.unwrap().is_empty() && operator.waiters(&another).await.unwrap().is_empty()
    );
    // Another namespace is another lock.
    let elsewhere = PostgresLocker::new(&server.short().with_namespace(1)).unwrap();
    assert!(elsewhere.holders(&key()).await.unwrap().is_empty());

    guard.release().await.unwrap().exclusive().unwrap();
    let guard = timeout(AMPLE, first).await.unwrap().unwrap();
    assert_eq!(only_holder(&operator).await.application_name.as_deref(), Some("first"));
    drop(guard);
    drop(timeout(AMPLE, second).await.unwrap().unwrap());

    // Whoever took it by other means is a holder too, with a transaction's lock or a session's, and several with shared ones.
    let free = async || operator.holders(&key()).await.unwrap().is_empty();
    wait_until(AMPLE, "the key is free", free).await.unwrap();
    let (one, other) = (server.stranger().await, server.stranger().await);
    one.batch_execute(&format!("BEGIN; SELECT pg_advisory_xact_lock_shared({})", id())).await.unwrap();
    other.batch_execute(&format!("SELECT pg_advisory_lock_shared({})", id())).await.unwrap();
    let holders = operator.holders(&key()).await.unwrap();
    let sessions: BTreeSet<_> = holders.iter().map(|holder| holder.session.to_string()).collect();
    assert_eq!(sessions.len(), 2, "{holders:?}");
    drop((one, other));

    let scoped = server.scoped();
    let inside = scoped.with_lock(KEY, async |_| only_holder(&scoped).await).await.unwrap();
    assert!(inside.held_for.is_some_and(|held_for| held_for < AMPLE));

    scoped.close().await.unwrap();
    operator.close().await.unwrap();
    assert_eq!(operator.holders(&key()).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(operator.request_step_down(&key()).await.unwrap_err().kind(), ErrorKind::Closed);
}

async fn end_holder(server: Server) {
    let (operator, locker) = (server.locker(), server.locker());
    let guard = take(&locker).await;
    let holder = only_holder(&operator).await;

    // The same process id with another beginning is another session; and under another key it holds nothing.
    let (pid, began) = holder.session.as_str().split_once('.').unwrap();
    let began: u64 = began.parse().unwrap();
    for forged in [began - 1, began + 1] {
        let forged = Holder::new(SessionId::new(format!("{pid}.{forged}")));
        assert!(!operator.end_holder(&key(), &forged).await.unwrap());
    }
    assert!(!operator.end_holder(&LockKey::new("another").unwrap(), &holder).await.unwrap());
    let foreign = operator.end_holder(&key(), &Holder::new(SessionId::new("x"))).await.unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::InvalidInput);
    guard.ensure_valid().unwrap();

    let rival = server.rival(KEY, &guard.hold()).await;
    assert!(operator.end_holder(&key(), &holder).await.unwrap());
    let loss = timeout(AMPLE, guard.lost()).await.unwrap();
    assert_eq!(loss.cause(), LossCause::SessionEnded);
    let (successor, _) = rival.granted().await;
    assert!(!operator.end_holder(&key(), &holder).await.unwrap(), "a successor is another");
    successor.ensure_valid().unwrap();
    successor.release().await.unwrap().exclusive().unwrap();

    // One who released it is left alone, although its session lives on.
    let guard = take(&locker).await;
    let holder = only_holder(&operator).await;
    guard.release().await.unwrap().exclusive().unwrap();
    assert!(!operator.end_holder(&key(), &holder).await.unwrap());
    drop(guard_of_same_session(&locker, &server, &holder).await);
    locker.close().await.unwrap();
    operator.close().await.unwrap();
    server.quiet().await;
}

/// A grant of another key, by the session that was spared.
async fn guard_of_same_session(locker: &PostgresLocker, server: &Server, holder: &Holder) -> LockGuard {
    let guard = locker.try_acquire("another", Ttl::UNTIL_RELEASED).await.unwrap().acquired().unwrap();
    assert!(holder.session.as_str().starts_with(&format!("{}.", server.holder().await)));
    guard
}

async fn rights(server: Server) {
    let admin = server.admin().await;
    admin.batch_execute("CREATE ROLE inspect_app LOGIN; CREATE ROLE inspect_ops LOGIN").await.unwrap();
    let of_role = |role: &str| PostgresLocker::from_url(&server.url_of(role)).unwrap();
    let app = of_role("inspect_app");
    let guard = take(&app).await;

    let ops = of_role("inspect_ops");
    let dim = only_holder(&ops).await;
    assert_eq!(dim.session.to_string(), server.holder().await.to_string(), "no more than the backend");
    assert!(dim.held_for.is_none() && dim.application_name.is_some());
    let denied = ops.end_holder(&key(), &dim).await.unwrap_err();
    assert_eq!((denied.kind(), denied.code()), (ErrorKind::Denied, Some("42501")));
    assert!(denied.to_string().contains("pg_read_all_stats"), "{denied}");
    // Told by somebody who sees more, it is denied all the same.
    let superuser = server.locker();
    let bright = only_holder(&superuser).await;
    let denied = ops.end_holder(&key(), &bright).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Denied);

    admin.batch_execute("GRANT pg_read_all_stats TO inspect_ops").await.unwrap();
    let seen = only_holder(&ops).await;
    assert_eq!(seen.session, bright.session);
    let denied = ops.end_holder(&key(), &seen).await.unwrap_err();
    assert_eq!((denied.kind(), denied.code()), (ErrorKind::Denied, Some("42501")));
    assert!(denied.to_string().contains("pg_signal_backend"), "{denied}");
    guard.ensure_valid().unwrap();

    admin.batch_execute("GRANT pg_signal_backend TO inspect_ops").await.unwrap();
    assert!(ops.end_holder(&key(), &seen).await.unwrap());
    timeout(AMPLE, guard.lost()).await.unwrap();
    for locker in [app, ops, superuser] {
        locker.close().await.unwrap();
    }
}

async fn step_down(server: Server) {
    let listening = PostgresLocker::new(&server.config().with_hand_over(true)).unwrap();
    assert!(listening.capabilities().step_down && !server.locker().capabilities().step_down);
    let operator = server.locker();
    assert!(!operator.request_step_down(&key()).await.unwrap(), "nobody is there to be asked");

    let guard = take(&listening).await;
    let bystander = listening.acquire("another", Ttl::UNTIL_RELEASED).await.unwrap();
    let elsewhere = PostgresLocker::new(&server.config().with_hand_over(true).with_namespace(1)).unwrap();
    let stranger = take(&elsewhere).await;
    // The session may only be on its way.
    let asked = wait_until(AMPLE, "the holder is asked", async || {
        assert!(operator.request_step_down(&key()).await.unwrap());
        is_asked(&guard, ms(20)).await
    });
    asked.await.unwrap();
    guard.ensure_valid().unwrap();
    // Whatever the others were to hear has been sent before.
    assert!(operator.request_step_down(&LockKey::new("another").unwrap()).await.unwrap());
    assert!(is_asked(&bystander, AMPLE).await);
    assert!(!is_asked(&stranger, ms(0)).await, "another namespace");

    // A later hold of the key was not asked.
    guard.release().await.unwrap().exclusive().unwrap();
    let later = take(&listening).await;
    assert!(!is_asked(&later, ms(0)).await);
    // Now the session listens, so one request is enough. Printed, not promised.
    let mut latencies = Vec::new();
    drop(later);
    for _ in 0..requirement::rounds(20) {
        let guard = listening.acquire(KEY, Ttl::UNTIL_RELEASED).await.unwrap();
        let start = Instant::now();
        assert!(operator.request_step_down(&key()).await.unwrap());
        assert!(is_asked(&guard, AMPLE).await);
        latencies.push(start.elapsed());
        guard.release().await.unwrap().exclusive().unwrap();
    }
    latencies.sort_unstable();
    println!(
        "request heard: median {:?}, longest {:?}",
        latencies[latencies.len() / 2],
        latencies[latencies.len() - 1]
    );

    // A holder that does not listen is there all the same.
    let deaf = take(&operator).await;
    assert!(listening.request_step_down(&key()).await.unwrap());
    assert!(!is_asked(&deaf, ms(100)).await);
    for locker in [listening, operator, elsewhere] {
        locker.close().await.unwrap();
    }
    server.quiet().await;
}

async fn payload(server: Server) {
    use tokio_postgres::{AsyncMessage, NoTls};
    let (client, mut connection) = tokio_postgres::connect(&server.url, NoTls).await.unwrap();
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(notification) = message {
                sender.send((notification.channel().to_owned(), notification.payload().to_owned())).unwrap();
            }
        }
    });
    client.batch_execute("LISTEN distributed_lock_step_down").await.unwrap();
    let locker = PostgresLocker::new(&server.config().with_namespace(-7)).unwrap();
    let secret = LockKey::new("customer:smith").unwrap();
    let _guard = locker.acquire("customer:smith", Ttl::UNTIL_RELEASED).await.unwrap();
    assert!(locker.request_step_down(&secret).await.unwrap());
    let (channel, payload) = timeout(AMPLE, heard.recv()).await.unwrap().unwrap();
    assert_eq!(channel, "distributed_lock_step_down");
    assert_eq!(payload, format!("-7 {} 0", KeyScheme::default().id(-7, &secret)));
    let sessions = server.observer.sessions().await.unwrap();
    assert!(sessions.iter().all(|session| !format!("{session:?}").contains("smith")), "{sessions:?}");
    // Nonsense from anybody does not disturb those who listen.
    let listening = PostgresLocker::new(&server.config().with_hand_over(true)).unwrap();
    let guard = take(&listening).await;
    let is_there = async || server.housekeepers().await.len() == 2;
    wait_until(AMPLE, "it listens", is_there).await.unwrap();
    for nonsense in ["", "x", "0", "0 x", "0 1", "-7 1 0", "0 1 0"] {
        client.execute("SELECT pg_notify('distributed_lock_step_down', $1)", &[&nonsense]).await.unwrap();
    }
    let asked = wait_until(AMPLE, "the holder is asked", async || {
        assert!(locker.request_step_down(&key()).await.is_ok_and(|there| !there), "another namespace");
        assert!(listening.request_step_down(&key()).await.unwrap());
        is_asked(&guard, ms(20)).await
    });
    asked.await.unwrap();
    locker.close().await.unwrap();
    listening.close().await.unwrap();
}

async fn hand_over(server: Server) {
    let old = PostgresLocker::new(&server.config().with_hand_over(true)).unwrap();
    let new = server.locker();
    let options = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_wait(Wait::Forever).with_step_down_request();
    let wanted = key();
    let mut latencies = Vec::new();
    for _ in 0..requirement::rounds(20) {
        let guard = old.acquire(KEY, Ttl::UNTIL_RELEASED).await.unwrap();
        let steps_down = async {
            assert!(is_asked(&guard, AMPLE).await);
            guard.release().await.unwrap().exclusive().unwrap();
        };
        let start = Instant::now();
        let (taken, ()) = tokio::join!(timeout(AMPLE, new.acquire_opts(&wanted, &options)), steps_down);
        latencies.push(start.elapsed());
        taken.unwrap().unwrap().acquired().unwrap().release().await.unwrap().exclusive().unwrap();
    }
    latencies.sort_unstable();
    println!("hand-over: median {:?}, longest {:?}", latencies[latencies.len() / 2], latencies[latencies.len() - 1]);

    // Two that ask and listen, in turn: a request that arrives when its sender has just been granted the lock is not for it.
    let both = PostgresLocker::new(&server.config().with_hand_over(true)).unwrap();
    for _ in 0..requirement::rounds(200) {
        let guard = old.acquire(KEY, Ttl::UNTIL_RELEASED).await.unwrap();
        let (taken, released) = tokio::join!(timeout(AMPLE, both.acquire_opts(&wanted, &options)), guard.release());
        released.unwrap().exclusive().unwrap();
        let taken = taken.unwrap().unwrap().acquired().unwrap();
        // Whatever was under way has arrived when this one has.
        let marker = both.acquire("marker", Ttl::UNTIL_RELEASED).await.unwrap();
        assert!(both.request_step_down(&LockKey::new("marker").unwrap()).await.unwrap());
        assert!(is_asked(&marker, AMPLE).await);
        assert!(!is_asked(&taken, ms(0)).await, "asked by itself");
        taken.release().await.unwrap().exclusive().unwrap();
        marker.release().await.unwrap().exclusive().unwrap();
    }
    both.close().await.unwrap();

    // A single try asks too.
    let guard = old.acquire(KEY, Ttl::UNTIL_RELEASED).await.unwrap();
    let once = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_step_down_request();
    assert!(new.acquire_opts(&key(), &once).await.unwrap().is_contended());
    assert!(is_asked(&guard, AMPLE).await);
    // One that waits without asking does not.
    guard.release().await.unwrap().exclusive().unwrap();
    let guard = old.acquire(KEY, Ttl::UNTIL_RELEASED).await.unwrap();
    let silent = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_wait(Wait::UpTo(ms(300)));
    assert!(new.acquire_opts(&key(), &silent).await.unwrap().is_contended());
    assert!(!is_asked(&guard, ms(0)).await);
    old.close().await.unwrap();
    new.close().await.unwrap();
    server.quiet().await;
}

async fn reopened(server: Server) {
    let old = PostgresLocker::new(&server.config().with_hand_over(true)).unwrap();
    let guard = take(&old).await;
    let [pid] = timeout(AMPLE, async {
        loop {
            if let Ok(one) = <[_; 1]>::try_from(server.housekeepers().await) {
                return one;
            }
        }
    })
    .await
    .unwrap();
    assert!(server.observer.terminate(pid).await.unwrap());
    let is_back = async || server.housekeepers().await.first().is_some_and(|now| *now != pid);
    wait_until(AMPLE, "there is another", is_back).await.unwrap();
    guard.ensure_valid().unwrap();

    // Asked again until it goes: the first request may have come before it listened.
    let new = server.locker();
    let options = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_wait(Wait::Forever).with_step_down_request();
    let wanted = key();
    let steps_down = async {
        assert!(is_asked(&guard, AMPLE).await);
        guard.release().await.unwrap().exclusive().unwrap();
    };
    let (taken, ()) = tokio::join!(timeout(AMPLE, new.acquire_opts(&wanted, &options)), steps_down);
    let successor = taken.unwrap().unwrap().acquired().unwrap();

    // One that was ended while nobody needed it is not missed.
    for pid in server.housekeepers().await {
        server.observer.terminate(pid).await.unwrap();
    }
    assert_eq!(new.holders(&key()).await.unwrap().len(), 1);
    successor.ensure_valid().unwrap();
    old.close().await.unwrap();
    new.close().await.unwrap();
    server.quiet().await;
}

async fn sessions(server: Server) {
    let plain = server.locker();
    take(&plain).await.release().await.unwrap().exclusive().unwrap();
    let guard = take(&plain).await;
    let other = server.locker();
    assert!(other.try_acquire(KEY, Ttl::UNTIL_RELEASED).await.unwrap().is_contended());
    assert!(other.acquire_within(KEY, Ttl::UNTIL_RELEASED, ms(50)).await.unwrap().is_contended());
    assert_eq!(server.housekeepers().await, [0; 0], "not for grants, tries and short waits");
    only_holder(&plain).await;
    only_holder(&plain).await;
    let wanted = key();
    let (one, two) = tokio::join!(other.holders(&wanted), other.waiters(&wanted));
    assert_eq!((one.unwrap().len(), two.unwrap().len()), (1, 0));
    assert_eq!(server.housekeepers().await.len(), 2, "one for each locker");
    guard.release().await.unwrap().exclusive().unwrap();
    plain.close().await.unwrap();
    assert_eq!(server.housekeepers().await.len(), 1, "it went before the close was over");
    // Without a close it goes too, also one that listens.
    drop(other);
    let listening = PostgresLocker::new(&server.config().with_hand_over(true)).unwrap();
    let guard = take(&listening).await;
    wait_until(AMPLE, "it listens", async || server.housekeepers().await.len() == 1).await.unwrap();
    drop(guard);
    drop(listening);
    server.quiet().await;
}

async fn borrowed(server: Server) {
    let manager = deadpool_postgres::Manager::new(server.url.parse().unwrap(), tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(2).build().unwrap();
    let refused =
        PostgresLocker::with_pool(pool.clone(), &PostgresConfig::for_pool().with_hand_over(true)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let rule = refused.source().unwrap().to_string();
    assert!(rule.contains("hand_over"), "{rule}");

    let config = PostgresConfig::for_pool().with_conn_wait_timeout(ms(50));
    let locker = PostgresLocker::with_pool(pool.clone(), &config).unwrap();
    let old = PostgresLocker::new(&server.config().with_hand_over(true)).unwrap();
    let guard = take(&old).await;
    wait_until(AMPLE, "it listens", async || server.housekeepers().await.len() == 1).await.unwrap();
    let holder = only_holder(&locker).await;
    assert!(locker.waiters(&key()).await.unwrap().is_empty());
    // The connection goes back.
    assert_eq!((pool.status().size, pool.status().available), (1, 1));
    let asked = wait_until(AMPLE, "the holder is asked", async || {
        let once = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_step_down_request();
        assert!(locker.acquire_opts(&key(), &once).await.unwrap().is_contended());
        is_asked(&guard, ms(20)).await
    });
    asked.await.unwrap();
    assert!(locker.end_holder(&key(), &holder).await.unwrap());
    timeout(AMPLE, guard.lost()).await.unwrap();

    let _both = (pool.get().await.unwrap(), pool.get().await.unwrap());
    assert_eq!(locker.holders(&key()).await.unwrap_err().kind(), ErrorKind::LimitReached);
    let scoped = PostgresScopedLocker::with_pool(pool.clone(), &config).unwrap();
    assert_eq!(scoped.holders(&key()).await.unwrap_err().kind(), ErrorKind::LimitReached);
    old.close().await.unwrap();
}

/// The one who asked stands behind another, who is no holder that anybody asked.
async fn head_of_the_queue(server: Server) {
    let listens = || PostgresLocker::new(&server.config().with_hand_over(true)).unwrap();
    let (old, head, asking) = (listens(), listens(), server.locker());
    let guard = old.acquire(KEY, Ttl::UNTIL_RELEASED).await.unwrap();
    let first = queue(head);
    server.waiters(1).await;
    let options = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_wait(Wait::Forever).with_step_down_request();
    let second = tokio::spawn(async move { asking.acquire_opts(&key(), &options).await });
    server.waiters(2).await;
    assert!(is_asked(&guard, AMPLE).await);
    guard.release().await.unwrap().exclusive().unwrap();
    let guard = timeout(AMPLE, first).await.unwrap().unwrap();
    // It listens: somebody else can ask it. The second in the queue repeats its request meanwhile, but not to this one.
    assert!(!is_asked(&guard, ms(1_500)).await);
    let asked = wait_until(AMPLE, "it can be asked", async || {
        assert!(old.request_step_down(&key()).await.unwrap());
        is_asked(&guard, ms(20)).await
    });
    asked.await.unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    let last = timeout(AMPLE, second).await.unwrap().unwrap().unwrap().acquired().unwrap();
    last.release().await.unwrap().exclusive().unwrap();
    old.close().await.unwrap();
}

async fn dropped(server: Server) {
    let holder = server.locker();
    let guard = take(&holder).await;
    let seen = only_holder(&holder).await;
    let another = LockKey::new("another").unwrap();
    for round in 0..requirement::rounds(60) {
        let config = if round % 2 == 0 { server.config() } else { server.config().with_hand_over(true) };
        let locker = PostgresLocker::new(&config).unwrap();
        let options = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_wait(Wait::Forever).with_step_down_request();
        let calls = async {
            assert_eq!(locker.holders(&key()).await.unwrap().len(), 1);
            locker.request_step_down(&key()).await.unwrap();
            assert!(!locker.end_holder(&another, &seen).await.unwrap());
            drop(locker.acquire_opts(&key(), &options).await.unwrap());
        };
        // From before the first connection to somewhere in the queue.
        assert!(timeout(Duration::from_micros(200 * round), calls).await.is_err());
        if round % 3 == 0 {
            locker.close().await.unwrap();
        }
    }
    guard.ensure_valid().unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    holder.close().await.unwrap();
    server.quiet().await;
}

async fn silent(server: Server) {
    let holder = server.locker();
    let guard = take(&holder).await;
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&shortened(config)).unwrap();
    assert_eq!(locker.holders(&key()).await.unwrap().len(), 1);
    proxy.both(Flow::Hold);
    let watch = Watch::start();
    assert_eq!(locker.holders(&key()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    watch.within(ms(500), "a question that is not answered is given up");
    proxy.pass();
    assert_eq!(locker.holders(&key()).await.unwrap().len(), 1);
    guard.ensure_valid().unwrap();
    proxy.both(Flow::Drop);
    let watch = Watch::start();
    locker.close().await.unwrap();
    watch.within(Duration::from_secs(1), "a locker that only looked and is cut off is closed");
    guard.release().await.unwrap().exclusive().unwrap();
    holder.close().await.unwrap();
}

async fn runtimes(server: Server) {
    let locker = Arc::new(PostgresLocker::new(&server.config().with_hand_over(true)).unwrap());
    let first = Arc::clone(&locker);
    let elsewhere = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            take(&first).await.release().await.unwrap().exclusive().unwrap();
            assert!(first.holders(&key()).await.unwrap().is_empty());
        });
    });
    tokio::task::spawn_blocking(move || elsewhere.join()).await.unwrap().unwrap();
    // Its connections ended with that runtime, and so did the task that listened.
    let guard = take(&locker).await;
    assert_eq!(locker.holders(&key()).await.unwrap().len(), 1);
    let asked = wait_until(AMPLE, "the holder is asked", async || {
        assert!(locker.request_step_down(&key()).await.unwrap());
        is_asked(&guard, ms(20)).await
    });
    asked.await.unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

/// A door before the server: who knocks is counted, and turned away while it is shut.
#[derive(Clone, Debug)]
struct Door {
    url: String,
    shut: watch::Sender<bool>,
    knocks: Arc<AtomicUsize>,
}

impl Door {
    async fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (from, to) = (format!(":{}/", server.port()), format!(":{}/", listener.local_addr().unwrap().port()));
        let url = format!("{}?sslmode=disable", server.url.replace(&from, &to));
        let door = Self { url, shut: watch::Sender::new(false), knocks: Arc::default() };
        let (opened, port) = (door.clone(), server.port());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                opened.knocks.fetch_add(1, Ordering::SeqCst);
                let mut shut = opened.shut.subscribe();
                tokio::spawn(async move {
                    tokio::select! {
                        biased;
                        _ = shut.wait_for(|shut| *shut) => {}
                        () = async {
                            let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                            let _ = copy_bidirectional(&mut client, &mut server).await;
                        } => {}
                    }
                });
            }
        });
        door
    }
}

async fn refused(server: Server) {
    let door = Door::before(&server).await;
    let locker = PostgresLocker::new(&PostgresConfig::from_url(&door.url).with_hand_over(true)).unwrap();
    take(&locker).await.release().await.unwrap().exclusive().unwrap();
    wait_until(AMPLE, "it listens", async || server.housekeepers().await.len() == 1).await.unwrap();
    door.shut.send_replace(true);
    door.knocks.store(0, Ordering::SeqCst);
    let start = Instant::now();
    let tried = async || door.knocks.load(Ordering::SeqCst) >= 5;
    wait_until(AMPLE, "it tries to come back", tried).await.unwrap();
    // Pauses of 0, 100, 200, 400 and 800 ms, less a fifth at the most.
    let took = start.elapsed();
    println!("five attempts within {took:?}");
    assert!(took > ms(1_000), "{took:?}");
    door.shut.send_replace(false);
    wait_until(AMPLE, "it listens again", async || server.housekeepers().await.len() == 1).await.unwrap();
    let (guard, operator) = (take(&locker).await, server.locker());
    assert!(operator.request_step_down(&key()).await.unwrap());
    assert!(is_asked(&guard, AMPLE).await);
    guard.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    operator.close().await.unwrap();
}
