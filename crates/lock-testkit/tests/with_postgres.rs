//! The program `with-postgres`, run as a real process.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test; clippy knows only those of the standard harness")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::Duration;

use common::{assert_nothing_is_left_of, folders_of, processes_of, wait_until_nothing_is_left_of};
use libtest_mimic::{Arguments, Trial};
use lock_testkit::wait_until_blocking;
use rustix::process::{Pid, Signal, kill_process};

fn main() -> ExitCode {
    let with_server: &[(&str, common::Body)] = &[
        ("command_gets_the_url_and_its_exit_code_is_passed_on", command_gets_the_url_and_its_exit_code_is_passed_on),
        ("command_ended_by_a_signal_gives_128_and_its_number", command_ended_by_a_signal_gives_128_and_its_number),
        ("command_that_is_not_there_gives_127", command_that_is_not_there_gives_127),
        ("signal_ends_the_command_and_leaves_nothing", signal_ends_the_command_and_leaves_nothing),
        ("signal_during_the_start_leaves_nothing", signal_during_the_start_leaves_nothing),
        ("sigkill_leaves_nothing", sigkill_leaves_nothing),
        ("sigkill_during_the_start_leaves_nothing", sigkill_during_the_start_leaves_nothing),
    ];
    let without: &[(&str, common::Body)] = &[
        ("missing_binaries_are_named_and_give_4", missing_binaries_are_named_and_give_4),
        ("no_command_gives_usage_and_2", no_command_gives_usage_and_2),
    ];
    let plain = without.iter().map(|&(name, body)| {
        Trial::test(name, move || {
            body();
            Ok(())
        })
    });
    let trials = with_server.iter().map(common::trial).chain(plain).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn with_postgres(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_with-postgres"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str]) -> (u32, Output) {
    let child = with_postgres(arguments).spawn().unwrap();
    (child.id(), child.wait_with_output().unwrap())
}

/// Starts a command that prints its process id, its URL, and then does not end by itself.
fn start_sleeper() -> (Child, Pid) {
    let mut child = with_postgres(&["--", "sh", "-c", "echo $$ $DATABASE_URL; exec sleep 1000"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let (pid, url) = line.trim().split_once(' ').unwrap();
    assert!(url.starts_with("postgres://postgres@127.0.0.1:"), "{url}");
    assert_eq!(folders_of(child.id()).len(), 1, "the check sees the folder while it is there");
    assert!(processes_of(child.id()).len() > 2, "the check sees processes while there are some");
    (child, Pid::from_raw(pid.parse().unwrap()).unwrap())
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn command_gets_the_url_and_its_exit_code_is_passed_on() {
    let (pid, output) = run(&["--", "sh", "-c", "echo $DATABASE_URL; exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(output.stdout.starts_with(b"postgres://postgres@127.0.0.1:"), "{output:?}");
    assert_nothing_is_left_of(pid);
    let (_, output) = run(&["true"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

fn command_ended_by_a_signal_gives_128_and_its_number() {
    let (pid, output) = run(&["sh", "-c", "kill -KILL $$"]);
    assert_eq!(output.status.code(), Some(128 + 9), "{output:?}");
    assert_nothing_is_left_of(pid);
}

fn command_that_is_not_there_gives_127() {
    let (pid, output) = run(&["/nonexistent/command"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert_nothing_is_left_of(pid);
}

fn signal_ends_the_command_and_leaves_nothing() {
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15), (Signal::HUP, 1)] {
        let (mut child, sleeper) = start_sleeper();
        send(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(128 + number));
        assert_nothing_is_left_of(child.id());
        assert!(rustix::process::test_kill_process(sleeper).is_err(), "the command has ended");
    }
}

fn signal_during_the_start_leaves_nothing() {
    let mut child = with_postgres(&["sleep", "1000"]).spawn().unwrap();
    wait_for_folder(&child);
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_nothing_is_left_of(child.id());
}

fn sigkill_leaves_nothing() {
    let (mut child, sleeper) = start_sleeper();
    send(&child, Signal::KILL);
    child.wait().unwrap();
    // The command itself stays, as with any parent that is killed. It must not keep the server alive.
    wait_until_nothing_is_left_of(child.id());
    kill_process(sleeper, Signal::KILL).unwrap();
}

fn wait_for_folder(child: &Child) {
    let started = wait_until_blocking(Duration::from_secs(10), "the folder is there", || {
        folders_of(child.id()).iter().any(|folder| folder.join("data").exists())
    });
    started.unwrap();
}

fn sigkill_during_the_start_leaves_nothing() {
    let mut child = with_postgres(&["sleep", "1000"]).spawn().unwrap();
    wait_for_folder(&child);
    send(&child, Signal::KILL);
    child.wait().unwrap();
    wait_until_nothing_is_left_of(child.id());
}

fn missing_binaries_are_named_and_give_4() {
    let output = with_postgres(&["true"]).env("LOCK_TEST_PG_BIN", "/nonexistent").output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("LOCK_TEST_PG_BIN=/nonexistent") && text.contains("apt-get install postgresql"), "{text}");
}

fn no_command_gives_usage_and_2() {
    for arguments in [&[][..], &["--"]] {
        let (_, output) = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stderr.starts_with(b"usage: with-postgres"), "{output:?}");
    }
}
