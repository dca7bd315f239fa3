//! What an open breaker stands in the way of, and what it never does.

use std::sync::Arc;

use distributed_lock::{
    AcquireOptions, Attempt, Backend, Error, ErrorKind, LockKey, Locker, LockerExt, LossCause, Release, Result,
    ScopedLockerExt, Ttl, Wait,
    backend::LockHandle,
    breaker::{BreakerCounts, BreakerState},
    lease::{LeaseConfig, LeaseExit, LeaseRunner},
};

use crate::support::{Breaker, Next, Pings, TTL, bounded, breaker, brittle, ms, open, take, until_due};

#[tokio::test(start_paused = true)]
async fn open_breaker_refuses_every_acquire_and_run_without_asking_and_says_when_to_try_again() {
    let locker = brittle();
    open(&locker).await;
    let asked = locker.get_ref().asked();
    let mut refusals = Vec::new();
    for wait in [Wait::Never, Wait::UpTo(ms(5)), Wait::Forever] {
        let options = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_wait(wait);
        refusals.push(bounded(locker.acquire_opts(&LockKey::new("k").unwrap(), &options)).await.unwrap_err());
    }
    refusals.push(bounded(locker.with_lock("k", async |_| ())).await.unwrap_err().error);
    refusals.push(bounded(locker.try_with_lock("k", async |_| ())).await.unwrap_err().error);
    for refused in &refusals {
        assert_eq!((refused.kind(), refused.is_retryable()), (ErrorKind::CircuitOpen, true));
        assert!(refused.retry_after().is_some_and(|pause| (ms(240)..=ms(500)).contains(&pause)), "{refused:?}");
        assert_eq!(refused.key().map(LockKey::as_str), Some("k"));
        assert!(refused.to_string().starts_with("the circuit breaker is open"), "{refused}");
    }
    assert_eq!(locker.get_ref().asked(), asked, "the store was asked");
    assert_eq!(locker.counts().refused, 5);
}

/// What must work while it is open.
async fn held_guards_work(
    locker: &Breaker,
    wrap: fn(&Breaker, Box<dyn LockHandle>) -> Box<dyn LockHandle>,
) -> Result<(), String> {
    let peer = locker.get_ref().memory.peer();
    let guard = async |key: &str| take(locker, key).await.map_handle(|handle| Wrapped(wrap(locker, handle)));
    let (mut renewed, released, dropped, lost) =
        (guard("renewed").await, guard("released").await, guard("dropped").await, guard("lost").await);
    open(locker).await;
    renewed.renew(TTL * 2).await.map_err(|error| format!("renew: {error}"))?;
    match released.release().await {
        Ok(Release::Released) => {}
        other => return Err(format!("release: {other:?}")),
    }
    drop(dropped);
    for key in ["released", "dropped"] {
        if peer.try_acquire(key, TTL).await.unwrap().is_contended() {
            return Err(format!("{key} is not free"));
        }
    }
    let told = lost.lost();
    peer.lose("lost", LossCause::SessionEnded).unwrap();
    let loss = tokio::time::timeout(ms(100), told).await.map_err(|_| "the loss is not told".to_owned())?;
    assert_eq!(loss.cause(), LossCause::SessionEnded);
    let late = lost.release().await;
    assert!(matches!(late, Ok(Release::Lost(_))), "{late:?}");
    assert_eq!(locker.state(), BreakerState::Open, "their answers closed it");
    Ok(())
}

#[derive(Debug)]
struct Wrapped(Box<dyn LockHandle>);

#[async_trait::async_trait]
impl LockHandle for Wrapped {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        self.0.renew(ttl).await
    }
    async fn release(&mut self) -> Result<Release> {
        self.0.release().await
    }
    fn abandon(&mut self) {
        self.0.abandon();
    }
}

#[tokio::test(start_paused = true)]
async fn guards_are_renewed_released_dropped_and_told_of_their_loss_while_it_is_open() {
    held_guards_work(&brittle(), |_, handle| handle).await.unwrap();
}

