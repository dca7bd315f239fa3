use std::time::Duration;

/// Who ends a hold whose holder vanished.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Expiry {
    /// Nobody but the holder's own process.
    Client,
    /// The store, when the session ends.
    Session,
    /// The store, at the deadline.
    Store,
}

/// Who can see the lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Reach {
    /// Processes of one host.
    Host,
    /// Nobody: nothing is locked, and any number of callers hold a key at once.
    Nobody,
    /// One process.
    Process,
    /// Everybody who uses the same store.
    Store,
}

/// In which order waiters get the lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Fairness {
    /// In the order they came.
    Fifo,
    /// Any: they try, again and again or when they are woken.
    Unordered,
}

/// What the order of fencing tokens survives.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum FencingStrength {
    /// There are no tokens.
    Absent,
    /// They increase while the store lives.
    Volatile,
    /// They also increase over restarts and crashes of the store.
    Durable,
    /// They also increase over a failover.
    Failover,
}

/// What a locker can do: facts of its kind, by which tests select and users choose.
///
/// ```
/// use distributed_lock::{Backend, Fairness, MemoryLocker};
///
/// assert_eq!(MemoryLocker::new().capabilities().fairness, Fairness::Fifo);
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Who ends a hold whose holder vanished.
    pub expiry: Expiry,
    /// Who can see the lock.
    pub reach: Reach,
    /// In which order waiters get it.
    pub fairness: Fairness,
    /// Whether a wait hears by itself that the lock may be free, so that nobody need ask again and again. In a queue it does, whatever
    /// this says.
    pub wakes: bool,
    /// What the order of fencing tokens survives.
    pub fencing: FencingStrength,
    /// Whether a hold can have no TTL.
    pub until_released: bool,
    /// Whether a waiter's step-down request reaches the holder.
    pub step_down: bool,
    /// Whether the holder is told of the end of its TTL somewhat before the key is free for others, rather than at that very
    /// instant.
    pub early_notice: bool,
    /// The shortest TTL it takes.
    pub min_ttl: Duration,
}

impl Capabilities {
    /// Whether a caller that wants the lock had better wait than try again and again.
    pub(crate) fn can_wait(&self) -> bool {
        self.wakes || self.fairness == Fairness::Fifo
    }

    /// The weakest locker of this kind; raise the public fields.
    ///
    /// ```
    /// use distributed_lock::{Capabilities, Expiry, Fairness, Reach};
    ///
    /// let mut capabilities = Capabilities::new(Expiry::Session, Reach::Store);
    /// capabilities.fairness = Fairness::Fifo;
    /// assert!(!capabilities.until_released);
    /// ```
    pub const fn new(expiry: Expiry, reach: Reach) -> Self {
        Self {
            expiry,
            reach,
            fairness: Fairness::Unordered,
            wakes: false,
            fencing: FencingStrength::Absent,
            until_released: false,
            step_down: false,
            early_notice: false,
            min_ttl: Duration::from_millis(1),
        }
    }
}
