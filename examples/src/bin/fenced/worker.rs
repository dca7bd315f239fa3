//! What a worker does: it reads a balance, thinks, and writes it back with its deposit. In two steps, hence under a lock.

use std::sync::Arc;
use std::time::Duration;

use distributed_lock::{AcquireOptions, Fencing, LockKey, Locker, Ttl, Wait};

use crate::Failure;
use crate::place::{Answer, Place};

/// Of the worker that is frozen: the shorter, the sooner another gets in.
pub(crate) const SHORT: Duration = Duration::from_secs(3);
/// Of those that nothing happens to.
const LONG: Duration = Duration::from_secs(30);

/// What each worker brings.
pub(crate) const DEPOSITS: [i64; 2] = [10, 30];

/// What a worker says begins with one of these.
pub(crate) const HOLDS: &str = "holds token ";
pub(crate) const THINKS: &str = "the lock is valid, so it goes on";
pub(crate) const WROTE: &str = "wrote ";
pub(crate) const REFUSED: &str = "refused by ";
pub(crate) const AGAIN: &str = "begins anew";

/// It freezes while it thinks. Whoever refuses it then has its deposit in a second round, as of a worker that retries.
pub(crate) async fn first(
    locker: Arc<dyn Locker>,
    account: &str,
    places: &[Place],
    thinking: impl Future<Output = ()>,
    say: impl Fn(String),
) -> Result<(), Failure> {
    let all: Vec<_> = places.iter().collect();
    let refused = deposit(&*locker, account, &all, (DEPOSITS[0], SHORT), thinking, &say).await?;
    if !refused.is_empty() {
        say(AGAIN.into());
        let refused = deposit(&*locker, account, &refused, (DEPOSITS[0], LONG), async {}, &say).await?;
        if !refused.is_empty() {
            return Err("refused with a new token as well".into());
        }
    }
    Ok(locker.close().await?)
}

/// It comes while the first one is frozen, and waits for the lock.
pub(crate) async fn second(
    locker: Arc<dyn Locker>,
    account: &str,
    places: &[Place],
    say: impl Fn(String),
) -> Result<(), Failure> {
    let all: Vec<_> = places.iter().collect();
    deposit(&*locker, account, &all, (DEPOSITS[1], LONG), async {}, &say).await?;
    Ok(locker.close().await?)
}

/// Returns the places that refused.
async fn deposit<'p>(
    locker: &dyn Locker,
    account: &str,
    places: &[&'p Place],
    (amount, ttl): (i64, Duration),
    thinking: impl Future<Output = ()>,
    say: &impl Fn(String),
) -> Result<Vec<&'p Place>, Failure> {
    let key = LockKey::new(format!("accounts/{account}"))?;
    let options = AcquireOptions::new(Ttl::new(ttl)?).with_wait(Wait::Forever).with_fencing(Fencing::On);
    let guard = locker.acquire_opts(&key, &options).await?.into_result()?;
    let token = guard.fencing_token().ok_or("a lock with fencing on has a token")?;
    say(format!("{HOLDS}{token}"));

    // The token goes along with the read. A place that checks refuses older holders from here on, so that what is read stays true.
    let mut answers = Vec::new();
    for place in places {
        answers.push(place.read(account, token).await?);
    }

    // The last look before the side effect, as it should be. It is right, and no help against what comes after it.
    guard.ensure_valid()?;
    say(THINKS.into());
    thinking.await;

    let mut refused = Vec::new();
    for (place, read) in places.iter().zip(answers) {
        let written = match read {
            Answer::Balance(balance) => place.write(account, balance + amount, token).await?,
            Answer::Refused(why) => Answer::Refused(why),
        };
        match written {
            Answer::Balance(balance) => say(format!("{WROTE}{balance} to {place}")),
            Answer::Refused(why) => {
                say(format!("{REFUSED}{place}: {why}"));
                refused.push(*place);
            }
        }
    }
    if let Err(error) = guard.ensure_valid() {
        say(format!("asked only now, the lock says: {error}"));
    }
    // A lock that is lost is no longer its business.
    drop(guard.release().await);
    Ok(refused)
}
