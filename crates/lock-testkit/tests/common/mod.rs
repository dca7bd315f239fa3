//! What the kit's own tests share.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use lock_testkit::postgres::Installation;
use lock_testkit::{requirement, wait_until_blocking};

pub(crate) type Body = fn();

/// Runs tests that need PostgreSQL.
pub(crate) fn run(tests: &[(&str, Body)]) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), tests.iter().map(trial).collect()).exit_code()
}

/// A test that needs PostgreSQL.
pub(crate) fn trial(&(name, body): &(&str, Body)) -> Trial {
    requirement::trial(name, Installation::find, move |_: Installation| {
        body();
        Ok(())
    })
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Folders of clusters of that process.
pub(crate) fn folders_of(process: u32) -> Vec<PathBuf> {
    let bases = BTreeSet::from([std::env::temp_dir(), "/tmp".into()]);
    let paths = bases.into_iter().flat_map(|base| fs::read_dir(base).expect("readable"));
    let paths = paths.map(|entry| entry.expect("readable").path());
    paths.filter(|path| path.file_name().is_some_and(|name| is_of(process, &name.to_string_lossy()))).collect()
}

/// Processes that have to do with a cluster of that process.
pub(crate) fn processes_of(process: u32) -> Vec<String> {
    processes_naming(|name| is_of(process, name))
}

/// Processes with such a folder in their command line, environment or working folder.
pub(crate) fn processes_naming(is_folder: impl Fn(&str) -> bool) -> Vec<String> {
    let names_folder = |path: &Path| {
        let read = |file: &str| fs::read(path.join(file)).unwrap_or_default();
        let cwd = fs::read_link(path.join("cwd")).unwrap_or_default().into_os_string().into_encoded_bytes();
        let texts = [read("cmdline"), read("environ"), cwd];
        texts.iter().any(|text| String::from_utf8_lossy(text).split(['/', '\0', '=']).any(&is_folder))
    };
    let entries = fs::read_dir("/proc").expect("readable").filter_map(|entry| Some(entry.ok()?.path()));
    let is_process = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit());
    entries
        .filter(|path| is_process(path) && names_folder(path))
        .map(|path| format!("{}: {}", path.display(), fs::read_to_string(path.join("cmdline")).unwrap_or_default()))
        .collect()
}

fn is_of(process: u32, name: &str) -> bool {
    name.starts_with(&format!("lockpg-{process}-"))
}

pub(crate) fn assert_nothing_is_left_of(process: u32) {
    assert_eq!(folders_of(process), Vec::<PathBuf>::new());
    assert_eq!(processes_of(process), Vec::<String>::new());
}

pub(crate) fn wait_until_nothing_is_left_of(process: u32) {
    let gone = wait_until_blocking(Duration::from_secs(20), "folders and processes are gone", || {
        folders_of(process).is_empty() && processes_of(process).is_empty()
    });
    if let Err(timed_out) = gone {
        panic!("{timed_out}: {:?} {:?}", folders_of(process), processes_of(process));
    }
}
