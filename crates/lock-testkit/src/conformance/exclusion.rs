//! One holder at a time, and contention is an answer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use distributed_lock::{Attempt, Contention, LockGuard, LockKey, Locker, LockerExt, Result, Wait};

use super::{
    bench::{Bench, LONG},
    case::{Outcome, broken, cases, check},
};

cases! { Locker:
    held_key_is_refused_to_another_locker,
    key_held_by_this_very_locker_is_refused_as_held_here,
    contention_is_an_answer_and_never_an_error,
    distinct_keys_are_independent,
    odd_names_are_distinct_keys,
    longest_name_is_an_ordinary_key,
    crowd_of_tries_has_one_winner_and_every_loser_is_contended,
    crowd_of_waiters_holds_one_at_a_time_and_everybody_gets_a_turn,
}

async fn held_key_is_refused_to_another_locker(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let guard = bench.take(&ours, LONG).await?;
    let why = bench.expect_contended(&theirs, "while the first held it").await?;
    check!(why == Contention::Held, "the reason is {why:?}, not Held");
    check!(guard.ensure_valid().is_ok(), "the holder lost it by somebody else's try");
    Ok(())
}

async fn key_held_by_this_very_locker_is_refused_as_held_here(bench: &Bench) -> Outcome {
    let ours = bench.locker().await?;
    let guard = bench.take(&ours, LONG).await?;
    let why = bench.expect_contended(&ours, "of the same locker").await?;
    check!(why == Contention::HeldHere, "the reason is {why:?}, not HeldHere");
    check!(guard.ensure_valid().is_ok(), "the holder lost it by a second try of its own locker");
    Ok(())
}

async fn contention_is_an_answer_and_never_an_error(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let _guard = bench.take(&ours, LONG).await?;
    for wait in [Wait::Never, Wait::UpTo(Duration::ZERO), Wait::UpTo(Duration::from_millis(50))] {
        for locker in [&ours, &theirs] {
            match bench.waiter(locker, wait)?.answer(bench).await? {
                Ok(Attempt::Contended(_)) => {}
                Ok(Attempt::Acquired(_)) => return Err(broken!("a held key was given away, {wait:?}")),
                Err(error) => return Err(broken!("contention came as an error, {wait:?}: {error:?}")),
            }
        }
    }
    Ok(())
}

async fn distinct_keys_are_independent(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let _guard = bench.take(&locker, LONG).await?;
    let other = locker.try_acquire(bench.key_named("-other"), LONG).await?;
    check!(!other.is_contended(), "a key was refused because another was held");
    Ok(())
}

async fn odd_names_are_distinct_keys(bench: &Bench) -> Outcome {
    const PAIRS: [(&str, &str); 12] = [
        ("a", "A"),
        ("a", "a "),
        ("a", " a"),
        ("a", "a\n"),
        ("a", "a\0"),
        ("a\0", "a\0b"),
        ("a", "\u{1b}[31ma"),
        ("\u{e9}", "e\u{301}"),
        ("'", "''"),
        ("a", "\"a\""),
        ("%", "%%"),
        ("'); drop table locks; --", "a/../b"),
    ];
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    for (one, other) in PAIRS {
        let guard = given(one, ours.try_acquire(bench.key_named(one), LONG).await)?;
        let second = given(other, theirs.try_acquire(bench.key_named(other), LONG).await)?;
        let again = theirs.try_acquire(bench.key_named(one), LONG).await?;
        check!(again.is_contended(), "{one:?} does not exclude");
        bench.freed(&theirs, &bench.key_named(one), guard).await?;
        bench.freed(&ours, &bench.key_named(other), second).await?;
    }
    Ok(())
}

fn given(name: &str, answer: Result<Attempt>) -> Outcome<LockGuard> {
    match answer {
        Ok(Attempt::Acquired(guard)) => Ok(guard),
        refused => Err(broken!("the name {name:?} was not given: {refused:?}")),
    }
}

async fn longest_name_is_an_ordinary_key(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let longest = |last: &str| {
        let room = LockKey::MAX_LEN - bench.key().as_str().len() - 1;
        bench.key_named(&format!("{}{last}", "x".repeat(room)))
    };
    let _guard = match ours.try_acquire(longest("a"), LONG).await {
        Ok(Attempt::Acquired(guard)) => guard,
        refused => return Err(broken!("a name of the greatest length was not given: {refused:?}")),
    };
    check!(theirs.try_acquire(longest("a"), LONG).await?.is_contended(), "a long name did not exclude");
    check!(!theirs.try_acquire(longest("b"), LONG).await?.is_contended(), "a long name was cut before its last byte");
    Ok(())
}

async fn crowd_of_tries_has_one_winner_and_every_loser_is_contended(bench: &Bench) -> Outcome {
    let lockers = [bench.locker().await?, bench.locker().await?];
    let tries = (0..8).map(|n| bench.waiter(&lockers[n % 2], Wait::Never)).collect::<Outcome<Vec<_>>>()?;
    let mut winners = Vec::new();
    for tried in tries {
        match tried.answer(bench).await? {
            Ok(Attempt::Acquired(guard)) => winners.push(guard),
            Ok(Attempt::Contended(_)) => {}
            Err(error) => return Err(broken!("a loser got an error: {error:?}")),
        }
    }
    check!(winners.len() == 1, "{} of 8 won", winners.len());
    Ok(())
}

async fn crowd_of_waiters_holds_one_at_a_time_and_everybody_gets_a_turn(bench: &Bench) -> Outcome {
    const CROWD: usize = 8;
    let lockers = [bench.locker().await?, bench.locker().await?];
    let holding = Arc::new(AtomicUsize::new(0));
    let crowd: Vec<_> = (0..CROWD)
        .map(|n| {
            let (locker, key, holding) = (Arc::clone(&lockers[n % 2]), bench.key().clone(), Arc::clone(&holding));
            tokio::spawn(async move { turn(&locker, &key, &holding).await })
        })
        .collect();
    for one in crowd {
        let most = bench.soon("a turn for everybody in the crowd", one).await?;
        let most = most.map_err(|failed| broken!("a turn panicked: {failed}"))??;
        check!(most == 1, "{most} held the key at once");
    }
    Ok(())
}

/// How many held the key during this turn.
async fn turn(locker: &Arc<dyn Locker>, key: &LockKey, holding: &AtomicUsize) -> Result<usize> {
    let guard = locker.acquire(key, LONG).await?;
    let mut most = holding.fetch_add(1, Ordering::SeqCst) + 1;
    for _ in 0..3 {
        tokio::task::yield_now().await;
        most = most.max(holding.load(Ordering::SeqCst));
    }
    holding.fetch_sub(1, Ordering::SeqCst);
    let _how_it_ended = guard.release().await?;
    Ok(most)
}
