//! A locker that fails on cue: errors, delays, lost replies, lost locks.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Error, ErrorKind, Guarantees, LockKey, Locker, Release,
    Result, ScopedLocker, ScopedOptions, Ttl,
    backend::{LockHandle, ScopedBody},
};
use tokio::time::sleep;

mod losable;

pub use losable::Cue;

/// Any [`Locker`] or [`ScopedLocker`], with the failures that its [`Faults`] ask for. Without any it changes nothing.
#[derive(Debug)]
pub struct Faulty<L> {
    inner: L,
    faults: Faults,
}

/// A call of a locker or of one of its guards.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Call {
    /// Every form of acquire.
    Acquire,
    /// `close`.
    Close,
    /// `ping`.
    Ping,
    /// The release of a guard; dropping one cannot fail.
    Release,
    /// The renewal of a guard.
    Renew,
    /// A scoped run.
    Run,
}

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// It takes this long before anything happens.
    Delay(Duration),
    /// It fails before anything happens.
    Error(ErrorKind),
    /// It happens, and fails all the same. What it acquired is given up.
    LostReply(ErrorKind),
}

/// The remote control of a [`Faulty`] locker. Clones control the same one.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Script>>);

#[derive(Debug, Default)]
struct Script {
    faults: VecDeque<(Call, Fault)>,
    cues: VecDeque<Cue>,
}

impl<L> Faulty<L> {
    /// A locker that does as it is told until [`faults`](Self::faults) says otherwise.
    pub fn new(inner: L) -> Self {
        Self { inner, faults: Faults::default() }
    }

    /// Its remote control.
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }
}

impl Faults {
    /// Lets the next call of this kind meet this fault. Several add up, one for each call, in order.
    pub fn next(&self, call: Call, fault: Fault) {
        self.script().faults.push_back((call, fault));
    }

    /// Lets the next hold, of a guard or of a body, be lost when [`Cue::fire`] says so.
    ///
    /// Such a hold has a record of the wrapper's own, so it carries no value of the backend.
    #[must_use]
    pub fn lose_next(&self) -> Cue {
        let cue = Cue::default();
        self.script().cues.push_back(cue.clone());
        cue
    }

    /// How many faults and cues no call has met yet. A test that ends with some did not test what it meant to.
    #[must_use]
    pub fn unmet(&self) -> usize {
        let script = self.script();
        script.faults.len() + script.cues.len()
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_cue(&self) -> bool {
        !self.script().cues.is_empty()
    }

    fn take_cue(&self) -> Option<Cue> {
        self.script().cues.pop_front()
    }

    /// What stands before a call; the kind with which its answer is to be lost, if it is.
    async fn strike(&self, call: Call) -> Result<Option<ErrorKind>> {
        let fault = {
            let mut script = self.script();
            let at = script.faults.iter().position(|(meant, _)| *meant == call);
            at.and_then(|at| script.faults.remove(at))
        };
        match fault {
            None => Ok(None),
            Some((_, Fault::Delay(delay))) => {
                sleep(delay).await;
                Ok(None)
            }
            Some((_, Fault::Error(kind))) => Err(Error::new(kind, "a failure on cue")),
            Some((_, Fault::LostReply(kind))) => Ok(Some(kind)),
        }
    }

    async fn around<T>(&self, call: Call, work: impl Future<Output = Result<T>>) -> Result<T> {
        let lost_reply = self.strike(call).await?;
        let answer = work.await?;
        match lost_reply {
            Some(kind) => Err(Error::new(kind, "a reply that was lost on cue")),
            None => Ok(answer),
        }
    }
}

impl<L: fmt::Display> fmt::Display for Faulty<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({})", self.inner)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Backend> Backend for Faulty<L> {
    fn id(&self) -> BackendId {
        self.inner.id()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }
    async fn ping(&self) -> Result<()> {
        self.faults.around(Call::Ping, self.inner.ping()).await
    }
    async fn close(&self) -> Result<()> {
        self.faults.around(Call::Close, self.inner.close()).await
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Locker> Locker for Faulty<L> {
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        let attempt = self.faults.around(Call::Acquire, self.inner.acquire_opts(key, options)).await?;
        // From here to the answer nothing awaits, so a guard is never without an owner.
        Ok(attempt.map(|guard| {
            let guard = match self.faults.take_cue() {
                Some(cue) => losable::guard(self.id(), guard, options.ttl, cue),
                None => guard,
            };
            guard.map_handle(|inner| FaultyHandle { inner, faults: self.faults.clone(), released: false })
        }))
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: ScopedLocker> ScopedLocker for Faulty<L> {
    async fn run_scoped(
        &self,
        key: &LockKey,
        options: &ScopedOptions,
        body: ScopedBody<'_>,
    ) -> Result<Attempt<Release>> {
        let run = async {
            match self.faults.has_cue() {
                true => losable::run(&self.inner, key, options, body, &self.faults).await,
                false => self.inner.run_scoped(key, options, body).await,
            }
        };
        self.faults.around(Call::Run, run).await
    }
}

#[derive(Debug)]
struct FaultyHandle {
    inner: Box<dyn LockHandle>,
    faults: Faults,
    released: bool,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockHandle for FaultyHandle {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        self.faults.around(Call::Renew, self.inner.renew(ttl)).await
    }

    async fn release(&mut self) -> Result<Release> {
        let (inner, released) = (&mut self.inner, &mut self.released);
        let release = async {
            let answer = inner.release().await;
            *released = answer.is_ok();
            answer
        };
        self.faults.around(Call::Release, release).await
    }

    /// Follows a release whose reply was lost, which the inner handle knows to have happened.
    fn abandon(&mut self) {
        if !self.released {
            self.inner.abandon();
        }
    }
}

#[cfg(test)]
mod tests;
