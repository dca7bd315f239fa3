//! The breaker as a locker: which calls ask for leave, and what their answers tell.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{task::JoinHandle, time::timeout};

use super::{
    CircuitBreaker,
    gate::{Admitted, Gate, Permit, Ping},
    outcome::{Outcome, is_well},
};
use crate::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Guarantees, Holder, Inspect, LockKey, Locker, Release,
    Result, ScopedLocker, ScopedOptions, Ttl, Wait, Waiter,
    backend::{LockHandle, ScopedBody},
};

/// What is left of a wait after a probe, at the least.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

impl<L: Backend> CircuitBreaker<L> {
    /// Leave to ask the store, and what is left of the wait then.
    async fn admit(&self, wait: Wait) -> Result<(Permit, Wait)> {
        let probe = match self.gate.admit()? {
            Admitted::Pass(permit, ping) => {
                // Nobody waits for it: whether the store is alive is heard when it is heard.
                let _beside = ping.map(|ping| self.spawn(ping));
                return Ok((permit, wait));
            }
            Admitted::Probe(ping) => self.spawn(ping),
        };
        let started = self.gate.now();
        let limit = match wait {
            Wait::UpTo(limit) if wait.budget() != Some(Duration::ZERO) => limit,
            // A ping ends by itself.
            _ => Duration::MAX,
        };
        let _how_it_ended = timeout(limit, probe).await;
        match self.gate.admit()? {
            Admitted::Pass(permit, _) => {
                let spent = self.gate.now().saturating_duration_since(started);
                let left = match wait {
                    // A wait of nothing would be a try, which takes as long as the store lets it.
                    Wait::UpTo(limit) => Wait::UpTo(limit.saturating_sub(spent).max(SHORTEST_WAIT)),
                    other => other,
                };
                Ok((permit, left))
            }
            // Something ended the ping before its time. The next call begins another.
            Admitted::Probe(_) => Err(self.gate.cut_short()),
        }
    }

    /// In a task of its own, since the callers of a silent store may all have less time than an answer takes.
    fn spawn(&self, ping: Ping) -> JoinHandle<()> {
        let (inner, limit) = (Arc::clone(&self.inner), self.probe_timeout);
        tokio::spawn(async move {
            let answer = timeout(limit, inner.ping()).await;
            ping.judge(answer.is_ok_and(|answer| is_well(&answer)));
        })
    }

    /// Makes a call that is not gated, and tells how it went unless it is dropped.
    async fn observed<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let generation = self.gate.observe();
        let result = call.await;
        if let Some(generation) = generation {
            self.gate.tell(generation, Outcome::of_call(&result));
        }
        result
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Backend> Backend for CircuitBreaker<L> {
    fn id(&self) -> BackendId {
        self.inner.id()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn guarantees(&self) -> Guarantees {
        let mut guarantees = self.inner.guarantees();
        let note = format!(
            "a takeover is by those who wait already: while the circuit breaker is open nobody begins to, for up to {:?} at a time; its \
             ping can have a connection for up to {:?}",
            self.max_open_time, self.probe_timeout
        );
        guarantees.notes.push(note.into());
        guarantees
    }
    async fn ping(&self) -> Result<()> {
        self.observed(self.inner.ping()).await
    }
    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Locker> Locker for CircuitBreaker<L> {
    async fn acquire_opts(&self, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
        let (permit, wait) = self.admit(options.wait).await.map_err(|error| error.with_key(key))?;
        let options = options.clone().with_wait(wait);
        let attempt = permit.during(self.inner.acquire_opts(key, &options)).await;
        permit.settle(Outcome::of_attempt(&attempt, permit.is_answered()));
        Ok(attempt?.map(|guard| guard.map_handle(|inner| ObservedHandle { inner, gate: Arc::clone(&self.gate) })))
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: ScopedLocker> ScopedLocker for CircuitBreaker<L> {
    async fn run_scoped(
        &self,
        key: &LockKey,
        options: &ScopedOptions,
        body: ScopedBody<'_>,
    ) -> Result<Attempt<Release>> {
        let (permit, wait) = self.admit(options.wait).await.map_err(|error| error.with_key(key))?;
        let mut options = options.clone();
        options.wait = wait;
        // It is settled when the body starts, so that nothing the body does can count.
        let permit = Arc::new(permit);
        let at_start = Arc::clone(&permit);
        let counted: ScopedBody<'_> = Box::new(move |hold| {
            at_start.settle(Outcome::Success);
            body(hold)
        });
        let ran = permit.during(self.inner.run_scoped(key, &options, counted)).await;
        if !permit.settle(Outcome::of_attempt(&ran, permit.is_answered()))
            && let Err(error) = &ran
        {
            permit.tell(Outcome::of_error(error, false));
        }
        ran
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Inspect> Inspect for CircuitBreaker<L> {
    async fn holders(&self, key: &LockKey) -> Result<Vec<Holder>> {
        self.observed(self.inner.holders(key)).await
    }
    async fn waiters(&self, key: &LockKey) -> Result<Vec<Waiter>> {
        self.observed(self.inner.waiters(key)).await
    }
    async fn end_holder(&self, key: &LockKey, holder: &Holder) -> Result<bool> {
        self.observed(self.inner.end_holder(key, holder)).await
    }
    async fn request_step_down(&self, key: &LockKey) -> Result<bool> {
        self.observed(self.inner.request_step_down(key)).await
    }
}

/// A handle whose answers are told. Nothing of it is gated.
#[derive(Debug)]
struct ObservedHandle {
    inner: Box<dyn LockHandle>,
    gate: Arc<Gate>,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockHandle for ObservedHandle {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        let generation = self.gate.observe();
        let renewed = self.inner.renew(ttl).await;
        if let Some(generation) = generation {
            self.gate.tell(generation, Outcome::of_call(&renewed));
        }
        renewed
    }

    async fn release(&mut self) -> Result<Release> {
        let generation = self.gate.observe();
        let released = self.inner.release().await;
        if let Some(generation) = generation {
            self.gate.tell(generation, Outcome::of_release(&released));
        }
        released
    }

    fn abandon(&mut self) {
        self.inner.abandon();
    }
}
