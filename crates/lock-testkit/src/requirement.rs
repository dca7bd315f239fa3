//! What the environment asks of a test run, and tests that need something the machine may not have.

use std::env;
use std::fmt::Display;

use libtest_mimic::{Completion, Failed, Trial};

/// Whether a missing server fails a test instead of leaving it ignored: `LOCK_TEST_REQUIRE=1`, which CI sets.
#[must_use]
pub fn is_required() -> bool {
    requires(env::var("LOCK_TEST_REQUIRE").ok().as_deref())
}

/// How often a test repeats: the number in `LOCK_TEST_ROUNDS`, or `default`.
///
/// # Panics
/// If the variable is not a whole number above zero, because a typing error must not weaken a run.
#[must_use]
pub fn rounds(default: u64) -> u64 {
    rounds_from(env::var("LOCK_TEST_ROUNDS").ok().as_deref(), default)
}

/// A test that runs with what `requirement` gives. If that fails the test shows as ignored with the reason, or as failed
/// where [`is_required`].
///
/// `requirement` is called when the test runs, not when it is listed.
pub fn trial<R, E: Display>(
    name: impl Into<String>,
    requirement: impl FnOnce() -> Result<R, E> + Send + 'static,
    body: impl FnOnce(R) -> Result<(), Failed> + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || match requirement() {
        Ok(given) => body(given).map(|()| Completion::Completed),
        Err(missing) => without(&missing, is_required()),
    })
}

fn without(missing: &impl Display, required: bool) -> Result<Completion, Failed> {
    if required {
        Err(format!("required by LOCK_TEST_REQUIRE: {missing}").into())
    } else {
        Ok(Completion::ignored_with(missing))
    }
}

fn requires(value: Option<&str>) -> bool {
    value == Some("1")
}

fn rounds_from(value: Option<&str>, default: u64) -> u64 {
    let Some(value) = value else { return default };
    match value.parse() {
        Ok(rounds) if rounds > 0 => rounds,
        _ => panic!("LOCK_TEST_ROUNDS={value:?} is not a whole number above zero"),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn only_one_requires() {
        assert!(requires(Some("1")));
        assert!(!requires(Some("0")) && !requires(Some("")) && !requires(None));
    }

    #[test]
    fn what_is_missing_ignores_a_test_and_fails_it_where_required() {
        let ignored = without(&"no server", false);
        assert!(matches!(ignored, Ok(Completion::Ignored { reason: Some(reason) }) if reason == "no server"));
        let failed = without(&"no server", true).map(|_| ()).expect_err("it is required");
        assert_eq!(failed.message(), Some("required by LOCK_TEST_REQUIRE: no server"));
    }

    #[test]
    fn rounds_come_from_the_variable_and_a_bad_one_panics() {
        assert_eq!(rounds_from(None, 7), 7);
        assert_eq!(rounds_from(Some("9"), 7), 9);
        for bad in ["", "0", "-1", "many"] {
            assert!(catch_unwind(|| rounds_from(Some(bad), 7)).is_err(), "{bad:?}");
        }
    }
}
