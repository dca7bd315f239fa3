//! What happens, one thing after the other. Each is done by a service, under a span of that name, as a request would be.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use distributed_lock::breaker::{BreakerConfig, BreakerState, CircuitBreaker};
use distributed_lock::lease::{LeaseConfig, LeaseRunner, LeaseState, Term};
use distributed_lock::telemetry::{Metric, MetricKind, Telemetry};
use distributed_lock::{
    AcquireOptions, Attempt, Contention, ErrorKind, Inspect, Instrumented, LockKey, Locker, LockerExt, Ran, Scoped,
    ScopedLockerExt, Ttl, Wait,
};
use examples::Spans;
use lock_testkit::wait_until;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::{sleep, timeout};
use tracing::{Instrument, info, info_span};

use crate::Failure;
use crate::store::{Observable, POOL, Service, Store};

/// What callers have. Prints itself as `Instrumented(CircuitBreaker(Postgres))`.
pub(crate) type Stack = Instrumented<CircuitBreaker<Arc<dyn Observable>>>;

const TTL: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(20);

/// How long work that was told to end takes to end.
const WIND_DOWN: Duration = Duration::from_millis(20);

fn of<F: Future>(service: &'static str, act: &'static str, work: F) -> impl Future<Output = F::Output> {
    work.instrument(info_span!("service", name = service, act))
}

/// `billing` holds a lock that `reports` wants: first it looks whether it is free, then it waits, and after a while it is told for whom.
/// Returns the gauges of that moment.
pub(crate) async fn wait_for_another_service(
    billing: &Stack,
    reports: &Stack,
    recorder: &PrometheusHandle,
    spans: &Spans,
) -> Result<String, Failure> {
    let key = LockKey::new("accounts/42")?;
    // A class is text of the program, so it may be a label. The name of a lock never is.
    let ask = AcquireOptions::new(Ttl::new(TTL)?).with_wait(Wait::Forever).with_class("accounts");
    let mut guard = of("billing", "invoice", billing.acquire_opts(&key, &ask)).await?.into_result()?;
    let tried = of("reports", "look", reports.acquire_opts(&key, &ask.clone().with_wait(Wait::Never))).await?;
    expect(tried.is_contended(), "the lock is held")?;

    let explained = || spans.to_string().matches("* INFO waiting for ").count();
    let before = explained();
    let holds = async {
        guard.renew(TTL).await?;
        wait_until(LIMIT, "the wait is explained", async || explained() > before).await?;
        let gauges = gauges(&recorder.render());
        guard.release().await?.exclusive()?;
        Ok::<_, Failure>(gauges)
    };
    let waits = async { Ok::<_, Failure>(reports.acquire_opts(&key, &ask).await?.into_result()?.release().await?) };
    let (waited, gauges) = tokio::join!(of("reports", "statement", waits), of("billing", "invoice", holds));
    waited?.exclusive()?;
    gauges
}

/// A body under a lock: what it does is below the span of the hold.
pub(crate) async fn run_under_a_lock(reports: &Service, telemetry: &Telemetry) -> Result<(), Failure> {
    let breaker = CircuitBreaker::new(Arc::clone(&reports.locker), BreakerConfig::new())?;
    let locks = Instrumented::new(Scoped::new(breaker)).with_telemetry(telemetry.clone());
    let body = async |_hold| info!("the report is written");
    Ok(of("reports", "write", locks.with_lock("reports/today", body)).await?)
}

/// An operator looks who holds a lock and ends it. The holder is told, and stops; how long that took is the overrun.
pub(crate) async fn lose_a_lock(billing: &Stack, operator: &Stack) -> Result<(), Failure> {
    let key = LockKey::new("invoices")?;
    let mut guard = of("billing", "close the books", billing.acquire(&key, TTL)).await?;
    let hold = guard.hold();
    let work = async {
        hold.cancelled().await;
        sleep(WIND_DOWN).await;
    };
    let (ran, ended) = tokio::join!(
        of("billing", "close the books", guard.run(GRACE, work)),
        of("operator", "end the holder", end_holder(operator, &key)),
    );
    ended?;
    expect(matches!(ran?, Ran::Lost { .. }), "the hold was lost")?;
    // Says that it was not ours to the end, which is known here.
    let _lost = guard.release().await?;
    Ok(())
}

async fn end_holder(operator: &Stack, key: &LockKey) -> Result<(), Failure> {
    let holders = operator.holders(key).await?;
    let holder = holders.first().ok_or("somebody holds it")?;
    info!("ending the session: {holder}");
    expect(operator.end_holder(key, holder).await?, "it was there to be ended")
}

/// Somebody holds as many locks as there are connections: the next call finds none, which is no contention for a lock.
pub(crate) async fn use_up_the_pool(reports: &Stack, store: &Store) -> Result<(), Failure> {
    if store.in_memory() {
        return Ok(());
    }
    let hoard = async {
        let mut held = Vec::new();
        for row in 0..POOL {
            held.push(reports.acquire(format!("rows/{row}"), TTL).await?);
        }
        let one_more = reports.try_acquire("rows/more", TTL).await?;
        for guard in held {
            guard.release().await?.exclusive()?;
        }
        expect(matches!(one_more, Attempt::Contended(Contention::NoConnection)), "the pool is used up")
    };
    of("reports", "hoard", hoard).await
}

