use std::sync::Arc;

use async_trait::async_trait;
use distributed_lock::{
    Error, Loss, LossCause, Release, Result, Ttl,
    backend::{HoldRecord, LockHandle},
};
use tokio::sync::oneshot;

use super::lane::{Lane, Order, Renew, Ticket, Unlock};
/// What the guard of a lock in a lane holds.
#[derive(Debug)]
pub(super) struct SharedHandle {
    lane: Arc<Lane>,
    record: HoldRecord,
    ticket: Ticket,
}

impl SharedHandle {
    pub(super) fn new(lane: Arc<Lane>, record: HoldRecord, ticket: Ticket) -> Self {
        Self { lane, record, ticket }
    }

    /// How it was lost; the guard's own word is none.
    fn loss(&self) -> Loss {
        self.record
            .end()
            .filter(|loss| loss.cause() != LossCause::Released)
            .unwrap_or_else(|| Loss::new(LossCause::SessionEnded))
    }
}

#[async_trait]
impl LockHandle for SharedHandle {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        let timing = self.lane.core().timing(ttl)?;
        let (answer, renewed) = oneshot::channel();
        let order = Order::Renew(Box::new(Renew { ticket: self.ticket, ttl, timing, answer }));
        if self.lane.give(order).is_err() {
            return Err(self.loss().into());
        }
        // Both arms are cancel safe.
        tokio::select! {
            biased;
            renewed = renewed => renewed.unwrap_or_else(|_| Err(Error::from(self.loss()))),
            loss = self.record.hold().lost() => Err(loss.into()),
        }
    }

    async fn release(&mut self) -> Result<Release> {
        let (answer, released) = oneshot::channel();
        let order = Order::Unlock(Unlock { ticket: self.ticket, answer: Some(answer) });
        if self.lane.give(order).is_err() {
            return Ok(Release::Lost(self.loss()));
        }
        released.await.unwrap_or_else(|_| Ok(Release::Lost(self.loss())))
    }

    fn abandon(&mut self) {
        // A lane that has ended owns nothing.
        let _ = self.lane.give(Order::Unlock(Unlock { ticket: self.ticket, answer: None }));
    }
}
