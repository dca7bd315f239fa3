use std::sync::Arc;

use async_trait::async_trait;

use super::{controls::Faults, store::Store};
use crate::{
    FencingToken, LockKey, Loss, LossCause, Release, Result, Ttl,
    backend::{HoldRecord, LockHandle},
};

#[derive(Debug)]
pub(super) struct MemoryHandle {
    pub(super) store: Arc<Store>,
    pub(super) faults: Arc<Faults>,
    pub(super) key: LockKey,
    pub(super) token: FencingToken,
    pub(super) record: HoldRecord,
}

impl MemoryHandle {
    fn free(&self) -> Release {
        let now = self.store.clock.now();
        let freed = self.store.lock().free(&self.key, self.token, now);
        match freed {
            Some(false) => Release::Released,
            Some(true) => Release::Lapsed(Loss::new(LossCause::DeadlinePassed)),
            None => Release::Lost(Loss::new(LossCause::NotOurs)),
        }
    }
}

#[async_trait]
impl LockHandle for MemoryHandle {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        self.faults.strike().await?;
        let now = self.store.clock.now();
        let renewed = self.store.lock().renew(&self.key, self.token, ttl, now);
        match renewed {
            true => Ok(()),
            false => Err(self.record.end().unwrap_or_else(|| Loss::new(LossCause::NotOurs)).into()),
        }
    }

    async fn release(&mut self) -> Result<Release> {
        self.faults.strike().await?;
        Ok(self.free())
    }

    fn abandon(&mut self) {
        let _how_it_ended = self.free();
    }
}
