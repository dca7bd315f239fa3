//! The conformance suite over the in-memory locker, itself and through everything in this crate that wraps lockers.

use libtest_mimic::Arguments;
use lock_testkit::{conformance, subjects};

fn main() {
    libtest_mimic::run(&Arguments::from_args(), conformance::trials(subjects::in_memory())).exit();
}
