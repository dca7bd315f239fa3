//! Holders in processes of their own that are stopped, continued and killed.
//!
//! Such a process is this very program: what it holds comes by the environment, what it is asked by its standard input.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use distributed_lock::{LockerExt, Ttl};
use libtest_mimic::Trial;
use lock_postgres::{PostgresConfig, PostgresLocker};
use lock_testkit::wait_until_blocking;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    runtime::Runtime,
    task::block_in_place,
    time::{sleep, sleep_until, timeout},
};

use crate::bench::{AMPLE, Rival, SHORT_CUT_WAITER, SHORT_TTL, Server, Watch, ms, shortened, trial, with_short_waits};

const URL: &str = "LOCK_TEST_HOLDER_URL";
const TTL: &str = "LOCK_TEST_HOLDER_TTL_MS";
const WAITS: &str = "LOCK_TEST_HOLDER_WAITS";
const EXITS: &str = "LOCK_TEST_HOLDER_EXITS";

/// The exit code of a holder that left by `process::exit`, so that nothing else is taken for it.
const LEFT: i32 = 36;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("frozen::case_16_until_released_is_freed_by_the_server_and_invalid_on_waking", until_released),
        trial("frozen::case_16_ttl_is_freed_by_the_server_and_invalid_on_waking", |server| with_ttl(server, ms(0))),
        // The last heartbeat is sent before the margin of 250 ms; were it to give the whole TTL, the key came after 3.5 s.
        trial("frozen::ttl_after_a_late_heartbeat_is_freed_in_time", |server| with_ttl(server, ms(1_450))),
        trial("frozen::case_16_short_freeze_loses_nothing", short_freeze),
        trial("frozen::killed_holder_frees_the_key_at_once", killed),
        trial("frozen::case_36_sigterm_frees_the_key_at_once", |server| terminated(server, Holder::start, None)),
        trial("frozen::case_36_exit_on_sigterm_without_destructors_frees_the_key_at_once", |server| {
            terminated(server, Holder::exiting, Some(LEFT))
        }),
        trial("frozen::waiter_does_not_block_those_behind_it_and_does_not_wake_as_a_holder", waiter),
    ]
}

/// The process of a holder, if this is one.
pub(crate) fn holder() -> Option<ExitCode> {
    let url = env::var(URL).ok()?;
    let ttl = env::var(TTL).unwrap().parse().map(Duration::from_millis).unwrap();
    let ttl = if ttl.is_zero() { Ttl::UNTIL_RELEASED } else { Ttl::new(ttl).unwrap() };
    let runtime = Runtime::new().unwrap();
    if env::var_os(EXITS).is_some() {
        exit_on_sigterm(&runtime);
    }
    let guard = runtime.block_on(async {
        let config = PostgresConfig::from_url(url);
        let config = if env::var_os(WAITS).is_some() { with_short_waits(config) } else { shortened(config) };
        let locker = PostgresLocker::new(&config).unwrap();
        locker.acquire("k", ttl).await
    });
    let guard = match guard {
        Ok(guard) => guard,
        Err(error) => {
            println!("{:?}", error.kind());
            return Some(ExitCode::SUCCESS);
        }
    };
    // The runtime lives in threads of its own: what is asked here needs neither it nor an await.
    println!("held {}", guard.ensure_valid().is_ok());
    for question in std::io::stdin().lines() {
        match question.unwrap().as_str() {
            "valid" => println!("{}", guard.ensure_valid().is_ok()),
            other => panic!("unknown question {other:?}"),
        }
    }
    let released = runtime.block_on(guard.release());
    println!("{}", released.is_ok_and(|released| released.exclusive().is_ok()));
    Some(ExitCode::SUCCESS)
}

/// As a program does whose shutdown knows nothing of locks: no future is dropped, no destructor runs.
fn exit_on_sigterm(runtime: &Runtime) {
    let _entered = runtime.enter();
    let mut signals = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
    runtime.spawn(async move {
        signals.recv().await;
        std::process::exit(LEFT);
    });
}

