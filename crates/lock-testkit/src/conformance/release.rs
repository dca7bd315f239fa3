//! The holder gives the key up: by releasing or by dropping its guard, wherever that happens.

use std::{
    future::{Future, poll_fn},
    sync::{Arc, mpsc},
    task::Poll,
    thread,
};

use distributed_lock::{LockGuard, LockKey, Locker, LockerExt, Release};
use tokio::runtime::Builder;

use super::{
    bench::{Bench, LONG, PATIENCE},
    case::{Outcome, Stop, broken, cases, check},
};

cases! { Locker:
    release_of_a_held_key_says_released,
    released_key_is_free,
    key_can_be_taken_again_and_again,
    dropped_guard_frees_the_key,
    guard_dropped_without_a_runtime_frees_the_key,
    guard_dropped_in_another_runtime_frees_the_key,
    guard_dropped_while_its_runtime_is_not_polled_frees_the_key,
    dropped_release_frees_the_key,
}

async fn release_of_a_held_key_says_released(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    match bench.take(&locker, LONG).await?.release().await {
        Ok(Release::Released) => Ok(()),
        other => Err(broken!("the release of a held key says {other:?}")),
    }
}

async fn released_key_is_free(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let _how_it_ended = bench.take(&ours, LONG).await?.release().await?;
    // A release that was answered has happened: nothing is left to wait for.
    let _next = bench.take(&theirs, LONG).await?;
    Ok(())
}

async fn key_can_be_taken_again_and_again(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    for round in 0..20 {
        let guard = bench.take_soon(&locker, "in a later round").await?;
        check!(guard.ensure_valid().is_ok(), "the hold of round {round} was over from the start");
        match guard.release().await {
            Ok(Release::Released) => {}
            other => return Err(broken!("the release of round {round} says {other:?}")),
        }
    }
    Ok(())
}

async fn dropped_guard_frees_the_key(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    drop(bench.take(&ours, LONG).await?);
    bench.expect_free(&theirs, "after its guard was dropped").await?;
    Ok(())
}

async fn guard_dropped_without_a_runtime_frees_the_key(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let guard = bench.take(&ours, LONG).await?;
    let dropped = thread::spawn(move || drop(guard)).join();
    check!(dropped.is_ok(), "dropping a guard on a thread without a runtime panicked");
    bench.expect_free(&theirs, "after its guard was dropped without a runtime").await?;
    Ok(())
}

async fn guard_dropped_in_another_runtime_frees_the_key(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let guard = bench.take(&ours, LONG).await?;
    let dropped = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.map(|runtime| runtime.block_on(async move { drop(guard) }))
    });
    check!(matches!(dropped.join(), Ok(Ok(()))), "dropping a guard in another runtime panicked");
    bench.expect_free(&theirs, "after its guard was dropped in another runtime").await?;
    Ok(())
}

async fn guard_dropped_while_its_runtime_is_not_polled_frees_the_key(bench: &Bench) -> Outcome {
    let theirs = bench.locker().await?;
    let (store, key) = (Arc::clone(bench.store()), bench.key().clone());
    let (report, dropped) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let holder = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let guard = runtime.block_on(async {
            let locker = store.locker().await?.ok_or_else(|| Stop::Excluded("it has no session lockers".into()))?;
            take(&*locker, &key).await
        });
        let guard = guard.map_err(|stop| format!("{stop:?}"))?;
        drop(guard);
        // From here on nobody polls the runtime, which stays.
        let _ = report.send(());
        let _ = finished.recv();
        Ok::<_, String>(())
    });
    // On this thread, since paused time would run while a future waits for another thread.
    let heard = dropped.recv_timeout(PATIENCE);
    let free = match heard {
        Ok(()) => bench.expect_free(&theirs, "after its guard was dropped in a runtime that is not polled").await,
        Err(_) => Err(broken!("the key could not be taken and dropped on another thread")),
    };
    drop(finish);
    match holder.join() {
        Ok(Ok(())) => free,
        other => Err(broken!("the thread of the holder ended with {other:?}")),
    }
}

async fn take(locker: &dyn Locker, key: &LockKey) -> Outcome<LockGuard> {
    let guard = locker.try_acquire(key, LONG).await?.acquired();
    guard.ok_or_else(|| broken!("a free key was not given"))
}

async fn dropped_release_frees_the_key(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let guard = bench.take(&ours, LONG).await?;
    drop(guard.release());
    bench.expect_free(&theirs, "after a release was dropped before its first poll").await?;
    let mut release = Box::pin(bench.take_soon(&ours, "after another drop").await?.release());
    let _polled_once = poll_fn(|cx| Poll::Ready(release.as_mut().poll(cx).is_ready())).await;
    drop(release);
    bench.expect_free(&theirs, "after a release was dropped at its first await").await?;
    Ok(())
}
