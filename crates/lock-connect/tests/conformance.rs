//! The conformance suite over lockers that were built from nothing but a provider's URL, as trait objects.

use std::sync::Arc;

use async_trait::async_trait;
use distributed_lock::{Locker, Result, ScopedLocker};
use libtest_mimic::Arguments;
use lock_connect::LockConfig;
use lock_testkit::conformance::{self, Missing, Store, Subject, Suite, Time};

fn main() {
    let subjects: Vec<Arc<dyn Subject>> = vec![
        Arc::new(Memory { stack: false }),
        #[cfg(any(feature = "metrics", feature = "tracing"))]
        Arc::new(Memory { stack: true }),
        #[cfg(feature = "postgres")]
        Arc::new(postgres::Postgres),
    ];
    libtest_mimic::run(&Arguments::from_args(), conformance::trials(subjects)).exit();
}

/// `stack`: with everything around it.
#[derive(Debug)]
struct Memory {
    stack: bool,
}

#[async_trait]
impl Subject for Memory {
    fn name(&self) -> &str {
        if self.stack { "connect_stack" } else { "connect_memory" }
    }
    fn time(&self) -> Time {
        Time::Paused
    }
    fn suites(&self) -> &[Suite] {
        &[Suite::Locker, Suite::Scoped]
    }
    async fn open(&self) -> std::result::Result<Arc<dyn Store>, Missing> {
        let config = LockConfig::new("memory:");
        if !self.stack {
            return Ok(Arc::new(Configured(config)));
        }
        let wrappers = serde_json::json!({ "breaker": true, "telemetry": { "explain_waits_after": "1ms" } });
        let wrappers = serde_json::from_value(wrappers).map_err(|error| Missing(error.to_string()))?;
        Ok(Arc::new(Configured(config.overlaid_by(wrappers))))
    }
}

/// The world of one configuration.
#[derive(Debug)]
struct Configured(LockConfig);

#[async_trait]
impl Store for Configured {
    async fn locker(&self) -> Result<Option<Arc<dyn Locker>>> {
        self.0.locker().map(Some)
    }
    async fn scoped(&self) -> Result<Option<Arc<dyn ScopedLocker>>> {
        self.0.scoped_locker().map(Some)
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use distributed_lock::{Error, ErrorKind, LockKey};
    use lock_postgres::KeyScheme;
    use lock_testkit::{Cluster, Observer, observe::AdvisoryLock};

    use super::*;

    #[derive(Debug)]
    pub(super) struct Postgres;

    #[async_trait]
    impl Subject for Postgres {
        fn name(&self) -> &str {
            "connect_postgres"
        }
        fn time(&self) -> Time {
            Time::Real
        }
        fn suites(&self) -> &[Suite] {
            &[Suite::Locker, Suite::Scoped]
        }
        async fn open(&self) -> std::result::Result<Arc<dyn Store>, Missing> {
            let cluster = Cluster::shared().map_err(|missing| Missing(missing.to_string()))?;
            let observer = Observer::connect(&cluster.admin_config("postgres")).await;
            let observer = observer.map_err(|error| Missing(format!("the started cluster refused us: {error}")))?;
            Ok(Arc::new(Seen { configured: Configured(LockConfig::new(cluster.url())), observer }))
        }
    }

    /// The same, with somebody who looks at the server from outside.
    struct Seen {
        configured: Configured,
        observer: Observer,
    }

    impl std::fmt::Debug for Seen {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.configured.fmt(f)
        }
    }

    impl Seen {
        async fn locks(&self, key: &LockKey) -> Result<Vec<AdvisoryLock>> {
            self.observer.holders(KeyScheme::default().id(0, key)).await.map_err(failed)
        }
    }

    #[async_trait]
    impl Store for Seen {
        async fn locker(&self) -> Result<Option<Arc<dyn Locker>>> {
            self.configured.locker().await
        }
        async fn scoped(&self) -> Result<Option<Arc<dyn ScopedLocker>>> {
            self.configured.scoped().await
        }
        async fn lose(&self, key: &LockKey) -> Result<bool> {
            let mut ended = false;
            for holder in self.locks(key).await?.into_iter().filter(|lock| lock.granted) {
                if let Some(pid) = holder.pid {
                    ended |= self.observer.terminate(pid).await.map_err(failed)?;
                }
            }
            Ok(ended)
        }
        async fn waiters(&self, key: &LockKey) -> Result<Option<usize>> {
            Ok(Some(self.locks(key).await?.iter().filter(|lock| !lock.granted).count()))
        }
        async fn leftovers(&self, key: &LockKey) -> Result<Vec<String>> {
            Ok(self.locks(key).await?.iter().map(|lock| format!("{lock:?}")).collect())
        }
    }

    fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::new(ErrorKind::Other, "the test's own connection failed").with_source(error)
    }
}
