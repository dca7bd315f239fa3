//! One key: who holds it, who waits for it, and the proof that nothing is left of them.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use lock_testkit::Observer;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_postgres::Client;

use crate::{
    BOUND, Counts, Failure, WAIT, WAITERS,
    sql::{TRY, UNLOCK, ask},
    waiter::Waiter,
};

/// One key, its holder, and those who wait for it.
pub(crate) struct Lane {
    pub(crate) key: (&'static str, i64),
    pub(crate) holder: Client,
    pub(crate) counts: Arc<Counts>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) waiter: Arc<Waiter>,
}

impl Lane {
    pub(crate) async fn run(&self, waits: u64) -> Result<(), Failure> {
        let mut lead = WAIT_MICROS;
        loop {
            // A foreign try, and once the waits of the last round are over also the proof that nothing is left of them.
            if !self.take().await? {
                self.counts.ghosts.fetch_add(1, Ordering::Relaxed);
                self.evict().await?;
                continue;
            }
            let first = self.counts.started.fetch_add(WAITERS, Ordering::Relaxed);
            let waiters = waits.saturating_sub(first).min(WAITERS);
            if waiters == 0 {
                return self.free().await;
            }
            let acquired = self.round(waiters, lead).await?;
            // Steered to where half of the waits are granted.
            lead += if acquired * 2 > waiters { STEP_MICROS } else { -STEP_MICROS };
        }
    }

    /// How many of the waits were granted when they begin so many microseconds before the holder lets go. Below zero is
    /// after it, for a machine that takes longer to let go than a wait lasts.
    async fn round(&self, waiters: u64, lead: i64) -> Result<u64, Failure> {
        let now = Instant::now();
        let after = |micros: i64| now + Duration::from_micros(u64::try_from(micros).unwrap_or_default());
        let (begin, release) = (after(-lead), after(lead));
        let mut waits = JoinSet::new();
        for _ in 0..waiters {
            let (waiter, counts, key) = (Arc::clone(&self.waiter), Arc::clone(&self.counts), self.key);
            waits.spawn(async move {
                pause_until(begin).await;
                waiter.wait(key, &counts).await
            });
        }
        pause_until(release).await;
        self.free().await?;
        let mut acquired = 0;
        while let Some(granted) = waits.join_next().await {
            acquired += u64::from(granted??);
        }
        self.counts.acquired.fetch_add(acquired, Ordering::Relaxed);
        self.counts.timed_out.fetch_add(waiters - acquired, Ordering::Relaxed);
        Ok(acquired)
    }

    /// Takes the key; false if it is still not free after the bound. Every try is heard out, since it may be granted.
    async fn take(&self) -> Result<bool, Failure> {
        let end = Instant::now() + BOUND;
        loop {
            let last = Instant::now() >= end;
            let taken: bool = ask(&self.holder, TRY, self.key.1).await?.get(0);
            if taken || last {
                return Ok(taken);
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    async fn free(&self) -> Result<(), Failure> {
        let held: bool = ask(&self.holder, UNLOCK, self.key.1).await?.get(0);
        if held { Ok(()) } else { Err("the holder did not hold its key".into()) }
    }

    /// Ends the sessions that own the key, so that the next round can run.
    async fn evict(&self) -> Result<(), Failure> {
        for lock in self.observer.holders(self.key.1).await? {
            if let Some(pid) = lock.pid {
                self.observer.terminate(pid).await?;
            }
        }
        Ok(())
    }
}

/// To the fraction of a millisecond that the race is about; the runtime's timer knows whole ones only.
async fn pause_until(end: Instant) {
    let Some(pause) = end.checked_duration_since(Instant::now()) else { return };
    #[expect(clippy::disallowed_methods, reason = "the delay is the scenario")]
    let paused = tokio::task::spawn_blocking(move || std::thread::sleep(pause));
    // A sleep cannot panic.
    let _ = paused.await;
}

const STEP_MICROS: i64 = 200;
const WAIT_MICROS: i64 = WAIT.as_micros() as i64;
