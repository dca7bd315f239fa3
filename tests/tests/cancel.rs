//! The cancel sweep: each public future of the contract, dropped at every point, leaves nothing behind.

use libtest_mimic::Arguments;
use lock_testkit::{
    cancel::{self, Tally},
    subjects,
};

fn main() {
    let arguments = Arguments::from_args();
    let tally = Tally::default();
    let conclusion = libtest_mimic::run(&arguments, cancel::trials(subjects::in_memory(), &tally));
    if !arguments.list {
        println!("{tally}");
    }
    conclusion.exit();
}
