use std::{
    fmt,
    future::{Future, pending},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use super::{
    Stall,
    machine::{Reason, Stop},
};
use crate::{Clock, FencingToken, Hold, LockKey, Loss, LossCause, Result, TokioClock};

/// Why a job was told to end.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CancelReason {
    /// The runner was closed.
    Closed,
    /// The lease was lost, or could not be proven for as long as the detection bound: somebody else may be working soon.
    Lost(Loss),
    /// The job overstayed a limit.
    Stalled(Stall),
    /// Somebody asked us to step down.
    StepDown,
    /// This name was stopped.
    Stopped,
}

impl CancelReason {
    /// What the machine says in the words of a job. `loss` is what the hold knows of its end.
    pub(super) fn new(reason: Reason, loss: Option<Loss>) -> Self {
        match reason {
            Reason::Lost | Reason::Unconfirmed => {
                Self::Lost(loss.unwrap_or_else(|| Loss::new(LossCause::HeartbeatTimeout)))
            }
            Reason::Stalled(stall) => Self::Stalled(stall),
            Reason::StepDown => Self::StepDown,
            Reason::Stop(Stop::Close) => Self::Closed,
            Reason::Stop(Stop::Stop) => Self::Stopped,
        }
    }
}

impl fmt::Display for CancelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the runner was closed"),
            Self::Lost(loss) => write!(f, "the lease is lost: {loss}"),
            Self::Stalled(stall) => stall.fmt(f),
            Self::StepDown => f.write_str("asked to step down"),
            Self::Stopped => f.write_str("the name was stopped"),
        }
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MaxTerm => "the job led for longer than its longest term",
            Self::Progress => "the job showed no progress in time",
        })
    }
}

/// One leadership, as the job sees it. Cheap to clone; does not keep the lease.
///
/// ```
/// use std::sync::Arc;
/// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseExit, LeaseRunner, Term}};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// async fn job(term: Term) -> distributed_lock::Result<u32> {
///     for batch in 0..3 {
///         tokio::select! {
///             reason = term.cancelled() => println!("winding down: {reason}"),
///             () = tokio::task::yield_now() => {} // one batch of work
///         }
///         term.ensure_valid()?; // before each side effect
///         term.progress();
///         println!("batch {batch} of the term with token {:?}", term.fencing_token());
///     }
///     Ok(3)
/// }
///
/// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
/// assert!(matches!(runner.run("report", job).await?, LeaseExit::Finished(3)));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Term {
    hold: Hold,
    cancel: watch::Receiver<Option<CancelReason>>,
    progress: Arc<watch::Sender<Instant>>,
}

/// The runner's end of a term.
#[derive(Debug)]
pub(super) struct TermControl {
    hold: Hold,
    cancel: watch::Sender<Option<CancelReason>>,
    progress: Arc<watch::Sender<Instant>>,
}

impl TermControl {
    pub(super) fn open(hold: &Hold) -> (Self, Term) {
        let (cancel, cancelled) = watch::channel(None);
        let progress = Arc::new(watch::Sender::new(TokioClock.now()));
        let term = Term { hold: hold.clone(), cancel: cancelled, progress: Arc::clone(&progress) };
        (Self { hold: hold.clone(), cancel, progress }, term)
    }

    /// Tells the job, and whoever follows its hold only.
    pub(super) fn cancel(&self, reason: CancelReason) {
        self.cancel.send_replace(Some(reason));
        self.hold.set_cancelled(true);
    }

    pub(super) fn reason(&self) -> Option<CancelReason> {
        self.cancel.borrow().clone()
    }

    pub(super) fn progressed_at(&self) -> Instant {
        *self.progress.borrow()
    }
}

impl Term {
    /// What is held, to pass to code that knows nothing of leases. Its [`Hold::cancelled`] completes with
    /// [`cancelled`](Self::cancelled).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{Hold, MemoryLocker, lease::{LeaseConfig, LeaseExit, LeaseRunner, Term}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// async fn charge(hold: &Hold) -> distributed_lock::Result<String> {
    ///     hold.ensure_valid()?;
    ///     Ok(hold.key().as_str().to_owned())
    /// }
    ///
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
    /// let exit = runner.run("billing", async |term: Term| charge(&term.hold()).await);
    /// assert!(matches!(exit.await?, LeaseExit::Finished(name) if name == "billing"));
    /// # Ok(()) }
    /// ```
    pub fn hold(&self) -> Hold {
        self.hold.clone()
    }

