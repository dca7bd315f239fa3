//! Who leads and who stands by, as the server sees it.

use lock_testkit::observe::AdvisoryLock;

/// Those of one key, by their backends.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Line {
    /// Who holds it.
    pub holders: Vec<i32>,
    /// Who will know at once when it is free: waiters in the queue of the key, and those who wait for the end of the holder's session,
    /// which shows in the queue of its beacon. The latter may be one for several keys.
    pub standbys: Vec<i32>,
}

impl Line {
    /// Of all advisory locks of a database, those that concern a key.
    #[must_use]
    pub fn of(locks: &[AdvisoryLock], is_the_key: impl Fn(i64) -> bool) -> Self {
        let of_key = |lock: &&AdvisoryLock| lock.key.is_some_and(&is_the_key);
        let holders = pids(locks.iter().filter(of_key).filter(|lock| lock.granted));
        let of_holder = |lock: &&AdvisoryLock| lock.pid.is_some_and(|pid| holders.contains(&pid));
        let beacons: Vec<_> = locks.iter().filter(of_holder).filter(|lock| lock.granted).filter_map(pair).collect();
        let waits = |lock: &&AdvisoryLock| of_key(lock) || pair(lock).is_some_and(|pair| beacons.contains(&pair));
        let standbys = pids(locks.iter().filter(|lock| !lock.granted).filter(waits));
        Self { holders, standbys }
    }

    /// The only holder, if so many stand by.
    #[must_use]
    pub fn led_before(&self, standbys: usize) -> Option<i32> {
        match self.holders[..] {
            [holder] if self.standbys.len() == standbys => Some(holder),
            _ => None,
        }
    }
}

fn pids<'a>(locks: impl Iterator<Item = &'a AdvisoryLock>) -> Vec<i32> {
    locks.filter_map(|lock| lock.pid).collect()
}

/// A key of two integers, as a beacon is.
fn pair(lock: &AdvisoryLock) -> Option<(i64, i64)> {
    lock.first.zip(lock.second)
}
