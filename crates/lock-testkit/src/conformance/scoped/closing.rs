//! The end of a scoped locker, and what it says about itself.

use std::time::Duration;

use distributed_lock::{Attempt, ErrorKind, LossCause, ScopedLockerExt, Wait};
use tokio::time::sleep;

use super::{Occupied, VALUE, expect_contended, expect_free};
use crate::conformance::{
    bench::{Bench, PATIENCE},
    case::{Outcome, broken, cases, check},
    facts::prints,
};

cases! { Scoped:
    close_tells_the_body_and_its_value_comes_back_with_the_loss,
    close_ends_waiting_runs_as_closed,
    closed_scoped_locker_refuses_runs_and_pings,
    close_of_a_scoped_locker_can_be_repeated,
    close_of_a_scoped_locker_leaves_others_alone,
    ping_answers_while_a_body_runs,
    scoped_locker_prints_itself,
    every_scoped_locker_has_an_id_of_its_own_that_stays,
}

async fn close_tells_the_body_and_its_value_comes_back_with_the_loss(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    let (run, hold) = Occupied::of(bench, &ours).await?;
    ours.close().await?;
    let loss = bench.soon("a body is told that its locker was closed", hold.lost()).await?;
    check!(loss.cause() == LossCause::Closed, "the cause is {:?}, not Closed", loss.cause());
    expect_free(bench, &theirs, "after its locker was closed").await?;
    match run.leave(bench).await? {
        Err(failed)
            if failed.value == Some(VALUE) && matches!(failed.error.kind(), ErrorKind::Lost | ErrorKind::Closed) =>
        {
            Ok(())
        }
        other => Err(broken!("a body that ended after its locker was closed: {other:?}")),
    }
}

async fn close_ends_waiting_runs_as_closed(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    let (run, _hold) = Occupied::of(bench, &ours).await?;
    let mut waiting = Occupied::start(bench, &theirs, Wait::Forever);
    sleep(Duration::from_millis(100)).await;
    theirs.close().await?;
    match bench.soon("the end of a run that waits on a closed locker", &mut waiting.running).await? {
        Ok(Err(failed)) if failed.error.kind() == ErrorKind::Closed && failed.value.is_none() => {}
        other => return Err(broken!("a run that waits on a closed locker: {other:?}")),
    }
    match run.leave(bench).await? {
        Ok(Attempt::Acquired(VALUE)) => Ok(()),
        other => Err(broken!("a run while the locker of its waiter was closed: {other:?}")),
    }
}

async fn closed_scoped_locker_refuses_runs_and_pings(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    ours.close().await?;
    for wait in [Wait::Never, Wait::UpTo(PATIENCE / 2), Wait::Forever] {
        match Occupied::start(bench, &ours, wait).answer(bench).await? {
            Err(failed) if failed.error.kind() == ErrorKind::Closed && failed.value.is_none() => {}
            other => return Err(broken!("a run of a closed locker says {other:?}, {wait:?}")),
        }
    }
    match ours.ping().await {
        Err(error) if error.kind() == ErrorKind::Closed => {}
        other => return Err(broken!("a ping of a closed locker says {other:?}")),
    }
    expect_free(bench, &theirs, "after a closed locker refused it").await
}

async fn close_of_a_scoped_locker_can_be_repeated(bench: &Bench) -> Outcome {
    let locker = bench.scoped().await?;
    locker.close().await?;
    for _ in 0..2 {
        let again = bench.soon("a second close ends", locker.close()).await?;
        check!(again.is_ok(), "a second close says {again:?}");
    }
    Ok(())
}

async fn close_of_a_scoped_locker_leaves_others_alone(bench: &Bench) -> Outcome {
    let (ours, theirs, third) = (bench.scoped().await?, bench.scoped().await?, bench.scoped().await?);
    let (run, hold) = Occupied::of(bench, &theirs).await?;
    ours.close().await?;
    check!(hold.ensure_valid().is_ok(), "a body lost its key because another locker was closed");
    expect_contended(bench, &third, "after another locker was closed").await?;
    match run.leave(bench).await? {
        Ok(Attempt::Acquired(VALUE)) => {}
        other => return Err(broken!("a run while another locker was closed: {other:?}")),
    }
    match theirs.try_with_lock(bench.key(), async |_| ()).await {
        Ok(Attempt::Acquired(())) => Ok(()),
        other => Err(broken!("a run after another locker was closed: {other:?}")),
    }
}

async fn ping_answers_while_a_body_runs(bench: &Bench) -> Outcome {
    let locker = bench.scoped().await?;
    let (_run, _hold) = Occupied::of(bench, &locker).await?;
    let ping = bench.soon("a ping while a body runs", locker.ping()).await?;
    check!(ping.is_ok(), "a ping while a body runs says {ping:?}");
    Ok(())
}

async fn scoped_locker_prints_itself(bench: &Bench) -> Outcome {
    let locker = bench.scoped().await?;
    prints(&*locker)?;
    let shown = locker.guarantees().to_string();
    check!(!shown.contains(char::is_control), "the guarantees print control characters: {shown:?}");
    Ok(())
}

async fn every_scoped_locker_has_an_id_of_its_own_that_stays(bench: &Bench) -> Outcome {
    let (ours, theirs) = (bench.scoped().await?, bench.scoped().await?);
    check!(ours.id() != theirs.id(), "two lockers have the same id");
    check!(ours.id() == ours.id(), "the id of a locker changes");
    Ok(())
}
