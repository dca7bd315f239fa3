//! `HoldRecord` against a model of it, and what its views see.

use std::{
    error::Error as StdError,
    future::Future,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use distributed_lock::{
    BackendId, Clock, ErrorKind, FencingToken, Hold, LockGuard, LockKey, Loss, LossCause, Release, Result, TokioClock,
    Ttl,
    backend::{Draft, HoldRecord, LockHandle},
};

use crate::scripted::TTL;

fn draft(clock: impl Clock) -> Draft {
    HoldRecord::draft(BackendId::fresh(), LockKey::new("k").unwrap(), Arc::new(clock))
}

fn ready<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_brings_nothing_back_and_the_first_end_stays() {
    let record = draft(TokioClock).with_deadline(Some(TokioClock.now() + TTL)).open();
    let hold = record.hold();
    tokio::time::advance(TTL).await;
    assert!(!record.extend(None, None));
    record.lose(Loss::new(LossCause::SessionEnded));
    assert_eq!(hold.lost().await.cause(), LossCause::DeadlinePassed);
    let endless = draft(TokioClock).open();
    assert!(endless.end().is_none());
    endless.lose(Loss::new(LossCause::SessionEnded).with_source(std::io::Error::other("cable")));
    endless.lose(Loss::new(LossCause::Closed));
    let first = endless.hold().lost().await;
    assert_eq!((first.cause(), first.source().unwrap().to_string()), (LossCause::SessionEnded, "cable".to_owned()));
    let refused = endless.hold().ensure_valid().unwrap_err();
    assert_eq!(refused.source().unwrap().to_string(), "the session that owned it ended");
}

#[tokio::test(start_paused = true)]
async fn a_shortened_deadline_wakes_those_who_watch() {
    let record = draft(TokioClock).with_deadline(Some(TokioClock.now() + TTL)).open();
    let (start, lost) = (TokioClock.now(), tokio::spawn(record.hold().lost()));
    tokio::task::yield_now().await;
    assert!(record.extend(Some(start + Duration::from_secs(2)), None));
    assert_eq!(lost.await.unwrap().cause(), LossCause::DeadlinePassed);
    assert_eq!(TokioClock.now() - start, Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_record_carries_what_the_grant_came_with() {
    let token = FencingToken::new(9);
    let record = draft(TokioClock).with_fencing_token(Some(token)).with_value(Arc::new(3_u8)).open();
    let hold = record.hold();
    assert_eq!((hold.fencing_token(), hold.key().as_str(), hold.remaining()), (Some(token), "k", None));
    assert_eq!(hold.backend_value::<u8>().as_deref(), Some(&3));
    assert!(ready(hold.step_down_requested()).is_none());
    record.request_step_down();
    assert!(ready(hold.step_down_requested()).is_some() && hold.ensure_valid().is_ok());
}

/// Says with each renewal that the hold was lost for this cause, and leaves the record as it is.
#[derive(Debug)]
struct Lost(LossCause);

#[async_trait]
impl LockHandle for Lost {
    async fn renew(&mut self, _: Ttl) -> Result<()> {
        Err(Loss::new(self.0).into())
    }
    async fn release(&mut self) -> Result<Release> {
        Ok(Release::Released)
    }
    fn abandon(&mut self) {}
}

/// The cause says whether the store may still count us as the holder, and so how long work may go on.
#[tokio::test(start_paused = true)]
async fn a_loss_that_a_renewal_tells_of_ends_the_hold_with_its_own_cause() {
    for cause in [LossCause::HeartbeatTimeout, LossCause::SessionEnded] {
        let record = draft(TokioClock).open();
        let mut guard = LockGuard::new(record.hold(), Ttl::UNTIL_RELEASED, Lost(cause));
        assert_eq!(guard.renew(Duration::from_secs(1)).await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.lost().await.cause(), cause);
    }
}

// ---- the model --------------------------------------------------------------------------------------------------------------

#[derive(Clone, Debug)]
struct ManualClock(Arc<Mutex<Instant>>);

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        *self.0.lock().unwrap()
    }
}

#[derive(Debug)]
struct Nothing;

#[async_trait]
impl LockHandle for Nothing {
    async fn renew(&mut self, _: Ttl) -> Result<()> {
        Ok(())
    }
    async fn release(&mut self) -> Result<Release> {
        Ok(Release::Released)
    }
    fn abandon(&mut self) {}
}

/// Times are milliseconds since the grant.
#[derive(Clone, Copy, Debug)]
struct Model {
    now: u64,
    deadline: Option<u64>,
    end: Option<LossCause>,
}

impl Model {
    /// At the deadline itself it is over.
    fn look(&mut self) -> Option<LossCause> {
        if self.end.is_none() && self.deadline.is_some_and(|deadline| deadline <= self.now) {
            self.end = Some(LossCause::DeadlinePassed);
        }
        self.end
    }

    fn finish(&mut self, cause: LossCause) {
        self.end = Some(self.look().unwrap_or(cause));
    }
}

/// SplitMix64: enough for choices, and the same on every machine.
struct Choices(u64);

impl Choices {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// Short times, so that "exactly at the deadline" is common. A view asked once after many steps sees the same as one asked at
/// each: `peek` varies that.
#[tokio::test(start_paused = true)]
async fn a_record_does_what_its_model_does() {
    let mut seen = std::collections::HashSet::new();
    for seed in 0..3_000 {
        let mut choices = Choices(seed);
        let start = TokioClock.now();
        let clock = ManualClock(Arc::new(Mutex::new(start)));
        let at = |ms: u64| start + Duration::from_millis(ms);
        let deadline = Some(choices.below(6)).filter(|ms| *ms > 0);
        let record = draft(clock.clone()).with_deadline(deadline.map(at)).open();
        let hold = record.hold();
        let mut guard = Some(LockGuard::new(hold.clone(), Ttl::UNTIL_RELEASED, Nothing));
        let mut model = Model { now: 0, deadline, end: None };
        let mut steps = vec![format!("open {deadline:?}")];
        for _ in 0..12 {
            match choices.below(8) {
                0..3 => {
                    model.now += choices.below(4);
                    *clock.0.lock().unwrap() = at(model.now);
                    steps.push(format!("now {}", model.now));
                }
                3..6 => {
                    let deadline = Some(model.now + choices.below(5)).filter(|_| choices.below(4) > 0);
                    let live = model.look().is_none();
                    steps.push(format!("extend {deadline:?}"));
                    assert_eq!(record.extend(deadline.map(at), None), live, "seed {seed}: {steps:?}");
                    model.deadline = if live { deadline } else { model.deadline };
                }
                6 => {
                    let cause = [LossCause::SessionEnded, LossCause::NotOurs][choices.below(2) as usize];
                    steps.push(format!("lose {cause:?}"));
                    record.lose(Loss::new(cause));
                    model.finish(cause);
                }
                _ => {
                    steps.push("release".to_owned());
                    if guard.take().is_some() {
                        model.finish(LossCause::Released);
                    }
                }
            }
            if choices.below(2) == 0 {
                compare(&record, &hold, &mut model, &format!("seed {seed}: {steps:?}"));
                seen.insert(model.end);
            }
        }
        compare(&record, &hold, &mut model, &format!("seed {seed}: {steps:?}"));
    }
    let all = [LossCause::DeadlinePassed, LossCause::NotOurs, LossCause::Released, LossCause::SessionEnded];
    assert!(seen.contains(&None) && all.iter().all(|cause| seen.contains(&Some(*cause))), "{seen:?}");
}

fn compare(record: &HoldRecord, hold: &Hold, model: &mut Model, steps: &str) {
    let end = model.look();
    assert_eq!(record.end().map(|loss| loss.cause()), end, "{steps}");
    assert_eq!(hold.ensure_valid().is_ok(), end.is_none(), "{steps}");
    let left = model.deadline.map(|deadline| Duration::from_millis(deadline.saturating_sub(model.now)));
    assert_eq!(hold.remaining(), if end.is_some() { Some(Duration::ZERO) } else { left }, "{steps}");
    let lost = end.filter(|cause| *cause != LossCause::Released);
    assert_eq!(ready(hold.lost()).map(|loss| loss.cause()), lost, "{steps}");
    assert_eq!(ready(hold.cancelled()).is_some(), lost.is_some(), "{steps}");
}