/// A caller leaves while the answer is on its way: it comes, nobody takes it, and the lock is given back. A ghost.
pub(crate) async fn leave_before_the_answer(store: &Store, recorder: &PrometheusHandle) -> Result<(), Failure> {
    if store.in_memory() {
        return Ok(());
    }
    let locker = &store.reports.leases;
    // The connection is there, so that it is the answer that takes its time.
    locker.acquire("impatience", TTL).await?.release().await?.exclusive()?;
    store.way.slow_answers(WIND_DOWN * 10);
    // Once, unless the caller left before it was even asked.
    let ghost = wait_until(LIMIT, "an answer comes that nobody waits for", async || {
        drop(timeout(WIND_DOWN, locker.acquire("impatience", TTL)).await);
        sleep(WIND_DOWN * 12).await;
        has(recorder, "lock_ghosts_total")
    });
    ghost.await?;
    store.way.heal();
    Ok(())
}

/// The nightly job runs at `billing` when `reports` loses sight of the store: its breaker opens, its runner goes on asking. Then
/// `billing` is shut down, `reports` takes over, and loses its lease.
pub(crate) async fn hand_over_through_an_outage(
    reports: &Stack,
    store: &Store,
    telemetry: &Telemetry,
    recorder: &PrometheusHandle,
) -> Result<(), Failure> {
    const JOB: &str = "nightly";
    let runner = |service: &Service| {
        let locker = Instrumented::new(Arc::clone(&service.leases)).with_telemetry(telemetry.clone());
        let config = LeaseConfig::new().with_ttl(TTL).with_grace(GRACE).with_retry_interval(WIND_DOWN * 5);
        LeaseRunner::new(Arc::new(locker), config.with_telemetry(telemetry.clone()).with_class("nightly"))
    };
    let run = |runner: &LeaseRunner, service| {
        let runner = runner.clone();
        tokio::spawn(of(service, "nightly", async move { runner.run(JOB, nightly).await.map(drop) }))
    };
    let (first, second) = (runner(&store.billing)?, runner(&store.reports)?);
    let leads = async |runner: &LeaseRunner| {
        let mut state = runner.watch(JOB)?;
        let leading = state.wait_for(|state| matches!(state, LeaseState::Leading(_)));
        timeout(LIMIT, leading).await.map(drop).map_err(Failure::from)
    };
    let first_run = run(&first, "billing");
    leads(&first).await?;

    store.way.cut();
    let second_run = run(&second, "reports");
    told(recorder, "lease_acquire_failures_total").await?;
    of("reports", "outage", outage(reports, store)).await?;

    first.close().await?;
    first_run.await??;
    leads(&second).await?;
    of("operator", "end the holder", end_holder(reports, &LockKey::new(JOB)?)).await?;
    told(recorder, "lease_overrun_duration_seconds_count").await?;
    second.close().await?;
    Ok(second_run.await??)
}

async fn nightly(term: Term) -> Result<(), Infallible> {
    info!("the job runs");
    // Lost, asked to step down, or shut down.
    let _why = term.cancelled().await;
    sleep(WIND_DOWN).await;
    Ok(())
}

/// Until the breaker has opened, refused a call, and closed again.
async fn outage(reports: &Stack, store: &Store) -> Result<(), Failure> {
    let breaker = reports.get_ref();
    let refuses = wait_until(LIMIT, "the breaker opens", async || {
        if breaker.state() == BreakerState::Closed {
            store.way.cut();
        }
        let answer = reports.try_acquire("orders", TTL).await;
        answer.is_err_and(|error| error.kind() == ErrorKind::CircuitOpen)
    });
    refuses.await?;
    store.way.heal();
    let closes = async {
        // Asking again when the error says so, and not before.
        while let Err(error) = reports.try_acquire("orders", TTL).await {
            sleep(error.retry_after().unwrap_or(WIND_DOWN)).await;
        }
    };
    timeout(LIMIT, closes).await?;
    expect(breaker.state() == BreakerState::Closed, "it is closed again")
}

/// Waits until the page has a series of that name.
async fn told(recorder: &PrometheusHandle, name: &str) -> Result<(), Failure> {
    Ok(wait_until(LIMIT, format!("{name} is told"), async || has(recorder, name)).await?)
}

fn has(recorder: &PrometheusHandle, name: &str) -> bool {
    recorder.render().lines().any(|line| line.starts_with(name))
}

/// The lines of what is there now.
fn gauges(page: &str) -> String {
    let is_gauge = |line: &&str| {
        let name = line.split(['{', ' ']).next();
        let of = |metric: &&Metric| Some(metric.row().facade) == name && metric.row().kind == MetricKind::UpDown;
        Metric::ALL.iter().any(|metric| of(&metric))
    };
    page.lines().filter(is_gauge).collect::<Vec<_>>().join("\n")
}

fn expect(holds: bool, what: &str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(format!("this is not so: {what}").into()) }
}
