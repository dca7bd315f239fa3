//! The cancel sweep: every public future of the contract, dropped at every point at which it can be.
//!
//! A sweep starts an operation again and again. The n-th time its future is dropped after its n-th poll, and once more when it
//! is woken after its n-th poll, with whatever woke it unread. After each drop the key must become free for a fresh locker
//! within [`Guarantees::cleanup`](distributed_lock::Guarantees::cleanup), and nothing else may stay in the store or in the
//! runtime. The sweep ends when the operation has finished twice in a row.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use distributed_lock::backend::BoxFuture;
use libtest_mimic::Trial;
use tokio::{runtime::Handle, time::sleep};

use crate::{
    conformance::{
        Limits, Store, Subject, Time, Verdict,
        bench::Bench,
        block_on,
        case::{Outcome, Stop, broken, check},
        judged, report,
        scoped::expect_free,
    },
    wait::wait_until,
};

mod operations;

use operations::Started;

pub use operations::{Operation, operations};

/// What the sweeps of a run found, to be printed after it.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<Mutex<Vec<Swept>>>);

#[derive(Clone, Debug)]
struct Swept {
    name: String,
    polls: usize,
    leaks: usize,
}

/// One trial for each subject and each operation its suites have, named `locker::operation`.
#[must_use]
pub fn trials(subjects: impl IntoIterator<Item = Arc<dyn Subject>>, tally: &Tally) -> Vec<Trial> {
    let mut trials = Vec::new();
    for subject in subjects {
        for operation in operations().iter().filter(|operation| subject.suites().contains(&operation.suite())) {
            let name = format!("{}::{}", subject.name(), operation.name());
            let (subject, tally) = (Arc::clone(&subject), tally.clone());
            trials.push(Trial::ignorable_test(name.clone(), move || {
                let (verdict, polls) = sweep(&subject, operation);
                let leaks = usize::from(matches!(verdict, Verdict::Broken(_) | Verdict::Hung(_)));
                if !matches!(verdict, Verdict::Excluded(_) | Verdict::Missing(_)) {
                    tally.push(Swept { name, polls, leaks });
                }
                report(verdict)
            }));
        }
    }
    trials
}

/// Sweeps one operation of a subject; also says at how many points its future was dropped.
#[must_use]
pub fn sweep(subject: &Arc<dyn Subject>, operation: &'static Operation) -> (Verdict, usize) {
    let polls = Arc::new(Mutex::new(0));
    let (opened, counted) = (Arc::clone(subject), Arc::clone(&polls));
    // A sweep is as long as many cases.
    let limits = Limits { real: Duration::from_secs(240), stuck: Duration::from_secs(300), ..Limits::default() };
    let verdict = block_on(subject.time(), limits, move || async move {
        let store = opened.open().await.map_err(|missing| Verdict::Missing(missing.to_string()))?;
        let sweep = Sweep { subject: &*opened, store, operation, polls: &counted };
        judged(sweep.run().await)
    });
    let polls = *polls.lock().unwrap_or_else(PoisonError::into_inner);
    (verdict, polls)
}

struct Sweep<'a> {
    subject: &'a dyn Subject,
    store: Arc<dyn Store>,
    operation: &'static Operation,
    polls: &'a Mutex<usize>,
}

/// Where a future is dropped.
#[derive(Clone, Copy, Debug)]
enum Point {
    /// Right after this poll.
    AfterPoll(usize),
    /// When it is woken after this poll, instead of being polled.
    AtWakeAfterPoll(usize),
}

