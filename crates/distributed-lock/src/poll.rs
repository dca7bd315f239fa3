use std::{
    future::Future,
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use crate::{Attempt, Contention, Result, Wait, answered::store_answered, telemetry::call::tell_waiting};

/// For stores that cannot queue: tries, then tries again after jittered, growing pauses (100 ms to 1 s) within the budget.
///
/// Cancel safe if one try is. An error ends it: nothing polls a broken store.
///
/// # Errors
/// What one try failed with.
///
/// ```
/// use std::time::Duration;
/// use distributed_lock::{Attempt, Contention, Wait, backend::poll_until};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut tries = 0;
/// let waited = poll_until(Wait::UpTo(Duration::from_secs(2)), || {
///     tries += 1;
///     async { Ok(Attempt::Contended(Contention::Held)) }
/// });
/// assert!(matches!(waited.await?, Attempt::Contended(Contention::WaitElapsed)));
/// assert!(tries > 2);
/// # Ok(()) }
/// ```
pub async fn poll_until<Try>(wait: Wait, mut once: impl FnMut() -> Try + Send) -> Result<Attempt>
where
    Try: Future<Output = Result<Attempt>> + Send,
{
    let budget = wait.budget();
    let started = tokio::time::Instant::now();
    let mut pause = Duration::from_millis(100);
    loop {
        let tried = once().await?;
        // Without a connection nobody was asked.
        if !matches!(tried, Attempt::Contended(Contention::NoConnection)) {
            store_answered();
        }
        let why = match tried {
            Attempt::Contended(why) => why,
            acquired => return Ok(acquired),
        };
        let left = budget.map(|budget| budget.saturating_sub(started.elapsed()));
        match left {
            _ if wait.is_try() => return Ok(Attempt::Contended(why)),
            Some(Duration::ZERO) => return Ok(Attempt::Contended(Contention::WaitElapsed)),
            _ => tell_waiting(&why),
        }
        let jittered = jitter(pause);
        tokio::time::sleep(left.map_or(jittered, |left| left.min(jittered))).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

/// Between half of it and all of it.
pub(crate) fn jitter(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) as u32;
    pause / 2 + (pause / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}
