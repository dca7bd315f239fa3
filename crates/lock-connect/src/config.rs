use std::{ffi::OsString, fmt, sync::Arc};

use distributed_lock::{
    InvalidInput, Locker, MemoryLocker, Result, ScopedLocker, backend::Fields, telemetry::Telemetry,
};
use serde::Deserialize;

use crate::{
    around::Around,
    breaker,
    provider::{Chosen, PARTS},
    telemetry,
};

/// Which locks a program uses. Read by serde, from the environment, or made of a provider; judged when a locker is built.
///
/// | field | default | rule |
/// |---|---|---|
/// | `provider` | none | `memory`, `noop` or `postgres`, or a `postgres://` URL; upper and lower case are the same |
/// | `memory.scoped_ttl` | `"30s"` | the TTL of the holds that bodies run under, `"1ms"` to `"366days"` |
/// | `postgres.…` | | the fields of `PostgresConfig`; `postgres.url` must be given unless the provider is the URL |
/// | `breaker.…` | no breaker | the fields of [`BreakerConfig`](distributed_lock::breaker::BreakerConfig); `breaker = true` is one with defaults |
/// | `telemetry.class` | none | the label `lock.class`: 1 to 40 of a-z, A-Z, 0-9, `.`, `_` and `-`; few values, never made of a lock's name |
/// | `telemetry.explain_waits_after` | no wait is explained | `"1ms"` to `"24h"` |
/// | `telemetry` | nothing is told | `true` without further settings: an [`Instrumented`](distributed_lock::Instrumented), outermost; refused where nobody could be told |
///
/// Only the part of the chosen provider is judged, so a file can have several and the environment choose. What breaks a rule
/// there, and every field that does not exist, is in one error, each with its path, its value and the rule, without secrets.
///
/// All lockers of one configuration and its clones exclude each other, in memory too. Two configurations that were read one by one
/// have two stores in memory, where on a server they would share one.
///
/// It cannot be written: it holds secrets. `Debug` shows which fields are given and no value.
///
/// ```
/// use lock_connect::LockConfig;
///
/// #[derive(serde::Deserialize)]
/// struct App {
///     port: u16,
///     locks: LockConfig,
/// }
///
/// let app: App = serde_json::from_str(r#"{ "port": 80, "locks": { "provider": "memory" } }"#)?;
/// assert_eq!(app.locks.locker()?.to_string(), "Memory");
/// # assert_eq!(app.port, 80);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Deserialize)]
#[serde(from = "Fields")]
pub struct LockConfig {
    fields: Fields,
    /// The store of the provider `memory`, which its lockers are peers on.
    memory: Arc<MemoryLocker>,
    /// Where the part `telemetry` tells.
    telemetry: Telemetry,
}

impl LockConfig {
    /// Everything else at its default.
    ///
    /// ```
    /// use lock_connect::LockConfig;
    ///
    /// assert_eq!(LockConfig::new("memory:").locker()?.to_string(), "Memory");
    /// # Ok::<(), distributed_lock::Error>(())
    /// ```
    pub fn new(provider: impl Into<String>) -> Self {
        Fields::default().with_text("provider", provider).into()
    }

    /// From the variables whose names begin with this prefix, which nothing else may use: with `APP_LOCKS_` they are
    /// `APP_LOCKS_PROVIDER`, `APP_LOCKS_POSTGRES_POOL_SIZE` and so on.
    ///
    /// ```
    /// use lock_connect::LockConfig;
    ///
    /// // In a program: LockConfig::from_vars("APP_LOCKS_", std::env::vars_os())
    /// let vars = [("APP_LOCKS_PROVIDER", "memory"), ("APP_LOCKS_MEMORY_SCOPED_TTL", "10s")];
    /// let config = LockConfig::from_vars("APP_LOCKS_", vars.map(|(name, value)| (name.into(), value.into())));
    /// assert_eq!(config.scoped_locker()?.to_string(), "Scoped(Memory)");
    /// # Ok::<(), distributed_lock::Error>(())
    /// ```
    pub fn from_vars(prefix: &str, vars: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let [memory, postgres] = PARTS;
        Fields::from_vars(prefix, &[memory, postgres, "breaker", "telemetry"], vars).into()
    }