struct Holder {
    process: std::process::Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Holder {
    fn start(server: &Server, ttl: Duration) -> Self {
        Self::spawn(server, ttl, |command| command)
    }

    fn waiting(server: &Server) -> Self {
        Self::spawn(server, Duration::ZERO, |command| command.env(WAITS, "1"))
    }

    fn exiting(server: &Server, ttl: Duration) -> Self {
        Self::spawn(server, ttl, |command| command.env(EXITS, "1"))
    }

    fn spawn(server: &Server, ttl: Duration, with: fn(&mut Command) -> &mut Command) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.env(URL, &server.url).env(TTL, ttl.as_millis().to_string());
        let mut process = with(&mut command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self { process, answers }
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        block_in_place(|| self.answers.read_line(&mut line)).unwrap();
        line.trim_end().into()
    }

    /// Whether it thinks that its hold is valid.
    fn is_valid(&mut self) -> bool {
        self.ask();
        self.answer() == "true"
    }

    fn ask(&mut self) {
        self.process.stdin.as_mut().unwrap().write_all(b"valid\n").unwrap();
    }

    /// Whether its release says that nobody else can have held.
    fn release(mut self) -> bool {
        drop(self.process.stdin.take());
        let exclusive = self.answer() == "true";
        block_in_place(|| self.process.wait()).unwrap();
        exclusive
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn freeze(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.process.id());
        let stopped =
            || fs::read_to_string(&stat).unwrap().rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'));
        block_in_place(|| wait_until_blocking(AMPLE, "the process is stopped", stopped)).unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn until_released(server: Server) {
    let mut holder = Holder::start(&server, Duration::ZERO);
    assert_eq!(holder.answer(), "held true");
    let rival = server.rival_of_another_process("k").await;
    // Longer than the server would keep a silent session.
    sleep(SHORT_TTL + ms(500)).await;
    assert!(holder.is_valid() && rival.is_waiting());
    holder.freeze();
    let watch = Watch::start();
    wakes_as_no_holder(server, holder, rival, &watch, "a frozen holder's key is free").await;
}

async fn with_ttl(server: Server, frozen_after: Duration) {
    let mut holder = Holder::start(&server, SHORT_TTL);
    assert_eq!(holder.answer(), "held true");
    let watch = Watch::start();
    let rival = server.rival_of_another_process("k").await;
    sleep_until(watch.start + frozen_after).await;
    assert!(holder.is_valid() && rival.is_waiting());
    holder.freeze();
    wakes_as_no_holder(server, holder, rival, &watch, "a frozen holder's TTL is over").await;
}

async fn wakes_as_no_holder(server: Server, mut holder: Holder, rival: Rival, watch: &Watch, what: &str) {
    let (guard, at) = rival.granted().await;
    watch.at_within(at, SHORT_TTL + ms(100), what);
    // The question lies there when it wakes up.
    holder.ask();
    holder.signal(Signal::CONT);
    assert_eq!(holder.answer(), "false", "it thinks that it still holds");
    assert!(!holder.release(), "a release that nobody else can have come before");
    guard.ensure_valid().unwrap();
    guard.release().await.unwrap().exclusive().unwrap();
    server.quiet().await;
}

async fn short_freeze(server: Server) {
    let mut holder = Holder::start(&server, Duration::ZERO);
    assert_eq!(holder.answer(), "held true");
    for _ in 0..3 {
        holder.freeze();
        sleep(ms(300)).await;
        holder.signal(Signal::CONT);
        assert!(holder.is_valid());
        sleep(ms(300)).await;
    }
    assert!(holder.is_valid());
    assert!(holder.release());
    server.quiet().await;
}

async fn killed(server: Server) {
    let mut holder = Holder::start(&server, Duration::ZERO);
    assert_eq!(holder.answer(), "held true");
    let rival = server.rival_of_another_process("k").await;
    let watch = Watch::start();
    holder.signal(Signal::KILL);
    let (guard, at) = rival.granted().await;
    watch.at_within(at, ms(100), "a killed holder's key is free");
    guard.release().await.unwrap().exclusive().unwrap();
    server.quiet().await;
}

/// `code` is the exit code that it must leave; `None` if the signal itself ends it.
async fn terminated(server: Server, start: fn(&Server, Duration) -> Holder, code: Option<i32>) {
    // Until released, and with a TTL that would keep the key far longer than the bound.
    for ttl in [Duration::ZERO, Duration::from_secs(60)] {
        let mut holder = start(&server, ttl);
        assert_eq!(holder.answer(), "held true");
        let rival = server.rival_of_another_process("k").await;
        let watch = Watch::start();
        holder.signal(Signal::TERM);
        let (guard, at) = timeout(AMPLE, rival.granted()).await.expect("its key is never free");
        watch.at_within(at, ms(100), "the key of a holder that got SIGTERM is free");
        let status = block_in_place(|| holder.process.wait()).unwrap();
        assert_eq!(status.code(), code, "{status}");
        assert_eq!(holder.answer(), "", "it said something in place of leaving");
        guard.release().await.unwrap().exclusive().unwrap();
    }
    server.quiet().await;
}

async fn waiter(server: Server) {
    let locker = server.locker();
    let guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    let mut waiter = Holder::waiting(&server);
    let first = server.waiters(1).await;
    let behind = {
        let locker = server.locker();
        tokio::spawn(async move { locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap() })
    };
    assert!(server.waiters(2).await.contains(&first[0]));
    waiter.freeze();
    let watch = Watch::start();
    guard.release().await.unwrap().exclusive().unwrap();
    let behind = behind.await.unwrap();
    watch.within(SHORT_CUT_WAITER, "the next behind a frozen waiter is granted");
    waiter.signal(Signal::CONT);
    assert_eq!(waiter.answer(), "Unavailable");
    behind.ensure_valid().unwrap();
    behind.release().await.unwrap().exclusive().unwrap();
    drop((waiter, locker));
    server.quiet().await;
}
