//! The conformance suite over the lockers of this crate, on a real server.

mod common {
    pub(crate) mod subjects;
}

use libtest_mimic::Arguments;
use lock_testkit::conformance;

fn main() {
    libtest_mimic::run(&Arguments::from_args(), conformance::trials(common::subjects::subjects())).exit();
}