/// As the original did: what it protects against is worse than what it does.
#[derive(Debug)]
struct Gated(Box<dyn LockHandle>, Breaker);

#[async_trait::async_trait]
impl LockHandle for Gated {
    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        self.0.renew(ttl).await
    }
    async fn release(&mut self) -> Result<Release> {
        match self.1.state() {
            BreakerState::Closed => self.0.release().await,
            _ => Err(Error::new(ErrorKind::CircuitOpen, "open")),
        }
    }
    fn abandon(&mut self) {}
}

#[tokio::test(start_paused = true)]
async fn breaker_that_gates_releases_is_found() {
    let gated = held_guards_work(&brittle(), |locker, handle| Box::new(Gated(handle, Arc::clone(locker)))).await;
    assert!(gated.unwrap_err().starts_with("release"));
}

#[tokio::test(start_paused = true)]
async fn ping_close_and_facts_pass_while_it_is_open_and_close_nothing() {
    let locker = brittle();
    open(&locker).await;
    until_due().await;
    locker.ping().await.unwrap();
    locker.get_ref().pings(Pings::Fail(ErrorKind::Unavailable));
    assert_eq!(locker.ping().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!((locker.state(), locker.id()), (BreakerState::Open, locker.get_ref().id()));
    assert_eq!(locker.capabilities(), locker.get_ref().capabilities());
    locker.close().await.unwrap();
    assert_eq!(locker.state(), BreakerState::Open);
}

/// A store that refuses for good is better seen than a breaker before it.
#[tokio::test(start_paused = true)]
async fn closed_locker_and_one_that_is_denied_say_so_once_the_open_time_is_over() {
    for kind in [ErrorKind::Closed, ErrorKind::Denied] {
        let locker = brittle();
        open(&locker).await;
        until_due().await;
        locker.get_ref().pings(Pings::Fail(kind));
        locker.get_ref().always(Next::Fail(kind));
        assert_eq!(locker.try_acquire("k", TTL).await.unwrap_err().kind(), kind);
    }
}

#[tokio::test(start_paused = true)]
async fn promises_are_those_inside_and_what_the_breaker_takes_from_them() {
    let locker = brittle();
    let (mut outside, inside) = (locker.guarantees(), locker.get_ref().guarantees());
    let note = outside.notes.pop().unwrap();
    assert_eq!(outside, inside);
    assert!(note.contains("nobody begins to, for up to 30s") && note.contains("for up to 2s"), "{note}");
}

#[tokio::test(start_paused = true)]
async fn runner_stands_by_while_it_is_open_and_leads_when_the_store_is_well_again() {
    let locker = brittle();
    open(&locker).await;
    let runner = LeaseRunner::new(Arc::clone(&locker) as _, LeaseConfig::new()).unwrap();
    let exit = bounded(runner.run("job", async |_term| Ok::<_, ()>(7))).await.unwrap();
    assert!(matches!(exit, LeaseExit::Finished(7)), "{exit:?}");
    let BreakerCounts { opened, closed, refused, .. } = locker.counts();
    assert_eq!((opened, closed, refused), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn state_is_watched_through_a_whole_round() {
    let locker = breaker(distributed_lock::breaker::BreakerConfig::new().with_min_samples(1));
    let mut watch = locker.watch();
    open(&locker).await;
    assert_eq!(watch.changed().await, Some(BreakerState::Open));
    until_due().await;
    locker.get_ref().pings(Pings::WellAfter(ms(20)));
    let calling = tokio::spawn({
        let locker = Arc::clone(&locker);
        async move { locker.try_acquire("k", TTL).await.map(Attempt::acquired) }
    });
    assert_eq!(watch.changed().await, Some(BreakerState::HalfOpen));
    assert_eq!(watch.wait_for(BreakerState::Closed).await, Some(BreakerState::Closed));
    assert!(calling.await.unwrap().unwrap().is_some());
    drop(locker);
    assert_eq!(watch.wait_for(BreakerState::Open).await, None, "the breaker is gone");
}
