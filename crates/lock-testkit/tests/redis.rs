//! Throw-away Redis servers.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test; clippy knows only those of the standard harness")]

mod common;

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use lock_testkit::{Redis, requirement, wait_until_blocking};
use rustix::process::{Pid, Signal, kill_process};

type Body = fn(Redis);

fn main() -> ExitCode {
    let tests: &[(&str, Body)] = &[
        ("servers_run_side_by_side_and_stop_alone", servers_run_side_by_side_and_stop_alone),
        ("dropped_server_leaves_no_process_and_no_folder", dropped_server_leaves_no_process_and_no_folder),
        ("frozen_server_leaves_nothing_after_drop", frozen_server_leaves_nothing_after_drop),
        ("killed_server_leaves_nothing_after_drop", killed_server_leaves_nothing_after_drop),
        ("server_does_not_run_as_root", server_does_not_run_as_root),
    ];
    let trials = tests.iter().map(|&(name, body)| {
        requirement::trial(name, Redis::start, move |redis| {
            body(redis);
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect::<Vec<Trial>>()).exit_code()
}

fn answers(redis: &Redis) -> bool {
    std::os::unix::net::UnixStream::connect(redis.socket()).is_ok()
}

fn signal(redis: &Redis, signal: Signal) {
    kill_process(Pid::from_raw(redis.pid().try_into().unwrap()).unwrap(), signal).unwrap();
}

fn processes_of(redis: &Redis) -> usize {
    let folder = redis.socket().parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    common::processes_naming(|part| part == folder).len()
}

fn drop_leaves_nothing(redis: Redis) {
    let folder = redis.socket().parent().unwrap().to_owned();
    let name = folder.file_name().unwrap().to_string_lossy().into_owned();
    assert!(processes_of(&redis) > 0, "the check sees processes while there are some");
    drop(redis);
    assert!(!folder.exists());
    assert_eq!(common::processes_naming(|part| part == name), Vec::<String>::new());
}

fn servers_run_side_by_side_and_stop_alone(one: Redis) {
    let other = Redis::start().unwrap();
    assert_ne!(one.url(), other.url());
    drop(one);
    assert!(answers(&other));
}

fn dropped_server_leaves_no_process_and_no_folder(redis: Redis) {
    assert!(answers(&redis));
    drop_leaves_nothing(redis);
}

fn frozen_server_leaves_nothing_after_drop(redis: Redis) {
    signal(&redis, Signal::STOP);
    drop_leaves_nothing(redis);
}

fn killed_server_leaves_nothing_after_drop(redis: Redis) {
    signal(&redis, Signal::KILL);
    let ended = wait_until_blocking(Duration::from_secs(5), "it has ended", || !answers(&redis));
    ended.unwrap();
    drop_leaves_nothing(redis);
}

fn server_does_not_run_as_root(redis: Redis) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", redis.pid())).unwrap();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    assert!(ids.split_whitespace().all(|id| id != "0"), "{ids}");
}