impl Sweep<'_> {
    async fn run(&self) -> Outcome {
        for point in [Point::AfterPoll as fn(usize) -> Point, Point::AtWakeAfterPoll] {
            let mut finished_in_a_row = 0;
            let mut poll = 0;
            while finished_in_a_row < 2 {
                check!(poll < 10_000, "it does not finish, however often it is polled");
                match self.drop_at(point(poll)).await? {
                    true => finished_in_a_row += 1,
                    false => {
                        finished_in_a_row = 0;
                        *self.polls.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                    }
                }
                poll += 1;
            }
        }
        Ok(())
    }

    /// Starts the operation on a fresh key, drops it there, and looks what is left; whether it finished before.
    async fn drop_at(&self, point: Point) -> Outcome<bool> {
        let (time, name) = (self.subject.time(), self.operation.name());
        let bench = Bench::new(Arc::clone(&self.store), time, self.subject.name(), name);
        let tasks = alive_tasks();
        let Started { future, holder, holder_stays, after, kept } = self.operation.start(&bench).await?;
        let dropped = tokio::spawn(DropAt { future: Some(future), point, polls: 0 });
        let (over, until_over) = tokio::sync::oneshot::channel();
        let leave = async {
            match holder_stays {
                // An error is an end as well.
                true => drop(until_over.await),
                // Long enough for the operation to come as far as it can while the key is held.
                false => sleep(Duration::from_millis(20)).await,
            }
            holder.leave(&bench).await
        };
        let operation = async {
            let ended = bench.soon("it ends or is dropped", dropped).await;
            let _nobody_minds = over.send(());
            ended
        };
        let (ended, left): (_, Outcome) = tokio::join!(operation, leave);
        left?;
        let ended = ended
            .map_err(|stop| stop.at(format_args!("{point:?}")))?
            .map_err(|failed| broken!("it panicked: {failed}"))?;
        bench
            .soon("what the caller does next", after)
            .await?
            .map_err(|stop| stop.at(format_args!("dropped {point:?}")))?;
        self.expect_nothing_left(&bench).await.map_err(|stop| stop.at(format_args!("dropped {point:?}")))?;
        drop(kept);
        if time == Time::Paused {
            let gone = wait_until(bench.slack(), "tasks end", async || alive_tasks() <= tasks).await;
            check!(gone.is_ok(), "dropped {point:?}: {} tasks are left, {tasks} before", alive_tasks());
        }
        match ended {
            Ended::Dropped => Ok(false),
            Ended::Finished(outcome) => outcome.map(|()| true),
        }
    }

    async fn expect_nothing_left(&self, bench: &Bench) -> Outcome {
        let live = match (self.store.locker().await?, self.store.scoped().await?) {
            (Some(locker), _) => {
                bench.expect_free(&locker, "for a fresh locker").await?;
                locker.guarantees().cleanup.live
            }
            (None, Some(scoped)) => {
                expect_free(bench, &scoped, "for a fresh locker").await?;
                scoped.guarantees().cleanup.live
            }
            (None, None) => return Err(Stop::Excluded("it has no lockers".into())),
        };
        let mut left = Vec::new();
        let gone = wait_until(bench.within(live), "nothing is left in the store", async || {
            left = self.store.leftovers(bench.key()).await.unwrap_or_else(|error| vec![format!("{error:?}")]);
            left.is_empty()
        });
        gone.await.map_err(|_| broken!("the store still has {left:?}"))
    }
}

fn alive_tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// Polls a future up to the point at which it drops it.
struct DropAt {
    future: Option<BoxFuture<'static, Outcome>>,
    point: Point,
    polls: usize,
}

enum Ended {
    Dropped,
    Finished(Outcome),
}

impl Future for DropAt {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        let (last, at_wake) = match self.point {
            Point::AfterPoll(last) => (last, false),
            Point::AtWakeAfterPoll(last) => (last, true),
        };
        if self.polls < last {
            self.polls += 1;
            let polled = self.future.as_mut().map(|future| future.as_mut().poll(cx));
            match polled {
                Some(Poll::Ready(outcome)) => return Poll::Ready(Ended::Finished(outcome)),
                _ if at_wake || self.polls < last => return Poll::Pending,
                _ => {}
            }
        }
        self.future = None;
        Poll::Ready(Ended::Dropped)
    }
}

impl Tally {
    fn push(&self, swept: Swept) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(swept);
    }
}

/// One line for each sweep.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        for Swept { name, polls, leaks } in &rows {
            writeln!(f, "{name:<64} {polls:>4} polls swept, {leaks} leaks")?;
        }
        let (polls, leaks) = rows.iter().fold((0, 0), |(p, l), row| (p + row.polls, l + row.leaks));
        writeln!(f, "{} operations, {polls} polls swept, {leaks} leaks", rows.len())
    }
}
