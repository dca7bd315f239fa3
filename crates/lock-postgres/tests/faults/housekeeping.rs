//! The connection that keeps house for a locker: one at most, and on a thread of its own, whatever becomes of those who ask.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::{Arc, Mutex},
};

use distributed_lock::{AcquireOptions, Backend, ErrorKind, Inspect, LockKey, Locker, LockerExt, Ttl, Wait};
use libtest_mimic::{Failed, Trial};
use lock_postgres::{PostgresConfig, PostgresLocker};
use lock_testkit::{Cluster, proxy::Flow, requirement, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    runtime::{Builder, Runtime},
    task::{JoinSet, block_in_place},
    time::{Instant, sleep, timeout},
};

use crate::{
    bad_input,
    bench::{AMPLE, Server, ms, shortened, trial},
};

pub(crate) fn trials() -> Vec<Trial> {
    let on_cluster = |name: &'static str, test: fn(&Cluster)| {
        requirement::trial(name, Cluster::shared, move |cluster| {
            test(cluster);
            Ok::<_, Failed>(())
        })
    };
    vec![
        trial("housekeeping::connects_that_are_slow_give_one_session", slow_connects),
        on_cluster("housekeeping::asker_that_is_not_polled_for_a_while_brings_no_second_session", polled_again),
        on_cluster("housekeeping::holder_is_asked_though_the_first_waiter_s_runtime_is_not_polled", unpolled_waiter),
        trial("housekeeping::its_thread_ends_with_its_locker", thread),
        trial("housekeeping::session_that_is_being_opened_has_ended_when_closing_returns", closed_while_opening),
        trial("housekeeping::without_a_thread_questions_fail_and_waits_go_on_unwatched", in_another_process),
    ]
}