    /// The name of the lease.
    pub fn name(&self) -> &LockKey {
        self.hold.key()
    }

    /// The token minted with this term, where one was. See [`Hold::fencing_token`].
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.hold.fencing_token()
    }

    /// `Ok` while we can prove that we lead. Synchronous and cheap: call it before every side effect.
    ///
    /// # Errors
    /// Kind `Lost`. See [`Hold::ensure_valid`].
    pub fn ensure_valid(&self) -> Result<()> {
        self.hold.ensure_valid()
    }

    /// What is left until the deadline. See [`Hold::remaining`].
    pub fn remaining(&self) -> Option<Duration> {
        self.hold.remaining()
    }

    /// Completes when at most `margin` is left before the deadline, which renewals move: an early notice that they fail. Cancel
    /// safe.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseExit, LeaseRunner, Term}};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = Arc::new(MemoryLocker::new());
    /// let runner = LeaseRunner::new(locker.clone(), LeaseConfig::new())?;
    /// let exit = runner.run("billing", async |term: Term| {
    ///     locker.delay(Duration::from_secs(4)); // renewals take long
    ///     term.near_deadline(Duration::from_secs(18)).await;
    ///     Ok::<_, ()>(term.remaining())
    /// });
    /// assert!(matches!(exit.await?, LeaseExit::Finished(Some(left)) if left == Duration::from_secs(18)));
    /// # Ok(()) }
    /// ```
    pub fn near_deadline(&self, margin: Duration) -> impl Future<Output = ()> + Send + use<> {
        self.hold.near_deadline(margin)
    }

    /// Completes when the job should end, with the reason; at once if it should already. The grace runs from then on. Owned, so
    /// it can be spawned. Cancel safe.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{MemoryLocker, lease::{CancelReason, LeaseConfig, LeaseExit, LeaseRunner, Term}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
    /// let exit = runner.run("report", async |term: Term| {
    ///     runner.stop("report");
    ///     Ok::<bool, ()>(matches!(term.cancelled().await, CancelReason::Stopped))
    /// });
    /// let LeaseExit::Stopped(Some(ended)) = exit.await? else { panic!("stopped") };
    /// assert_eq!(ended.result, Some(Ok(true)));
    /// # Ok(()) }
    /// ```
    pub fn cancelled(&self) -> impl Future<Output = CancelReason> + Send + use<> {
        let mut cancel = self.cancel.clone();
        async move {
            let reason = match cancel.wait_for(Option::is_some).await {
                Ok(reason) => reason.clone(),
                Err(_the_term_is_over) => None,
            };
            match reason {
                Some(reason) => reason,
                None => pending().await,
            }
        }
    }

    /// Why the job should end, if it should.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseExit, LeaseRunner, Term}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), LeaseConfig::new())?;
    /// let exit = runner.run("report", async |term: Term| Ok::<bool, ()>(term.cancel_reason().is_none()));
    /// assert!(matches!(exit.await?, LeaseExit::Finished(true)));
    /// # Ok(()) }
    /// ```
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.cancel.borrow().clone()
    }

    /// Says that the job moved on, which starts its progress deadline anew. Cheap; from any thread.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use distributed_lock::{MemoryLocker, lease::{LeaseConfig, LeaseExit, LeaseRunner, Stall, Term}};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = LeaseConfig::new().with_progress_deadline(Duration::from_secs(60));
    /// let runner = LeaseRunner::new(Arc::new(MemoryLocker::new()), config)?;
    /// let exit = runner.run("report", async |term: Term| {
    ///     for _ in 0..3 {
    ///         tokio::time::sleep(Duration::from_secs(50)).await;
    ///         term.progress();
    ///     }
    ///     std::future::pending::<Result<(), ()>>().await
    /// });
    /// assert!(matches!(exit.await?, LeaseExit::Stalled(Stall::Progress, _)));
    /// # Ok(()) }
    /// ```
    pub fn progress(&self) {
        self.progress.send_replace(TokioClock.now());
    }
}
