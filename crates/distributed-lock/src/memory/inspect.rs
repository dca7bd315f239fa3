//! Who holds and who waits in the shared store. All of it is exact, and true at one instant.

use async_trait::async_trait;

use super::{MemoryLocker, store::Program};
use crate::{Holder, Inspect, InvalidInput, LockKey, Result, SessionId, Waiter};

#[async_trait]
impl Inspect for MemoryLocker {
    async fn holders(&self, key: &LockKey) -> Result<Vec<Holder>> {
        self.reach().await?;
        let now = self.store.clock.now();
        let held = self.store.lock().holder(key, now);
        let holder = held.map(|(token, program, since)| Holder {
            held_for: Some(now.saturating_duration_since(since)),
            application_name: program.as_deref().map(str::to_owned),
            fencing_token: Some(token),
            process: Some(std::process::id()),
            ..Holder::new(SessionId::new(token.get().to_string()))
        });
        Ok(holder.into_iter().collect())
    }

    async fn waiters(&self, key: &LockKey) -> Result<Vec<Waiter>> {
        self.reach().await?;
        let now = self.store.clock.now();
        let waiting = self.store.lock().waiters(key);
        let waiter = |(number, program, since): (u64, Program, _)| Waiter {
            waiting_for: Some(now.saturating_duration_since(since)),
            application_name: program.as_deref().map(str::to_owned),
            process: Some(std::process::id()),
            ..Waiter::new(SessionId::new(format!("waiter {number}")))
        };
        Ok(waiting.into_iter().map(waiter).collect())
    }

    async fn end_holder(&self, key: &LockKey, holder: &Holder) -> Result<bool> {
        let session = holder.session.as_str();
        let token = session.parse().map_err(|_| InvalidInput::new("holder", format_args!("{session:?}"), FOREIGN))?;
        self.reach().await?;
        let now = self.store.clock.now();
        Ok(self.store.lock().end(key, token, now))
    }

    async fn request_step_down(&self, key: &LockKey) -> Result<bool> {
        self.reach().await?;
        let now = self.store.clock.now();
        Ok(self.store.lock().request_step_down(key, now))
    }
}

const FOREIGN: &str = "must be the session of a holder that an in-memory locker named";

impl MemoryLocker {
    async fn reach(&self) -> Result<()> {
        self.ensure_open()?;
        self.faults.strike().await
    }
}
