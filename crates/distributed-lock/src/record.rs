use std::{
    any::Any,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::{
    BackendId, Clock, FencingToken, Hold, LockKey, Loss,
    hold::{Inner, State},
};

/// The backend's pen for one hold: it extends and it loses; the views, the guard and the runner follow.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use distributed_lock::{BackendId, Clock, LockKey, Loss, LossCause, SystemClock, backend::HoldRecord};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = Arc::new(SystemClock);
/// let asked_at = clock.now(); // before the request leaves
/// let record = HoldRecord::draft(BackendId::fresh(), LockKey::new("orders")?, clock)
///     .with_deadline(Some(asked_at + Duration::from_secs(30)))
///     .open();
/// let hold = record.hold();
/// hold.ensure_valid()?;
/// assert!(record.extend(Some(asked_at + Duration::from_secs(60)), None));
/// record.lose(Loss::new(LossCause::SessionEnded));
/// assert_eq!(hold.lost().await.cause(), LossCause::SessionEnded);
/// assert!(!record.extend(None, None), "nothing brings it back");
/// assert_eq!(record.end().unwrap().cause(), LossCause::SessionEnded);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct HoldRecord(Hold);

impl HoldRecord {
    /// Starts the record of a grant by this locker; complete it with the `with_` methods and [`Draft::open`].
    pub fn draft(locker: BackendId, key: LockKey, clock: Arc<dyn Clock>) -> Draft {
        Draft { locker, key, clock, fencing_token: None, deadline: None, max_grace: None, value: None }
    }

    /// A view for the holder.
    pub fn hold(&self) -> Hold {
        self.0.clone()
    }

    /// Moves the deadline: later after a confirmed renewal, earlier before a shortening is sent. `false`: the hold had ended
    /// before, and nothing brings it back.
    #[must_use]
    pub fn extend(&self, deadline: Option<Instant>, max_grace: Option<Duration>) -> bool {
        let now = self.0.now();
        self.0.0.modify(|state| {
            let live = state.end(now).is_none();
            if live {
                state.deadline = deadline;
                state.max_grace = max_grace;
            }
            live
        })
    }

    /// Ends it as lost; the first end stays. Wakes everybody who watches.
    pub fn lose(&self, loss: Loss) {
        self.0.finish(loss);
    }

    /// The end of the hold, a release included, if it has ended.
    pub fn end(&self) -> Option<Loss> {
        self.0.end()
    }

    /// Passes on that a waiter asked the holder to step down.
    pub fn request_step_down(&self) {
        self.0.0.modify(|state| !std::mem::replace(&mut state.step_down, true));
    }
}

/// A record being filled in.
#[derive(Debug)]
#[must_use]
pub struct Draft {
    locker: BackendId,
    key: LockKey,
    clock: Arc<dyn Clock>,
    fencing_token: Option<FencingToken>,
    deadline: Option<Instant>,
    max_grace: Option<Duration>,
    value: Option<Arc<dyn Any + Send + Sync>>,
}

impl Draft {
    /// The token minted with the grant.
    pub fn with_fencing_token(mut self, token: Option<FencingToken>) -> Self {
        self.fencing_token = token;
        self
    }

    /// What the holder may rely on, counted from *before* the request left; `None` is until released.
    pub fn with_deadline(mut self, deadline: Option<Instant>) -> Self {
        self.deadline = deadline;
        self
    }

    /// The longest grace [`LockGuard::run`](crate::LockGuard::run) can give its work; `None` is any.
    pub fn with_max_grace(mut self, grace: Option<Duration>) -> Self {
        self.max_grace = grace;
        self
    }

    /// One value of the backend's own, read back by [`Hold::backend_value`].
    pub fn with_value(mut self, value: Arc<dyn Any + Send + Sync>) -> Self {
        self.value = Some(value);
        self
    }

    /// The live record.
    #[must_use]
    pub fn open(self) -> HoldRecord {
        let now = self.clock.now();
        self.open_since(now)
    }

    /// The same for a grant that was read then, by the clock of the draft: one reading does for many.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use distributed_lock::{BackendId, Clock, LockKey, SystemClock, backend::HoldRecord};
    ///
    /// let now = SystemClock.now();
    /// let record = HoldRecord::draft(BackendId::fresh(), LockKey::new("orders")?, Arc::new(SystemClock)).open_since(now);
    /// assert!(record.hold().age() < Duration::from_secs(60));
    /// # Ok::<(), distributed_lock::InvalidInput>(())
    /// ```
    #[must_use]
    pub fn open_since(self, since: Instant) -> HoldRecord {
        let Self { locker, key, clock, fencing_token, deadline, max_grace, value } = self;
        let state = Mutex::new(State { deadline, max_grace, ..State::default() });
        let changed = Notify::new();
        HoldRecord(Hold(Arc::new(Inner { locker, key, fencing_token, value, since, clock, state, changed })))
    }
}
