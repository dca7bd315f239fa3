//! What lockers tell of real servers: golden metrics through a meter of OpenTelemetry, and why somebody waits.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test; clippy knows only those of the standard harness")]

#[allow(dead_code, reason = "the other targets need more of it")]
#[path = "common/bench.rs"]
mod bench;
#[path = "../../distributed-lock/tests/telemetry/meter.rs"]
mod meter;
#[path = "../../distributed-lock/tests/spans/tracer.rs"]
mod tracer;

use std::{future::Future, time::Duration};

use distributed_lock::{
    Attempt, Backend, Contention, Instrumented, Locker, LockerExt, ScopedLockerExt, ScopedOptions, Ttl, Wait,
    telemetry::Telemetry,
};
use libtest_mimic::{Arguments, Trial};
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresScopedLocker};
use lock_testkit::wait_until;
use tokio::time::sleep;

use bench::{AMPLE, Server, contention, ms};
use meter::Exported;
use tracer::Traced;

fn main() {
    let mut trials = vec![
        trial("saturated_pool_is_told_apart_from_contention_and_counted_at_the_pool", saturated_pool),
        trial("contended_scoped_call_is_counted_once_with_its_body_apart", contended_scoped_call),
        trial("wait_for_a_connection_is_counted_though_it_ends_well", wait_for_a_connection),
        trial("long_wait_names_the_holders_application_and_backend", explained),
        trial("long_wait_for_a_connection_says_that_none_was_free", explained_saturation),
        trial("canary_password_is_in_no_metric_span_line_or_error", canary_password),
    ];
    trials.extend(shared::trials());
    let trials: Vec<Trial> = trials;
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// A trial with a subscriber, whether it looks at it or not: tracing asks once for each span and line whether anybody wants it, and while
/// there is one subscriber alone it asks in the thread that comes there first. One without a subscriber would answer no for all others.
fn trial<F: Future<Output = ()>>(name: &str, body: impl FnOnce(Server) -> F + Send + 'static) -> Trial {
    bench::trial(name, |server| async {
        let (_traced, _subscriber) = Traced::start();
        body(server).await;
    })
}

fn telemetry(exported: &Exported) -> Telemetry {
    Telemetry::new().with_meter(&exported.meter())
}

fn instrumented<L: Locker>(locker: L, exported: &Exported) -> Instrumented<L> {
    Instrumented::new(locker).with_telemetry(telemetry(exported))
}

/// Without their durations, which a real server decides: of a histogram how many values came.
fn counts(exported: &Exported) -> Vec<String> {
    exported.lines().iter().map(|line| line.split("x, ").next().unwrap().to_owned()).collect()
}

async fn until(exported: &Exported, line: &str) {
    let seen = wait_until(AMPLE, line, async || exported.lines().iter().any(|told| told == line)).await;
    assert!(seen.is_ok(), "{line} is not in {:?}", exported.lines());
}

async fn saturated_pool(server: Server) {
    let exported = Exported::new();
    let config = server.config().with_pool_size(1).with_telemetry(telemetry(&exported));
    let config = config.with_conn_wait_timeout(ms(50));
    let locker = instrumented(PostgresLocker::new(&config).unwrap(), &exported);
    let guard = locker.acquire("a", Ttl::UNTIL_RELEASED).await.unwrap();
    let asked = locker.try_acquire("b", Ttl::UNTIL_RELEASED).await.unwrap();
    assert_eq!(contention(asked), Contention::NoConnection);
    guard.release().await.unwrap().exclusive().unwrap();
    const POOL: &str = "db.client.connection.pool.name=lock-postgres";
    assert_eq!(
        counts(&exported),
        [
            format!("db.client.connection.count[{{connection}}]{{{POOL},db.client.connection.state=idle}} 1"),
            format!("db.client.connection.count[{{connection}}]{{{POOL},db.client.connection.state=used}} 0"),
            format!("db.client.connection.create_time[s]{{{POOL}}} 1"),
            format!("db.client.connection.pending_requests[{{request}}]{{{POOL}}} 0"),
            format!("db.client.connection.timeouts[{{timeout}}]{{{POOL}}} 1"),
            format!("db.client.connection.wait_time[s]{{{POOL}}} 1"),
            "lock.held[{hold}]{lock.backend=Postgres} 0".into(),
            "lock.hold.duration[s]{lock.backend=Postgres,lock.outcome=released} 1".into(),
            "lock.release.duration[s]{lock.backend=Postgres,lock.outcome=released} 1".into(),
            "lock.saturations[{call}]{lock.backend=Postgres} 1".into(),
            "lock.wait.duration[s]{lock.backend=Postgres,lock.outcome=acquired} 1".into(),
            "lock.wait.duration[s]{lock.backend=Postgres,lock.outcome=no_connection} 1".into(),
            "lock.waiting[{call}]{lock.backend=Postgres} 0".into(),
        ]
    );
    locker.close().await.unwrap();
    until(
        &exported,
        &format!("db.client.connection.count[{{connection}}]{{{POOL},db.client.connection.state=idle}} 0"),
    )
    .await;
}

async fn wait_for_a_connection(server: Server) {
    let exported = Exported::new();
    let config = server.config().with_pool_size(1).with_telemetry(telemetry(&exported));
    let locker = instrumented(PostgresLocker::new(&config).unwrap(), &exported);
    let guard = locker.acquire("a", Ttl::UNTIL_RELEASED).await.unwrap();
    let release = async {
        until(&exported, "lock.saturations[{call}]{lock.backend=Postgres} 1").await;
        guard.release().await.unwrap().exclusive().unwrap();
    };
    let (other, ()) = tokio::join!(locker.acquire("b", Ttl::UNTIL_RELEASED), release);
    other.unwrap().release().await.unwrap().exclusive().unwrap();
    let counts = counts(&exported);
    assert!(
        counts.contains(&"lock.wait.duration[s]{lock.backend=Postgres,lock.outcome=acquired} 2".into()),
        "{counts:?}"
    );
    assert!(!counts.iter().any(|line| line.starts_with("lock.contentions")), "{counts:?}");
    assert!(!counts.iter().any(|line| line.starts_with("db.client.connection.timeouts")), "{counts:?}");
}

async fn contended_scoped_call(server: Server) {
    let exported = Exported::new();
    let holder = server.locker();
    let guard = holder.acquire("orders", Ttl::UNTIL_RELEASED).await.unwrap();
    let locks = PostgresScopedLocker::new(&server.config()).unwrap();
    let locks = Instrumented::new(locks).with_telemetry(telemetry(&exported));
    let release = async {
        server.waiters(1).await;
        sleep(ms(200)).await;
        guard.release().await.unwrap().exclusive().unwrap();
    };
    let options = ScopedOptions::new(Wait::Forever).with_class("order");
    let body = async |_hold| sleep(Duration::from_secs(1)).await;
    let (ran, ()) = tokio::join!(locks.with_lock_opts("orders", options, body), release);
    assert!(matches!(ran.unwrap(), Attempt::Acquired(())));
    let of = "lock.backend=PostgresScoped,lock.class=order";
    assert_eq!(
        counts(&exported),
        [
            format!("lock.contentions[{{call}}]{{{of},lock.contention.reason=held}} 1"),
            format!("lock.held[{{hold}}]{{{of}}} 0"),
            format!("lock.hold.duration[s]{{{of},lock.outcome=released}} 1"),
            format!("lock.release.duration[s]{{{of},lock.outcome=released}} 1"),
            format!("lock.wait.duration[s]{{{of},lock.outcome=acquired}} 1"),
            format!("lock.waiting[{{call}}]{{{of}}} 0"),
        ]
    );
    let seconds = |name: &str| -> f64 {
        let lines = exported.lines();
        let line = lines.iter().find(|line| line.starts_with(name)).unwrap();
        line.split("x, ").nth(1).unwrap().parse().unwrap()
    };
    assert!(seconds("lock.wait.duration") >= 0.2, "{:?}", exported.lines());
    assert!(seconds("lock.hold.duration") >= 1.0, "{:?}", exported.lines());
    // The body's second is in neither of the others. The holder is only asked once the wait is seen, whatever that takes.
    assert!(seconds("lock.release.duration") < 1.0, "{:?}", exported.lines());
}

async fn explained(server: Server) {
    let (traced, _subscriber) = Traced::start();
    let exported = Exported::new();
    let billing = PostgresConfig::from_url(format!("{}?application_name=billing", server.url));
    let billing = PostgresLocker::new(&billing).unwrap();
    let guard = billing.acquire("orders", Ttl::UNTIL_RELEASED).await.unwrap();
    let backend = server.holder().await;
    let locker = instrumented(server.locker(), &exported).explaining_waits(ms(50));
    let release = async {
        until(&exported, "lock.wait.explanations[{call}]{lock.backend=Postgres,lock.outcome=told} 1").await;
        guard.release().await.unwrap().exclusive().unwrap();
    };
    let (got, ()) = tokio::join!(locker.acquire("orders", Ttl::UNTIL_RELEASED), release);
    got.unwrap().release().await.unwrap().exclusive().unwrap();
    let lines = traced.lines();
    let told: Vec<_> = lines.iter().filter(|line| line.contains("in lock.acquire: waiting for ")).collect();
    let [line] = told[..] else { panic!("not one line: {lines:?}") };
    assert!(line.contains(r#"for "orders": "billing" "#), "{line}");
    assert!(line.contains(&format!("session {backend}")), "{line} has not the backend {backend}");
    assert!(line.contains("1 in the queue") && line.contains("holder.held_for="), "{line}");
    assert!(line.contains("saturated=false") && !line.contains("no connection"), "{line}");
}

async fn explained_saturation(server: Server) {
    let (traced, _subscriber) = Traced::start();
    let exported = Exported::new();
    let config = server.config().with_pool_size(1).with_conn_wait_forever();
    let locker = instrumented(PostgresLocker::new(&config).unwrap(), &exported).explaining_waits(ms(50));
    let guard = locker.acquire("a", Ttl::UNTIL_RELEASED).await.unwrap();
    let release = async {
        until(&exported, "lock.wait.explanations[{call}]{lock.backend=Postgres,lock.outcome=told} 1").await;
        guard.release().await.unwrap().exclusive().unwrap();
    };
    let (got, ()) = tokio::join!(locker.acquire("b", Ttl::UNTIL_RELEASED), release);
    got.unwrap().release().await.unwrap().exclusive().unwrap();
    let lines = traced.lines();
    let line = lines.iter().find(|line| line.contains(r#"waiting for "#)).unwrap();
    let told = r#"for "b", which nobody holds just now; 0 in the queue, no connection was free"#;
    assert!(line.contains(told) && line.contains("saturated=true"), "{line}");
}

/// Everything that can be seen of a locker with a password, from an answer to a refusal.
async fn canary_password(server: Server) {
    const CANARY: &str = "canary-p4ssw0rd";
    let (traced, _subscriber) = Traced::start();
    let exported = Exported::new();
    let mut seen = Vec::new();
    let good = server.url.replace("//postgres@", &format!("//postgres:{CANARY}@"));
    assert!(good.contains(CANARY));
    let bad = good.replace(&format!(":{}/", server.port()), ":1/");
    for url in [good, bad] {
        let config = PostgresConfig::from_url(url).with_telemetry(telemetry(&exported));
        let locker = instrumented(PostgresLocker::new(&config).unwrap(), &exported).explaining_waits(ms(1));
        match locker.acquire("orders", Ttl::UNTIL_RELEASED).await {
            Ok(guard) => drop(guard),
            Err(error) => {
                let source = std::error::Error::source(&error).map(|source| format!("{source} {source:?}"));
                seen.push(format!("{error} {error:?} {source:?}"));
            }
        }
        seen.push(format!("{locker} {locker:?} {config:?}"));
    }
    assert_eq!(seen.len(), 3, "one of them is refused: {seen:?}");
    seen.extend(traced.lines());
    seen.extend(exported.lines());
    assert!(seen.len() > 10, "{seen:?}");
    assert!(seen.iter().all(|text| !text.contains(CANARY)), "{seen:?}");
}

mod shared {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use lock_postgres::PostgresSharedSession;

    use super::*;

    pub(crate) fn trials() -> Vec<Trial> {
        vec![
            trial("lanes_are_counted_while_they_are_open", lanes),
            trial("grant_whose_caller_is_gone_is_a_ghost", ghost),
        ]
    }

    async fn lanes(server: Server) {
        let exported = Exported::new();
        let session = PostgresSharedSession::new(&server.config().with_telemetry(telemetry(&exported))).unwrap();
        let locker = instrumented(session, &exported);
        let guard = locker.acquire("a", Ttl::UNTIL_RELEASED).await.unwrap();
        let refused = locker.acquire_within("a", Ttl::UNTIL_RELEASED, ms(20)).await.unwrap();
        assert_eq!(contention(refused), Contention::WaitElapsed);
        until(&exported, "lock.lanes[{connection}]{} 1").await;
        let here = "lock.contentions[{call}]{lock.backend=PostgresShared,lock.contention.reason=held_here} 1";
        until(&exported, here).await;
        guard.release().await.unwrap().exclusive().unwrap();
        locker.close().await.unwrap();
        until(&exported, "lock.lanes[{connection}]{} 0").await;
    }

    async fn ghost(server: Server) {
        let exported = Exported::new();
        let locker = PostgresSharedSession::new(&server.config().with_telemetry(telemetry(&exported))).unwrap();
        // A lane is open, so that the next call is sent at once.
        locker.acquire("a", Ttl::UNTIL_RELEASED).await.unwrap().release().await.unwrap().exclusive().unwrap();
        let ghost = "lock.ghosts[{grant}]{} ";
        assert!(exported.lines().iter().all(|line| !line.starts_with(ghost)), "{:?}", exported.lines());
        let seen = wait_until(AMPLE, "a ghost", async || {
            {
                let asking = pin!(locker.acquire("b", Ttl::UNTIL_RELEASED));
                // Dropped after its first poll.
                let _ = asking.poll(&mut Context::from_waker(Waker::noop()));
            }
            exported.lines().iter().any(|line| line.starts_with(ghost))
        });
        assert!(seen.await.is_ok(), "{:?}", exported.lines());
        locker.acquire("b", Ttl::UNTIL_RELEASED).await.unwrap().release().await.unwrap().exclusive().unwrap();
    }
}
