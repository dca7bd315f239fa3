//! Work under a guard: `guard.run`.

use std::{
    future::pending,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distributed_lock::{ErrorKind, LockerExt, LossCause, Ran};
use tokio::time::{Instant, sleep};

use super::{
    bench::{Bench, LONG},
    case::{Outcome, broken, cases, check},
    ttl::whole,
};

cases! { Locker:
    run_renews_past_the_ttl_and_keeps_others_out,
    run_refuses_a_grace_that_does_not_fit_and_does_not_start_the_work,
    run_tells_the_work_of_a_loss_and_gives_its_value_back,
    run_drops_work_that_outlasts_its_grace_after_a_loss,
    run_on_a_closed_locker_tells_the_work,
}

async fn run_renews_past_the_ttl_and_keeps_others_out(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.locker().await?, bench.locker().await?);
    let ttl = bench.medium(&*ours);
    let mut guard = bench.take(&ours, ttl).await?;
    let hold = guard.hold();
    let ran = guard.run(Duration::ZERO, async {
        let started = Instant::now();
        while started.elapsed() < ttl * 3 / 2 {
            let tried = theirs.try_acquire(bench.key(), LONG).await?;
            check!(tried.is_contended(), "the key was given away under work, {:?} in", started.elapsed());
            check!(hold.ensure_valid().is_ok(), "the hold ended under work, {:?} in", started.elapsed());
            sleep(ttl / 8).await;
        }
        Ok(())
    });
    match ran.await? {
        Ran::Done(found) => found,
        lost => Err(broken!("the hold was lost under work although nothing failed: {lost:?}")),
    }
}

async fn run_refuses_a_grace_that_does_not_fit_and_does_not_start_the_work(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let ttl = bench.medium(&*locker);
    let mut guard = bench.take(&locker, ttl).await?;
    let started = AtomicBool::new(false);
    match guard.run(ttl, async { started.store(true, Ordering::SeqCst) }).await {
        Err(error) => {
            let text = whole(&error);
            check!(error.kind() == ErrorKind::InvalidInput, "the kind is {:?}, not InvalidInput", error.kind());
            check!(text.contains(&format!("{ttl:?}")), "the refusal does not name the value {ttl:?}: {text}");
        }
        ran => return Err(broken!("a grace as long as the TTL was taken: {ran:?}")),
    }
    check!(!started.load(Ordering::SeqCst), "the work was started all the same");
    check!(guard.ensure_valid().is_ok(), "a refused run ended the hold");
    Ok(())
}

async fn run_tells_the_work_of_a_loss_and_gives_its_value_back(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let mut guard = bench.take(&locker, LONG).await?;
    let hold = guard.hold();
    let ran = guard.run(LONG / 4, async {
        bench.lose().await?;
        bench.soon("work under a lost hold is told", hold.cancelled()).await?;
        check!(hold.ensure_valid().is_err(), "the hold was valid after its loss was told");
        Ok(7)
    });
    match ran.await? {
        Ran::Lost { value: Some(told), loss, .. } => {
            let value = told?;
            check!(value == 7, "the value came back as {value}");
            check!(loss.cause() != LossCause::Released, "the cause of the loss is {:?}", loss.cause());
            Ok(())
        }
        Ran::Done(Err(stop)) => Err(stop),
        other => Err(broken!("work that ended within its grace after a loss: {other:?}")),
    }
}

async fn run_drops_work_that_outlasts_its_grace_after_a_loss(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let mut guard = bench.take(&locker, LONG).await?;
    let dropped = Arc::new(AtomicBool::new(false));
    let mark = SetOnDrop(Arc::clone(&dropped));
    let grace = Duration::from_millis(200);
    let excluded = Mutex::new(None);
    let ran = guard.run(grace, async {
        let _mark = mark;
        match bench.lose().await {
            Ok(()) => pending().await,
            Err(stop) => *excluded.lock().unwrap_or_else(PoisonError::into_inner) = Some(stop),
        }
    });
    let ran = bench.soon("work that outlasts its grace is dropped", ran).await??;
    if let Some(stop) = excluded.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(stop);
    }
    match ran {
        Ran::Lost { value: None, overrun, .. } => {
            let limit = bench.within(locker.guarantees().detection).saturating_add(grace);
            check!(overrun <= limit, "work ran on for {overrun:?} with a grace of {grace:?}");
        }
        other => return Err(broken!("work that outlasts its grace after a loss: {other:?}")),
    }
    check!(dropped.load(Ordering::SeqCst), "the work was not dropped");
    Ok(())
}

async fn run_on_a_closed_locker_tells_the_work(bench: &Bench) -> Outcome {
    let locker = bench.locker().await?;
    let mut guard = bench.take(&locker, LONG).await?;
    let hold = guard.hold();
    let ran = guard.run(LONG / 4, async {
        locker.close().await?;
        bench.soon("work under a closed locker is told", hold.cancelled()).await
    });
    match ran.await? {
        Ran::Lost { value: Some(told), loss, .. } => {
            told?;
            check!(loss.cause() == LossCause::Closed, "the cause is {:?}, not Closed", loss.cause());
            Ok(())
        }
        Ran::Lost { value: None, .. } => Err(broken!("work under a closed locker got no grace")),
        Ran::Done(Err(stop)) => Err(stop),
        Ran::Done(Ok(())) => Err(broken!("work under a closed locker ended as if it had held to the end")),
    }
}

/// Says when the future that owns it is gone.
#[derive(Debug)]
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
