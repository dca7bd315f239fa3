//! Ad hoc.
use std::sync::Arc;
use distributed_lock::{Scoped};
use lock_testkit::{cancel::{self, Tally}, conformance::{self, Suite, Subject}, subjects::InMemory};
fn main() {
    let a = libtest_mimic::Arguments::from_args();
    let s: Arc<dyn Subject> = Arc::new(InMemory::new("real", &[Suite::Locker, Suite::Scoped]).in_real_time()
        .with_locker(|m| Some(Arc::new(m))).with_scoped(|m| Some(Arc::new(Scoped::new(m)))));
    let mut t = conformance::trials([Arc::clone(&s)]);
    let tally = Tally::default();
    t.extend(cancel::trials([s], &tally));
    let c = libtest_mimic::run(&a, t);
    println!("{tally}");
    c.exit();
}
