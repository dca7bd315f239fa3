//! The lockers of this crate as subjects of the conformance suite and of the cancel sweep, on a throw-away cluster.

use std::sync::Arc;

use async_trait::async_trait;
use distributed_lock::{
    Error, ErrorKind, LockKey, Locker, Result, ScopedLocker,
    breaker::{BreakerConfig, CircuitBreaker},
};
use lock_postgres::{KeyScheme, PostgresConfig, PostgresLocker, PostgresScopedLocker, PostgresSharedSession};
use lock_testkit::{
    Cluster, Observer,
    conformance::{Missing, Store, Subject, Suite, Time},
    observe::AdvisoryLock,
};

/// `postgres` and `postgres_scoped` on pools of their own, `postgres_pool` and `postgres_pool_scoped` on one of the user's,
/// `postgres_shared` on lanes; and some of them inside a circuit breaker.
pub(crate) fn subjects() -> Vec<Arc<dyn Subject>> {
    vec![
        Arc::new(Postgres { name: "postgres", suites: &[Suite::Locker], pool: Pool::Own, breaker: false }),
        Arc::new(Postgres { name: "postgres_scoped", suites: &[Suite::Scoped], pool: Pool::Own, breaker: false }),
        Arc::new(Postgres { name: "postgres_pool", suites: &[Suite::Locker], pool: Pool::Users, breaker: false }),
        Arc::new(Postgres {
            name: "postgres_pool_scoped",
            suites: &[Suite::Scoped],
            pool: Pool::Users,
            breaker: false,
        }),
        Arc::new(Postgres { name: "postgres_shared", suites: &[Suite::Locker], pool: Pool::Lanes, breaker: false }),
        Arc::new(Postgres { name: "postgres_breaker", suites: &[Suite::Locker], pool: Pool::Own, breaker: true }),
        Arc::new(Postgres {
            name: "postgres_breaker_scoped",
            suites: &[Suite::Scoped],
            pool: Pool::Own,
            breaker: true,
        }),
        Arc::new(Postgres {
            name: "postgres_shared_breaker",
            suites: &[Suite::Locker],
            pool: Pool::Lanes,
            breaker: true,
        }),
    ]
}

#[derive(Debug)]
struct Postgres {
    name: &'static str,
    suites: &'static [Suite],
    pool: Pool,
    breaker: bool,
}

/// Whose connections the lockers use.
#[derive(Clone, Copy, Debug)]
enum Pool {
    Own,
    Users,
    /// Those of a shared session.
    Lanes,
}

#[async_trait]
impl Subject for Postgres {
    fn name(&self) -> &str {
        self.name
    }
    fn time(&self) -> Time {
        Time::Real
    }
    fn suites(&self) -> &[Suite] {
        self.suites
    }
    fn deviation(&self, case: &str) -> Option<&'static str> {
        if let Pool::Lanes = self.pool {
            return match case {
                "loss_of_one_key_leaves_the_others_alone" => Some("the keys of one lane are lost together"),
                // What it does instead has a test of its own in the suite of shared sessions.
                "renewal_moves_the_deadline_the_holder_sees" => {
                    Some("a holder sees the end of its lane's lease, if that is nearer than the end of its TTL")
                }
                _ => None,
            };
        }
        let unpolled = "guard_dropped_while_its_runtime_is_not_polled_frees_the_key";
        matches!((self.pool, case), (Pool::Users, case) if case == unpolled)
            .then_some("only the runtime of the user's pool can close its sockets")
    }
    async fn open(&self) -> std::result::Result<Arc<dyn Store>, Missing> {
        let cluster = Cluster::shared().map_err(|missing| Missing(missing.to_string()))?;
        let config = cluster.admin_config("postgres");
        let observer = Observer::connect(&config)
            .await
            .map_err(|error| Missing(format!("the started cluster refused us: {error}")))?;
        Ok(Arc::new(PostgresStore { url: cluster.url(), pool: self.pool, breaker: self.breaker, observer }))
    }
}

struct PostgresStore {
    url: String,
    pool: Pool,
    breaker: bool,
    observer: Observer,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PostgresStore")
    }
}

impl PostgresStore {
    fn users_pool(&self) -> Result<deadpool_postgres::Pool> {
        let config = self.url.parse().map_err(failed)?;
        let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
        deadpool_postgres::Pool::builder(manager).max_size(8).build().map_err(failed)
    }

    async fn locks(&self, key: &LockKey) -> Result<Vec<AdvisoryLock>> {
        let id = KeyScheme::default().id(0, key);
        self.observer.holders(id).await.map_err(failed)
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn locker(&self) -> Result<Option<Arc<dyn Locker>>> {
        let locker: Arc<dyn Locker> = match self.pool {
            Pool::Own => Arc::new(PostgresLocker::from_url(&self.url)?),
            Pool::Users => Arc::new(PostgresLocker::with_pool(self.users_pool()?, &PostgresConfig::for_pool())?),
            Pool::Lanes => {
                // So that the case of the request to step down is one for it.
                let config = PostgresConfig::from_url(&self.url).with_hand_over(true);
                Arc::new(PostgresSharedSession::new(&config)?)
            }
        };
        Ok(Some(match self.breaker {
            true => Arc::new(CircuitBreaker::new(locker, BreakerConfig::new())?),
            false => locker,
        }))
    }

    async fn scoped(&self) -> Result<Option<Arc<dyn ScopedLocker>>> {
        let locker = match self.pool {
            Pool::Own => PostgresScopedLocker::from_url(&self.url)?,
            Pool::Users => PostgresScopedLocker::with_pool(self.users_pool()?, &PostgresConfig::for_pool())?,
            Pool::Lanes => return Ok(None),
        };
        Ok(Some(match self.breaker {
            true => Arc::new(CircuitBreaker::new(locker, BreakerConfig::new())?),
            false => Arc::new(locker),
        }))
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
