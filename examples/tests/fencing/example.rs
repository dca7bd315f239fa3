//! The example, as a user runs it.

use std::process::Command;

use libtest_mimic::Failed;

/// No programs of PostgreSQL there.
pub(crate) const IN_MEMORY: Option<&str> = Some("");

/// Runs the example where it looks for PostgreSQL in this folder, or where it would by itself.
fn fenced(programs: Option<&str>, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fenced"));
    command.args(arguments).env_remove("DATABASE_URL").envs(programs.map(|folder| ("LOCK_TEST_PG_BIN", folder)));
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

pub(crate) fn good(programs: Option<&str>) -> Result<(), Failed> {
    let (code, printed, faults) = fenced(programs, &[]);
    assert_eq!((code, faults.as_str()), (Some(0), ""), "{printed}");
    assert!(printed.contains("refused by the service: 412 token "), "{printed}");
    assert_eq!(printed.contains("LEFT OUT: the database part"), programs.is_some(), "{printed}");
    assert_eq!(printed.contains("refused by the database: 0 rows updated: "), programs.is_none(), "{printed}");
    Ok(())
}

pub(crate) fn broken(programs: Option<&str>, places: &[&str]) -> Result<(), Failed> {
    let (code, printed, faults) = fenced(programs, &["--broken"]);
    assert_eq!(code, Some(1), "{printed}{faults}");
    for place in places {
        assert!(faults.contains(&format!("{place} let a stale write through")), "{faults}");
        assert!(faults.contains(&format!("{place} has 110 instead of 140")), "{faults}");
    }
    Ok(())
}
