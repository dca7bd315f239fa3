//! One CPU for this thread, and for what it starts.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Failure;

/// Does it on the last CPU that this thread may use, and gives back the others. Threads and processes that it starts stay there.
pub(super) fn on_one_cpu<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let allowed = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(last.unwrap_or_default());
    sched_setaffinity(None, &one)?;
    let done = work();
    sched_setaffinity(None, &allowed)?;
    done
}
