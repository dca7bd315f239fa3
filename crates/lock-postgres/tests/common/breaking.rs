//! A circuit breaker around any locker of this crate: before a server that is frozen, and before one that is well.

use std::{fs, sync::Arc, time::Duration};

use distributed_lock::{
    Backend, ErrorKind, Locker, LockerExt, Release, Ttl,
    breaker::{BreakerConfig, BreakerState, CircuitBreaker},
};
use lock_testkit::{
    Cluster, Faulty,
    faulty::{Call, Fault},
    wait_until,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep, timeout};

use crate::bench::{AMPLE, Server, Watch, ms};

const TTL: Duration = Duration::from_secs(30);

/// What callers have, who drop their call then.
const DEADLINE: Duration = ms(200);

/// The processes of a server, stopped. They go on when this is dropped, so that a test that fails leaves none that cannot end.
struct Frozen(Vec<Pid>);

impl Frozen {
    fn freeze(cluster: &Cluster) -> Self {
        let postmaster = cluster.postmaster_pid().unwrap();
        let children = fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children")).unwrap();
        // The first one before the others, so that it starts no more.
        let pids = [postmaster.to_string()].into_iter().chain(children.split_whitespace().map(str::to_owned));
        let pids: Vec<_> = pids.map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect();
        for pid in &pids {
            kill_process(*pid, Signal::STOP).unwrap();
        }
        Self(pids)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _gone = kill_process(*pid, Signal::CONT);
        }
    }
}

/// Callers with deadlines of 200 ms before a server that stops answering, and answers again.
pub(crate) async fn frozen_server<L: Locker>(cluster: Cluster, server: Server, locker: L) {
    let locker = CircuitBreaker::new(locker, BreakerConfig::new()).unwrap();
    locker.acquire("k", TTL).await.unwrap().release().await.unwrap().exclusive().unwrap();
    let frozen = Frozen::freeze(&cluster);
    let watch = Watch::start();
    let (mut calls, mut open) = (0, locker.watch());
    while locker.state() == BreakerState::Closed {
        watch.ensure(Instant::now(), Duration::from_secs(10) + DEADLINE, "until it opens");
        let call = timeout(DEADLINE, locker.acquire("k", TTL)).await;
        assert!(!matches!(call, Ok(Ok(_))), "a frozen server answered: {call:?}");
        calls += 1;
    }
    println!("opened after {:?} and {calls} calls", watch.start.elapsed());
    // From here on nobody waits for it.
    let watch = Watch::start();
    for _ in 0..10 {
        let refused = locker.acquire("k", TTL).await.unwrap_err();
        assert!(refused.kind() == ErrorKind::CircuitOpen && refused.retry_after().is_some(), "{refused:?}");
    }
    watch.within(ms(50), "ten refusals");
    let reopened = wait_until(AMPLE, "a probe of a frozen server fails", async || {
        let _refused_or_dropped = timeout(DEADLINE, locker.acquire("k", TTL)).await;
        locker.counts().opened >= 2
    });
    reopened.await.unwrap();
    assert_eq!(locker.counts().closed, 0);
    open.wait_for(BreakerState::Open).await.unwrap();
    let before = locker.counts().half_opened;
    drop(frozen);
    let thawed = Instant::now();
    let guard = loop {
        match timeout(DEADLINE, locker.acquire("k", TTL)).await {
            Ok(Ok(guard)) => break guard,
            Ok(Err(error)) => assert!(error.is_retryable(), "{error:?}"),
            Err(_deadline) => {}
        }
        assert!(thawed.elapsed() < 2 * AMPLE, "still not well: {:?}", locker.counts());
        sleep(ms(20)).await;
    };
    println!("well again after {:?}", thawed.elapsed());
    let counts = locker.counts();
    assert_eq!((counts.half_opened - before, counts.closed), (1, 1), "one probe closed it: {counts:?}");
    guard.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    drop(locker);
    server.quiet().await;
}

/// One that the first failure opens.
fn brittle<L: Backend>(locker: L) -> CircuitBreaker<L> {
    CircuitBreaker::new(locker, BreakerConfig::new().with_min_samples(1).with_error_rate(1)).unwrap()
}

/// Waits for a key that somebody else holds are neutral, also those that their callers cancel. No ping speaks for the server: all fail.
pub(crate) async fn cancelled_waits<L: Locker>(server: Server, locker: L) {
    let (locker, other) = (Arc::new(Faulty::new(locker)), server.locker());
    let held = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    (0..100).for_each(|_| locker.faults().next(Call::Ping, Fault::Error(ErrorKind::Unavailable)));
    for cancelled in [true, false] {
        let locker = brittle(Arc::clone(&locker));
        // Ample for a first connection.
        let limit = Duration::from_secs(2);
        match cancelled {
            true => assert!(timeout(limit, locker.acquire("k", TTL)).await.is_err()),
            false => assert!(locker.acquire_within("k", TTL, limit).await.unwrap().is_contended()),
        }
        assert_eq!(locker.state(), BreakerState::Closed, "cancelled: {cancelled}");
    }
    held.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    other.close().await.unwrap();
    drop((locker, other));
    server.quiet().await;
}

/// It opens while guards are held: they are renewed, released and dropped in the server all the same.
pub(crate) async fn held_guards<L: Locker>(server: Server, locker: L) {
    let (locker, other) = (brittle(Faulty::new(locker)), server.locker());
    let take = async |key| locker.acquire(key, TTL).await.unwrap();
    let (mut renewed, released, dropped) = (take("renewed").await, take("released").await, take("dropped").await);
    locker.get_ref().faults().next(Call::Acquire, Fault::Error(ErrorKind::Unavailable));
    locker.try_acquire("k", TTL).await.unwrap_err();
    assert_eq!(locker.state(), BreakerState::Open);
    renewed.renew(TTL * 2).await.unwrap();
    assert!(matches!(released.release().await, Ok(Release::Released)));
    drop(dropped);
    for key in ["released", "dropped"] {
        let next = other.acquire_within(key, TTL, AMPLE).await.unwrap().acquired().unwrap();
        next.release().await.unwrap().exclusive().unwrap();
    }
    assert!(other.try_acquire("renewed", TTL).await.unwrap().is_contended());
    renewed.release().await.unwrap().exclusive().unwrap();
    assert_eq!(locker.state(), BreakerState::Open, "their answers closed it");
    locker.close().await.unwrap();
    other.close().await.unwrap();
    drop((locker, other));
    server.quiet().await;
}