fn key() -> LockKey {
    LockKey::new("k").unwrap()
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Many ask while one connection is being opened, for longer than an answer may take.
async fn slow_connects(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = Arc::new(PostgresLocker::new(&shortened(config)).unwrap());
    proxy.down(Flow::Hold);
    let mut asking = JoinSet::new();
    for _ in 0..30 {
        let locker = Arc::clone(&locker);
        asking.spawn(async move { locker.holders(&key()).await });
    }
    let start = Instant::now();
    while start.elapsed() < ms(2_000) {
        assert!(proxy.connections() <= 1, "{} connections after {:?}", proxy.connections(), start.elapsed());
        sleep(ms(5)).await;
    }
    proxy.pass();
    let mut answered = 0;
    while let Some(asked) = timeout(AMPLE, asking.join_next()).await.expect("a question hangs") {
        answered += usize::from(asked.unwrap().is_ok());
        assert!(server.housekeepers().await.len() <= 1);
    }
    assert!(answered > 0, "the one who opened it asks on it");
    locker.close().await.unwrap();
    server.quiet().await;
}

/// It asks while nothing answers, and goes on when somebody else has long used the session.
fn polled_again(cluster: &Cluster) {
    let (main, first) = (Runtime::new().unwrap(), one_thread());
    let server = main.block_on(Server::on(cluster));
    let (proxy, config) = server.proxy();
    let locker = Arc::new(PostgresLocker::new(&shortened(config).with_hand_over(true)).unwrap());
    main.block_on(locker.ping()).unwrap();
    let before = proxy.connections();
    proxy.down(Flow::Hold);
    let asking = Arc::clone(&locker);
    let asking = first.spawn(async move { asking.holders(&key()).await });
    first.block_on(async {
        wait_until(AMPLE, "it is being opened", async || proxy.connections() > before).await.unwrap();
    });
    proxy.pass();
    let (guard, house) = main.block_on(async {
        let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
        let house = async || server.housekeepers().await;
        wait_until(AMPLE, "one keeps house", async || house().await.len() == 1).await.unwrap();
        assert_eq!(locker.holders(&key()).await.unwrap().len(), 1);
        (guard, house().await)
    });
    first.block_on(async { timeout(AMPLE, asking).await }).expect("the question hangs").unwrap().unwrap();
    main.block_on(async {
        assert_eq!(server.housekeepers().await, house);
        guard.release().await.unwrap().exclusive().unwrap();
        locker.close().await.unwrap();
        server.quiet().await;
    });
}

/// The first one to wait was there for a moment only, and its runtime is not polled any more.
fn unpolled_waiter(cluster: &Cluster) {
    let (main, first) = (Runtime::new().unwrap(), one_thread());
    let server = main.block_on(Server::on(cluster));
    let holder = PostgresLocker::new(&server.short().with_hand_over(true)).unwrap();
    let locker = server.locker();
    let guard = main.block_on(holder.acquire("k", Ttl::UNTIL_RELEASED)).unwrap();
    first.block_on(async {
        let elapsed = locker.acquire_within("k", Ttl::UNTIL_RELEASED, ms(50)).await.unwrap();
        assert!(elapsed.is_contended());
    });
    main.block_on(async {
        let options = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_wait(Wait::Forever).with_step_down_request();
        let steps_down = async {
            let asked = timeout(AMPLE / 2, async { guard.hold().step_down_requested().await }).await;
            guard.release().await.unwrap().exclusive().unwrap();
            asked.expect("nobody asked the holder");
        };
        let key = key();
        let (acquired, ()) = tokio::join!(locker.acquire_opts(&key, &options), steps_down);
        acquired.unwrap().acquired().unwrap().release().await.unwrap().exclusive().unwrap();
        locker.close().await.unwrap();
        holder.close().await.unwrap();
    });
    drop(first);
    main.block_on(server.quiet());
}

/// The threads of this process on which a locker asked for its password: for the housekeeping session that is its own.
async fn thread(server: Server) {
    for closes in [true, false] {
        let threads = Arc::<Mutex<BTreeSet<PathBuf>>>::default();
        let asked = Arc::clone(&threads);
        let config = server.config().with_password_callback(move || {
            let thread = fs::read_link("/proc/thread-self").unwrap();
            asked.lock().unwrap().insert(Path::new("/proc").join(thread));
            async { Ok::<_, std::io::Error>("any".to_owned()) }
        });
        let locker = PostgresLocker::new(&config).unwrap();
        locker.holders(&key()).await.unwrap();
        let threads = threads.lock().unwrap().clone();
        let [thread] = &Vec::from_iter(threads)[..] else { panic!("asked on several") };
        assert_eq!(fs::read_to_string(thread.join("comm")).unwrap().trim_end(), "lock-postgres");
        if closes {
            locker.close().await.unwrap();
        } else {
            drop(locker);
        }
        wait_until(AMPLE, "the thread has ended", async || !thread.exists()).await.unwrap();
        server.quiet().await;
    }
}

/// The server has the session, and we do not know that yet.
async fn closed_while_opening(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = Arc::new(PostgresLocker::new(&config).unwrap());
    proxy.both(Flow::Delay(ms(100)));
    let asking = Arc::clone(&locker);
    let asking = tokio::spawn(async move { asking.holders(&key()).await });
    wait_until(AMPLE, "it is being opened", async || server.housekeepers().await.len() == 1).await.unwrap();
    locker.close().await.unwrap();
    assert_eq!(server.observer.sessions().await.unwrap(), [], "closing said that all have ended");
    asking.await.unwrap().unwrap_err();
}

/// The database, for a process that may open no more files.
const URL: &str = "LOCK_TEST_WITHOUT_A_THREAD";

async fn in_another_process(server: Server) {
    let mut process = Command::new(env::current_exe().unwrap());
    let ended = block_in_place(|| process.env(URL, &server.url).output()).unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    server.quiet().await;
}

/// That process, if this is it.
pub(crate) fn without_a_thread() -> Option<ExitCode> {
    let url = env::var(URL).ok()?;
    bad_input::collect_log();
    Runtime::new().unwrap().block_on(async {
        let [holder, locker] =
            [(); 2].map(|()| PostgresLocker::new(&shortened(PostgresConfig::from_url(&url))).unwrap());
        let guard = holder.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
        locker.ping().await.unwrap();
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: before.maximum }).unwrap();
        let error = locker.holders(&key()).await.unwrap_err();
        let waited = locker.acquire_within("k", Ttl::UNTIL_RELEASED, ms(50)).await.unwrap();
        setrlimit(Resource::Nofile, before).unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("could not start a thread"), "{error}");
        assert!(waited.is_contended());
        assert!(bad_input::log().contains("nobody watches over waits"), "{}", bad_input::log());
        assert_eq!(locker.holders(&key()).await.unwrap().len(), 1, "it never tries again");
        guard.release().await.unwrap().exclusive().unwrap();
        locker.close().await.unwrap();
        holder.close().await.unwrap();
    });
    Some(ExitCode::SUCCESS)
}
