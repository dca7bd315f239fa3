//! The example `observability` is run, in memory and on a PostgreSQL of its own, and what it printed is looked at as it looks at it
//! itself; then again without one thing after the other, each of which must be missed.

#![allow(clippy::unwrap_used, reason = "a test; clippy knows only those of the standard harness")]

use std::process::{Command, ExitCode};

use distributed_lock::telemetry::Metric;
use examples::observed::{IN_MEMORY, OF_CONNECTIONS, faults};
use libtest_mimic::{Arguments, Failed};
use lock_testkit::postgres::Installation;
use lock_testkit::requirement;

fn main() -> ExitCode {
    let nothing_needed = || Ok::<_, String>(());
    let memory = |()| judge(&printed(Some("")), &OF_CONNECTIONS);
    let postgres = |_: Installation| judge(&printed(None), &[]);
    let trials = vec![
        requirement::trial("in_memory_whatever_is_taken_from_the_text_is_missed", nothing_needed, memory),
        requirement::trial("on_postgresql_whatever_is_taken_from_the_text_is_missed", Installation::find, postgres),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// What the program prints where it looks for PostgreSQL in this folder, or where it would by itself.
fn printed(programs: Option<&str>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_observability"));
    command.env_remove("DATABASE_URL").envs(programs.map(|folder| ("LOCK_TEST_PG_BIN", folder)));
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "it ended with {}:\n{err}\n{out}", output.status);
    assert_eq!(out.starts_with(IN_MEMORY), programs.is_some(), "it says where it ran");
    out
}

/// `untold` are the metrics that it cannot show there.
fn judge(printed: &str, untold: &[Metric]) -> Result<(), Failed> {
    assert_eq!(faults(printed), [""; 0]);
    let missed = |text: String, by: &str| {
        let faults = faults(&text);
        assert!(faults.iter().any(|fault| fault.contains(by)), "{by} is not missed: {faults:?}");
    };
    for metric in Metric::ALL {
        let name = metric.row().facade;
        let without = without(printed, |line| line.starts_with(name));
        match untold.contains(metric) {
            true => assert_eq!(without, printed, "{name} is told after all"),
            false => missed(without, &format!("the page has no {name}")),
        }
    }

    missed(without(printed, |line| line.contains("waiting for ")), "no line says");
    missed(printed.replace(r#": "billing" "#, r#": a program without a name "#), "no line says");
    let whose = if untold.is_empty() { &["holder.session", "holder.host"][..] } else { &["holder.process"] };
    for field in ["holder.application_name", "holder.held_for", "queue"].iter().chain(whose) {
        missed(printed.replace(&format!(" {field}="), " other="), &format!("has no {field}="));
    }
    missed(printed.replace(" queue=1", " queue=0"), "not see itself");
    for span in ["lock.acquire", "lock.hold", "lock.release", "lease.term"] {
        missed(without(printed, |line| line.trim_start().starts_with(span)), &format!("no span {span}"));
    }
    for name in ["lock_held", "lock_waiting", "lease_leading"] {
        missed(changed(printed, name, " 0", " 1"), &format!("{name} is "));
    }
    for name in ["lock_held", "lock_waiting"] {
        missed(changed(printed, name, " 1", " 0"), &format!("{name} was 0"));
    }
    missed(String::new(), "the page has no lock_held");
    Ok(())
}

fn without(text: &str, is_gone: impl Fn(&str) -> bool) -> String {
    text.lines().filter(|line| !is_gone(line)).map(|line| format!("{line}\n")).collect()
}

/// With this value in place of that one, in the series of this name.
fn changed(text: &str, name: &str, from: &str, to: &str) -> String {
    let change = |line: &str| match line.strip_suffix(from).filter(|_| line.starts_with(name)) {
        Some(series) => format!("{series}{to}\n"),
        None => format!("{line}\n"),
    };
    text.lines().map(change).collect()
}
