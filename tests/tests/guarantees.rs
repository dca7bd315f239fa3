//! `docs/guarantees.md` names a test for every promise, and the test is there. Textual on purpose: it holds for tests that a
//! harness makes from a list as well as for functions. The last tests show each rule a planted breach.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its input has failed")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use distributed_lock::{Backend, MemoryLocker};
use lock_postgres::{PostgresLocker, PostgresScopedLocker, PostgresSharedSession};

/// The header of the column that names tests.
const COLUMN: &str = "measured by";

/// One row: the promise, and the tests as (file, name).
#[derive(Debug)]
struct Row {
    promise: String,
    tests: Vec<(String, String)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn document() -> String {
    std::fs::read_to_string(root().join("docs/guarantees.md")).unwrap()
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split(" | ").map(str::trim).collect()
}

/// The rows of every table whose last column is [`COLUMN`].
fn rows(document: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut measured = false;
    for line in document.lines() {
        if !line.starts_with('|') {
            measured = false;
        } else if cells(line).last() == Some(&COLUMN) {
            measured = true;
        } else if measured && !line.starts_with("|-") {
            let cells = cells(line);
            rows.push(Row { promise: cells[0].to_owned(), tests: tests(cells[cells.len() - 1]) });
        }
    }
    rows
}

/// The tests that a cell names in backticks: `file::name`, or `::name` for one more in the file before it.
fn tests(cell: &str) -> Vec<(String, String)> {
    let mut file = "";
    let mut tests = Vec::new();
    for quoted in cell.split('`').skip(1).step_by(2) {
        let (path, name) = quoted.split_once("::").unwrap_or((quoted, ""));
        if !path.is_empty() {
            file = path;
        }
        tests.push((file.to_owned(), name.to_owned()));
    }
    tests
}

/// Whether the source defines a function of this name, or has the name in a string, alone or after a `theme::`.
fn names(source: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    !name.is_empty()
        && source.match_indices(name).any(|(at, _)| {
            let (before, after) = (&source[..at], &source[at + name.len()..]);
            let whole = !after.starts_with(is_word);
            let quoted = before.ends_with('"') || before.rsplit('"').next().is_some_and(is_theme);
            whole && (before.ends_with("fn ") || (quoted && after.starts_with('"')))
        })
}

/// The `loss::` of `"loss::terminated_holder"`.
fn is_theme(text: &str) -> bool {
    let theme = text.strip_suffix("::").unwrap_or("");
    !theme.is_empty() && theme.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

/// Promises without a test, and tests that are not where the table says. `source` reads a file of the repository.
fn breaches(document: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut breaches = Vec::new();
    for Row { promise, tests } in rows(document) {
        if tests.is_empty() {
            breaches.push(format!("{promise}: names no test"));
        }
        for (file, name) in tests {
            match source(&file) {
                None => breaches.push(format!("{promise}: there is no file {file}")),
                Some(source) if !names(&source, &name) => breaches.push(format!("{promise}: {file} has no {name}")),
                Some(_) => {}
            }
        }
    }
    breaches
}

#[test]
fn every_promise_names_tests_that_exist() {
    let document = document();
    assert!(rows(&document).len() > 30, "the table was not read: {:?}", rows(&document));
    let source = |file: &str| std::fs::read_to_string(root().join(file)).ok();
    assert_eq!(breaches(&document, source), [""; 0]);
}

/// The numbers of the default settings, as a program would print them at its start.
#[test]
fn bounds_in_the_document_are_those_the_lockers_print() {
    let document = document();
    let url = "postgres://app@db.example/shop";
    let lockers: [Box<dyn Backend>; 4] = [
        Box::new(MemoryLocker::new()),
        Box::new(PostgresLocker::from_url(url).unwrap()),
        Box::new(PostgresScopedLocker::from_url(url).unwrap()),
        Box::new(PostgresSharedSession::from_url(url).unwrap()),
    ];
    for locker in lockers {
        let mut guarantees = locker.guarantees();
        guarantees.notes.clear();
        let line = format!("{locker}: {guarantees}");
        assert!(document.lines().any(|printed| printed == line), "docs/guarantees.md lacks the line\n{line}");
    }
}

/// A repository of two files and a document about it.
fn planted(row: &str) -> Vec<String> {
    let files = BTreeMap::from([
        ("a.rs", "async fn held_key_is_contended() {}\ntrial(\"loss::cut_is_told\", cut)"),
        ("b.rs", "cases! { Locker:\n    only_listed,\n}\nlet x = \"has told_in_prose\"; fn longer_name() {}"),
    ]);
    let document = format!("| promise | number | {COLUMN} |\n|---|---|---|\n| it holds | 1 s | {row} |\n\nMore.\n");
    assert_eq!(rows(&document).len(), 1);
    breaches(&document, |file| files.get(file).map(|source| (*source).to_owned()))
}

#[test]
fn planted_row_with_its_tests_is_fine() {
    for row in
        ["`a.rs::held_key_is_contended`", "`a.rs::cut_is_told`, `::held_key_is_contended` and `b.rs::longer_name`"]
    {
        assert_eq!(planted(row), [""; 0], "{row}");
    }
}

#[test]
fn planted_wrong_name_file_or_empty_row_is_found() {
    let wrong = [
        ("none yet", "it holds: names no test"),
        ("`a.rs::held_key_is_contende`", "it holds: a.rs has no held_key_is_contende"),
        ("`a.rs::key_is_contended`", "it holds: a.rs has no key_is_contended"),
        ("`a.rs::cut_is_told`, `::cut_is_untold`", "it holds: a.rs has no cut_is_untold"),
        ("`b.rs::held_key_is_contended`", "it holds: b.rs has no held_key_is_contended"),
        ("`b.rs::only_listed`", "it holds: b.rs has no only_listed"),
        ("`b.rs::told_in_prose`", "it holds: b.rs has no told_in_prose"),
        ("`c.rs::cut_is_told`", "it holds: there is no file c.rs"),
        ("`a.rs`", "it holds: a.rs has no "),
    ];
    for (row, breach) in wrong {
        assert_eq!(planted(row), [breach], "{row}");
    }
}

#[test]
fn tables_of_another_kind_are_left_alone() {
    let other = "| setting | default |\n|---|---|\n| `pool_size` | 8 |\n\n| promise | measured by |\n|---|---|\n";
    assert_eq!(rows(other).len(), 0);
}
