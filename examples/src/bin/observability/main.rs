//! What locks tell: two services on one store in metrics and in spans, through waits, losses, an outage and a hand-over.
//!
//! ```sh
//! cargo run -p examples --bin observability                           # on a PostgreSQL of its own, if that is installed
//! LOCK_TEST_PG_BIN= cargo run -p examples --bin observability         # in memory
//! DATABASE_URL=postgres://user@localhost/app cargo run -p examples --bin observability
//! ```
//!
//! Prints the gauges while one service waits for the other, the page that Prometheus would fetch, and the spans. Then it looks
//! at what it printed, and exits 1 if a metric of `docs/telemetry.md` is missing, or why the waiter waited.

mod acts;
mod store;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use distributed_lock::breaker::{BreakerConfig, CircuitBreaker};
use distributed_lock::telemetry::{self, BUCKETS, Telemetry};
use distributed_lock::{Backend, Instrumented};
use examples::{Spans, observed};
use metrics_exporter_prometheus::PrometheusBuilder;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{layer::SubscriberExt, util::SubscriberInitExt};

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<ExitCode, Failure> {
    // 1. Whoever is installed hears of everything. A service serves `recorder.render()` at `/metrics`, with the server it has.
    let recorder = PrometheusBuilder::new().set_buckets(&BUCKETS)?.install_recorder()?;
    telemetry::describe();
    let spans = Spans::default();
    tracing_subscriber::registry().with(LevelFilter::INFO).with(spans.clone()).init();

    // 2. The store tells of its connections, the breaker of its state, and `Instrumented` around both of what callers see.
    let telemetry = Telemetry::new();
    let choice = telemetry.clone();
    let store = tokio::task::spawn_blocking(move || store::Store::choose(&choice)).await??;
    let locker = |service: &store::Service| -> Result<acts::Stack, Failure> {
        let config = BreakerConfig::new().with_min_samples(3).with_error_rate(20);
        let breaker = CircuitBreaker::new(service.locker.clone(), config)?.with_telemetry(telemetry.clone());
        let locker = Instrumented::new(breaker).with_telemetry(telemetry.clone());
        // In a service, seconds.
        Ok(locker.explaining_waits(Duration::from_millis(500)))
    };
    let (billing, reports) = (locker(&store.billing)?, locker(&store.reports)?);
    let mut printed = Printed::default();
    printed.say(&store.place);
    printed.say(&format!("each service has {billing}"));

    // 3. What happens to locks in the course of a year.
    let meanwhile = acts::wait_for_another_service(&billing, &reports, &recorder, &spans).await?;
    acts::run_under_a_lock(&store.reports, &telemetry).await?;
    acts::lose_a_lock(&billing, &reports).await?;
    acts::use_up_the_pool(&reports, &store).await?;
    acts::leave_before_the_answer(&store, &recorder).await?;
    acts::hand_over_through_an_outage(&reports, &store, &telemetry, &recorder).await?;
    for locker in [&billing, &reports] {
        locker.close().await?;
    }
    for service in [&store.billing, &store.reports] {
        service.leases.close().await?;
    }

    // 4. What is to be seen of it. The buckets are for Prometheus; here they would be most of the page.
    let page = recorder.render();
    let (page, buckets): (Vec<_>, Vec<_>) = page.lines().partition(|line| !line.contains("_bucket{"));
    printed.say(&format!("\n{}\n{meanwhile}", observed::MEANWHILE));
    printed.say(&format!("\n{}\n{}", observed::PAGE, page.join("\n")));
    printed.say(&format!("({} lines of buckets are left out)", buckets.len()));
    printed.say(&format!("\n{}\n{spans}", observed::SPANS));

    // 5. And whether it is all there.
    let faults = observed::faults(&printed.0);
    for fault in &faults {
        eprintln!("observability: {fault}");
    }
    if !faults.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    println!("nothing is missing");
    Ok(ExitCode::SUCCESS)
}

/// Everything that was printed so far.
#[derive(Default)]
struct Printed(String);

impl Printed {
    fn say(&mut self, text: &str) {
        println!("{text}");
        self.0.push_str(text);
        self.0.push('\n');
    }
}
