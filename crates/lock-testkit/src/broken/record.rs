use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use distributed_lock::{
    AcquireOptions, Attempt, Backend, Clock, FencingToken, InvalidInput, LockGuard, Locker, Loss, LossCause,
    MemoryLocker, Release, Result, TokioClock, Ttl, Wait,
    backend::{HoldRecord, LockHandle},
};
use tokio::time::sleep;

use super::{Defect, locker::lock};

/// A hold with a record of its own, around the guard of a sound one: what its holder sees is not what the store says.
#[derive(Debug)]
pub(super) struct Reheld {
    defect: Defect,
    inner: Option<LockGuard>,
    record: HoldRecord,
    store: Arc<MemoryLocker>,
}

impl Reheld {
    /// The guard itself comes back if the defect is none of the record.
    pub(super) fn around(
        defect: Defect,
        inner: LockGuard,
        ttl: Ttl,
        token: u128,
        store: &Arc<MemoryLocker>,
        siblings: &Arc<Mutex<Vec<HoldRecord>>>,
    ) -> Result<LockGuard, LockGuard> {
        let (mut deadline, mut grace) = facts(ttl);
        let mut clock: Arc<dyn Clock> = Arc::new(TokioClock);
        let mut fencing_token = inner.fencing_token();
        match defect {
            Defect::HidesTheDeadline | Defect::Revives => deadline = None,
            Defect::TakesAnyGrace => grace = None,
            Defect::StopsTheClock => clock = Arc::new(Stopped(TokioClock.now())),
            Defect::CountsTokensPerLocker => fencing_token = fencing_token.map(|_| FencingToken::new(token)),
            Defect::CriesWolf
            | Defect::EndsWhatItRefusesToRenew
            | Defect::FreesBeforeTelling
            | Defect::KeepsLapsedKeys
            | Defect::KeepsLossesToItself
            | Defect::LosesAllWithOne
            | Defect::NothingButARecordOfItsOwn
            | Defect::RenewsInSecret
            | Defect::RenewsInWordsOnly => {}
            _ => return Err(inner),
        }
        let record = HoldRecord::draft(store.id(), inner.key().clone(), clock)
            .with_fencing_token(fencing_token)
            .with_deadline(deadline)
            .with_max_grace(grace)
            .open();
        let (lost, step_down) = (inner.lost(), inner.hold().step_down_requested());
        let (told, asked) = (record.clone(), record.clone());
        match defect {
            Defect::CriesWolf => {
                tokio::spawn(async move {
                    sleep(Duration::from_millis(100)).await;
                    told.lose(Loss::new(LossCause::NotOurs));
                });
            }
            Defect::LosesAllWithOne => {
                lock(siblings).push(record.clone());
                let all = Arc::clone(siblings);
                tokio::spawn(async move {
                    let loss = lost.await;
                    lock(&all).iter().for_each(|sibling| sibling.lose(loss.clone()));
                });
            }
            Defect::NothingButARecordOfItsOwn => {
                tokio::spawn(async move { told.lose(lost.await) });
                tokio::spawn(async move {
                    step_down.await;
                    asked.request_step_down();
                });
            }
            _ => {}
        }
        let hold = record.hold();
        Ok(LockGuard::new(hold, ttl, Self { defect, inner: Some(inner), record, store: Arc::clone(store) }))
    }

    async fn revive(&mut self, ttl: Ttl) -> Result<()> {
        let options = AcquireOptions::new(ttl).with_wait(Wait::Never);
        let key = self.record.hold().key().clone();
        if let Attempt::Acquired(again) = self.store.acquire_opts(&key, &options).await? {
            self.inner = Some(again);
        }
        Ok(())
    }
}

/// Deadline and longest grace, as the in-memory locker has them.
fn facts(ttl: Ttl) -> (Option<Instant>, Option<Duration>) {
    let ttl = ttl.duration();
    (ttl.and_then(|ttl| TokioClock.now().checked_add(ttl)), ttl.map(|ttl| ttl * 3 / 4))
}

#[async_trait]
impl LockHandle for Reheld {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        if self.defect == Defect::EndsWhatItRefusesToRenew && ttl.duration() < Some(Duration::from_secs(1)) {
            self.record.lose(Loss::new(LossCause::NotOurs));
            return Err(InvalidInput::new("ttl", format_args!("{:?}", ttl.duration()), "must be at least 1 s").into());
        }
        let (deadline, grace) = facts(ttl);
        let renewed = match (self.defect, &mut self.inner) {
            (Defect::RenewsInWordsOnly | Defect::KeepsLapsedKeys, _) | (_, None) => Ok(()),
            (_, Some(inner)) => inner.renew(ttl).await,
        };
        match (self.defect, renewed) {
            (Defect::KeepsLossesToItself, _) => {}
            (Defect::Revives, Err(_)) => return self.revive(ttl).await,
            (_, renewed) => renewed?,
        }
        if !matches!(self.defect, Defect::RenewsInSecret | Defect::HidesTheDeadline | Defect::Revives) {
            let _unless_it_was_over = self.record.extend(deadline, grace);
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<Release> {
        match self.inner.take() {
            Some(inner) => inner.release().await,
            None => Ok(Release::Released),
        }
    }

    fn abandon(&mut self) {
        drop(self.inner.take());
    }
}

#[derive(Debug)]
struct Stopped(Instant);

impl Clock for Stopped {
    fn now(&self) -> Instant {
        self.0
    }
}
