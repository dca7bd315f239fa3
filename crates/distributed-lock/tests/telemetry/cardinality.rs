//! How many series there are does not depend on how many locks there are.

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    Instrumented, LockerExt, LossCause, MemoryLocker, Scoped, ScopedLockerExt,
    breaker::{BreakerConfig, CircuitBreaker},
    lease::{LeaseConfig, LeaseRunner},
    telemetry::Telemetry,
};
use metrics_util::debugging::DebuggingRecorder;

use crate::{meter::Exported, recorder::record};

const TTL: Duration = Duration::from_secs(30);
const NAMES: u32 = 100_000;

/// Without their values.
fn series(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| line.rsplit_once('}').unwrap().0.to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn case_67_a_hundred_thousand_names_make_no_series_that_one_name_does_not() {
    let recorder = DebuggingRecorder::new();
    let (recorded, _local) = record(&recorder);
    let exported = Exported::new();
    let telemetry = Telemetry::new().with_meter(&exported.meter());
    let store = MemoryLocker::new();
    let breaker = CircuitBreaker::new(store.peer(), BreakerConfig::new()).unwrap();
    let locker = Instrumented::new(breaker.with_telemetry(telemetry.clone())).with_telemetry(telemetry.clone());
    let locks = Instrumented::new(Scoped::new(store.peer())).with_telemetry(telemetry.clone());
    let runner = LeaseRunner::new(Arc::new(store.peer()), LeaseConfig::new().with_telemetry(telemetry)).unwrap();
    let use_of = async |number: u32| {
        let name = format!("order/{number}");
        let mut guard = locker.acquire(&name, TTL).await.unwrap();
        guard.renew(TTL).await.unwrap();
        guard.release().await.unwrap().exclusive().unwrap();
        // All of it for some.
        if number % 1_000 == 0 {
            let guard = locker.acquire(&name, TTL).await.unwrap();
            assert!(locker.try_acquire(&name, TTL).await.unwrap().is_contended());
            store.lose(&name, LossCause::SessionEnded).unwrap();
            drop(guard);
            locks.with_lock(&name, async |_hold| ()).await.unwrap();
            let _exit = runner.run(&name, async |_term| Ok::<_, ()>(())).await.unwrap();
        }
    };
    use_of(0).await;
    let one = [series(&recorded.lines()), series(&exported.lines())];
    assert!(one[0].len() > 15 && one[1].len() > 15, "{one:?}");
    for number in 1..NAMES {
        use_of(number).await;
    }
    assert_eq!([series(&recorded.lines()), series(&exported.lines())], one);
}
