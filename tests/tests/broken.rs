//! The conformance suite is two-sided: each of its cases finds a locker that is broken for it.

use libtest_mimic::Arguments;
use lock_testkit::broken::{self, Findings};

fn main() {
    let arguments = Arguments::from_args();
    let findings = Findings::default();
    let conclusion = libtest_mimic::run(&arguments, broken::trials(&findings));
    if !arguments.list {
        println!("{findings}");
    }
    conclusion.exit();
}