    /// The same with the fields of another one over its own: settings from a file, secrets from the environment.
    ///
    /// ```
    /// use lock_connect::LockConfig;
    ///
    /// let file: LockConfig = toml::from_str("provider = 'noop'")?;
    /// assert_eq!(file.overlaid_by(LockConfig::new("memory")).locker()?.to_string(), "Memory");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn overlaid_by(mut self, over: Self) -> Self {
        self.fields.overlay(over.fields);
        self
    }

    /// The same, whose part `telemetry` tells this one: with a meter, or of a class, which `telemetry.class` goes over. It is told nothing
    /// unless there is that part. Without this it is [`Telemetry::new`], and [`overlaid_by`](Self::overlaid_by) leaves it as it is.
    ///
    /// ```
    /// # #[cfg(not(feature = "otel"))]
    /// # fn main() {}
    /// # #[cfg(feature = "otel")]
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use distributed_lock::{LockerExt, telemetry::Telemetry};
    /// use lock_connect::LockConfig;
    /// use opentelemetry::metrics::MeterProvider;
    /// use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
    ///
    /// let exporter = InMemoryMetricExporter::default(); // stands for the one of your program
    /// let provider = SdkMeterProvider::builder().with_reader(PeriodicReader::builder(exporter.clone()).build()).build();
    ///
    /// let config: LockConfig = toml::from_str("provider = 'memory'\ntelemetry.class = 'billing'")?;
    /// let config = config.with_telemetry(Telemetry::new().with_meter(&provider.meter("app")));
    /// let locker = config.locker()?;
    /// locker.acquire("orders", Duration::from_secs(30)).await?.release().await?.exclusive()?;
    ///
    /// provider.force_flush()?;
    /// let seen = format!("{:?}", exporter.get_finished_metrics()?);
    /// assert!(seen.contains("lock.hold.duration") && seen.contains("billing") && !seen.contains("orders"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_telemetry(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = telemetry;
        self
    }

    /// A locker of the chosen provider. Connects when it is first used: `ping` tells whether the store is there, and `close` ends
    /// what it holds.
    ///
    /// # Errors
    /// `InvalidInput` with every fault of the configuration as its source.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distributed_lock::LockerExt;
    /// use lock_connect::LockConfig;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = LockConfig::new("memory");
    /// let [ours, theirs] = [config.locker()?, config.locker()?];
    /// let _guard = ours.acquire("orders", Duration::from_secs(30)).await?;
    /// assert!(theirs.try_acquire("orders", Duration::from_secs(30)).await?.is_contended());
    /// # Ok(()) }
    /// ```
    pub fn locker(&self) -> Result<Arc<dyn Locker>> {
        let (chosen, around) = self.chosen()?;
        chosen.locker(&self.memory, around)
    }

    /// A locker of the chosen provider that runs bodies. As [`locker`](Self::locker).
    ///
    /// # Errors
    /// `InvalidInput` with every fault of the configuration as its source.
    ///
    /// ```
    /// use distributed_lock::ScopedLockerExt;
    /// use lock_connect::LockConfig;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockConfig::new("memory").scoped_locker()?;
    /// assert_eq!(locks.with_lock("orders", async |_hold| 7).await?, 7);
    /// # Ok(()) }
    /// ```
    pub fn scoped_locker(&self) -> Result<Arc<dyn ScopedLocker>> {
        let (chosen, around) = self.chosen()?;
        chosen.scoped_locker(&self.memory, around)
    }

    /// The provider, and what goes around its lockers.
    fn chosen(&self) -> Result<(Chosen, Around), InvalidInput> {
        let mut fields = self.fields.clone();
        let chosen = Chosen::read(&mut fields);
        let around =
            Around { breaker: breaker::read(&mut fields), seen: telemetry::read(&mut fields, &self.telemetry) };
        for part in PARTS {
            fields.ignore(part);
        }
        fields.finish()?;
        // What was not chosen is a fault, so that this is the last one to hear of it.
        Ok((chosen.ok_or_else(Chosen::missing)?, around))
    }
}

impl From<Fields> for LockConfig {
    fn from(fields: Fields) -> Self {
        Self { fields, memory: Arc::default(), telemetry: Telemetry::new() }
    }
}

impl fmt::Debug for LockConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockConfig").field(&self.fields).finish()
    }
}
