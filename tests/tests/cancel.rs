//! The cancel sweep: each public future of the contract, dropped at every point, leaves nothing behind.

#[path = "../../crates/lock-postgres/tests/common/subjects.rs"]
mod postgres;

use libtest_mimic::Arguments;
use lock_testkit::{
    cancel::{self, Tally},
    subjects,
};

fn main() {
    let arguments = Arguments::from_args();
    let tally = Tally::default();
    let conclusion = libtest_mimic::run(
        &arguments,
        cancel::trials(subjects::in_memory().into_iter().chain(postgres::subjects()), &tally),
    );
    if !arguments.list {
        println!("{tally}");
    }
    conclusion.exit();
}
