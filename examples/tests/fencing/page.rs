//! The page says what the code says.

use distributed_lock::{Backend, FencingStrength, MemoryLocker};
use examples::fence;
use libtest_mimic::Failed;
use lock_postgres::{PostgresLocker, PostgresScopedLocker, PostgresSharedSession};

use crate::bench::{PAGE, sql};

pub(crate) fn same_statements() -> Result<(), Failed> {
    let words =
        |text: &str| text.split_whitespace().map(|word| word.trim_end_matches(';').to_owned()).collect::<Vec<_>>();
    let sql = sql();
    for (page, example) in [(sql.accounts, fence::TABLE), (sql.claim, fence::CLAIM), (sql.write, fence::WRITE)] {
        assert_eq!(words(page).join(" ").trim(), words(example).join(" ").trim());
    }
    Ok(())
}

pub(crate) fn strengths() -> Result<(), Failed> {
    let code = include_str!("../../../crates/distributed-lock/src/capabilities.rs");
    let url = "postgres://app@localhost/x";
    let lockers: [(String, FencingStrength); 4] = [
        ("MemoryLocker".into(), MemoryLocker::new().capabilities().fencing),
        ("PostgresLocker".into(), PostgresLocker::from_url(url).unwrap().capabilities().fencing),
        ("PostgresSharedSession".into(), PostgresSharedSession::from_url(url).unwrap().capabilities().fencing),
        ("PostgresScopedLocker".into(), PostgresScopedLocker::from_url(url).unwrap().capabilities().fencing),
    ];
    for (locker, strength) in lockers {
        let strength = format!("{strength:?}");
        let lines: Vec<_> = code.lines().map(str::trim).collect();
        let at = lines.iter().position(|line| *line == format!("{strength},")).unwrap();
        let means = lines[at - 1].strip_prefix("/// ").unwrap();
        let row = PAGE.lines().find(|line| line.starts_with(&format!("| `{strength}` | {means} | ")));
        let row = row.unwrap_or_else(|| panic!("the page does not say: {strength}: {means}"));
        assert!(row.contains(&format!("`{locker}`")), "{locker} is {strength}");
    }
    Ok(())
}
