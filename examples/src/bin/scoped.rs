//! A service runs its critical sections under a lock that it was given: `Arc<dyn ScopedLocker>`.
//!
//! ```sh
//! cargo run -p examples --bin scoped
//! DATABASE_URL=postgres://user@localhost/app cargo run -p examples --bin scoped
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distributed_lock::{Attempt, Hold, ScopedLocker, ScopedLockerExt};
use tokio::task::JoinSet;

const KEY: &str = "accounts/42";
const TASKS: u64 = 5;
const ROUNDS: u64 = 20;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    // The only line that knows the backend.
    let locks: Arc<dyn ScopedLocker> = examples::scoped_locker()?;
    locks.ping().await?;
    println!("locker={locks}");

    // 1. Several tasks change one balance in two steps. Without the lock, some of the changes would be overwritten.
    let account = Arc::new(Account::default());
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (locks, account) = (Arc::clone(&locks), Arc::clone(&account));
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                // Waits its turn. The outer `?` is about the lock, the inner one about the work.
                locks.with_lock(KEY, async |hold| account.deposit(&hold, 1).await).await??;
            }
            Ok::<_, distributed_lock::Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    println!("expected={} balance={}", TASKS * ROUNDS, account.balance());

    // 2. Somebody else has it: an answer, not an error.
    let second = locks.with_lock(KEY, async |_hold| locks.try_with_lock(KEY, async |_| ()).await).await??;
    match &second {
        Attempt::Acquired(()) => println!("second taker got the lock, which must not happen"),
        Attempt::Contended(why) => println!("second taker: {why}"),
    }

    // 3. A bounded wait: the lock is free, so it is ours well within the limit.
    let third = locks.with_lock_within(KEY, Duration::from_secs(5), async |_| account.balance()).await?;
    println!("third taker: {third:?}");

    locks.close().await?;
    let right = account.balance() == TASKS * ROUNDS && second.is_contended() && !third.is_contended();
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Stands for something outside: it is read, then written, and others can come in between.
#[derive(Default)]
struct Account(AtomicU64);

impl Account {
    async fn deposit(&self, hold: &Hold, amount: u64) -> distributed_lock::Result<()> {
        let before = self.balance();
        tokio::task::yield_now().await;
        // Cheap and local: ask before each side effect, since a lock can be lost at any time.
        hold.ensure_valid()?;
        self.0.store(before + amount, Ordering::Relaxed);
        Ok(())
    }

    fn balance(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
