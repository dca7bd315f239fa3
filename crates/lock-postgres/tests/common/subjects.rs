//! The lockers of this crate as subjects of the conformance suite and of the cancel sweep, on a throw-away cluster.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distributed_lock::{
    Backend, Error, ErrorKind, Inspect, Instrumented, LockKey, Locker, Result, ScopedLocker,
    breaker::{BreakerConfig, CircuitBreaker},
};
use lock_postgres::{KeyScheme, PostgresConfig, PostgresLocker, PostgresScopedLocker, PostgresSharedSession};
use lock_testkit::{
    Cluster, Observer,
    conformance::{Missing, Store, Subject, Suite, Time},
    observe::AdvisoryLock,
};

/// `postgres` and `postgres_scoped` on pools of their own, `postgres_pool` and `postgres_pool_scoped` on one of the user's,
/// `postgres_shared` on lanes; and some of them inside a circuit breaker, instrumented, or in the whole stack of both.
pub(crate) fn subjects() -> Vec<Arc<dyn Subject>> {
    use {Around::*, Pool::*};
    const LOCKER: &[Suite] = &[Suite::Locker];
    const SCOPED: &[Suite] = &[Suite::Scoped];
    const BOTH: &[Suite] = &[Suite::Locker, Suite::Scoped];
    let subjects = [
        ("postgres", LOCKER, Own, Nothing),
        ("postgres_scoped", SCOPED, Own, Nothing),
        ("postgres_pool", LOCKER, Users, Nothing),
        ("postgres_pool_scoped", SCOPED, Users, Nothing),
        ("postgres_shared", LOCKER, Lanes, Nothing),
        ("postgres_breaker", LOCKER, Own, Breaker),
        ("postgres_breaker_scoped", SCOPED, Own, Breaker),
        ("postgres_shared_breaker", LOCKER, Lanes, Breaker),
        ("instrumented_postgres", BOTH, Own, Telemetry),
        ("instrumented_shared", LOCKER, Lanes, Telemetry),
        ("stack_postgres", BOTH, Own, Stack),
        ("stack_shared", LOCKER, Lanes, Stack),
    ];
    let subject = |(name, suites, pool, around)| Arc::new(Postgres { name, suites, pool, around }) as Arc<dyn Subject>;
    subjects.into_iter().map(subject).collect()
}

#[derive(Debug)]
struct Postgres {
    name: &'static str,
    suites: &'static [Suite],
    pool: Pool,
    around: Around,
}

/// So soon that a wait is explained in every case that has one.
const SOON: Duration = Duration::from_millis(1);

/// Whose connections the lockers use.
#[derive(Clone, Copy, Debug)]
enum Pool {
    Own,
    Users,
    /// Those of a shared session.
    Lanes,
}

/// The wrappers around a locker.
#[derive(Clone, Copy, Debug)]
enum Around {
    Nothing,
    Breaker,
    Telemetry,
    /// As a program has them: telemetry around a breaker.
    Stack,
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
        Ok(Arc::new(PostgresStore { url: cluster.url(), pool: self.pool, around: self.around, observer }))
    }
}

struct PostgresStore {
    url: String,
    pool: Pool,
    around: Around,
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

    fn wrapped(&self, locker: impl Locker + Inspect) -> Result<Arc<dyn Locker>> {
        Ok(match self.around {
            Around::Nothing => Arc::new(locker),
            Around::Breaker => Arc::new(breaker(locker)?),
            Around::Telemetry => Arc::new(Instrumented::new(locker).explaining_waits(SOON)),
            Around::Stack => Arc::new(Instrumented::new(breaker(locker)?).explaining_waits(SOON)),
        })
    }

    async fn locks(&self, key: &LockKey) -> Result<Vec<AdvisoryLock>> {
        let id = KeyScheme::default().id(0, key);
        self.observer.holders(id).await.map_err(failed)
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn locker(&self) -> Result<Option<Arc<dyn Locker>>> {
        let pool = PostgresConfig::for_pool();
        // So that the case of the request to step down is one for it.
        let lanes = PostgresConfig::from_url(&self.url).with_hand_over(true);
        Ok(Some(match self.pool {
            Pool::Own => self.wrapped(PostgresLocker::from_url(&self.url)?)?,
            Pool::Users => self.wrapped(PostgresLocker::with_pool(self.users_pool()?, &pool)?)?,
            Pool::Lanes => self.wrapped(PostgresSharedSession::new(&lanes)?)?,
        }))
    }

    async fn scoped(&self) -> Result<Option<Arc<dyn ScopedLocker>>> {
        let locker = match self.pool {
            Pool::Own => PostgresScopedLocker::from_url(&self.url)?,
            Pool::Users => PostgresScopedLocker::with_pool(self.users_pool()?, &PostgresConfig::for_pool())?,
            Pool::Lanes => return Ok(None),
        };
        Ok(Some(match self.around {
            Around::Nothing => Arc::new(locker),
            Around::Breaker => Arc::new(breaker(locker)?),
            Around::Telemetry => Arc::new(Instrumented::new(locker).explaining_waits(SOON)),
            Around::Stack => Arc::new(Instrumented::new(breaker(locker)?).explaining_waits(SOON)),
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

fn breaker<L: Backend>(locker: L) -> Result<CircuitBreaker<L>> {
    Ok(CircuitBreaker::new(locker, BreakerConfig::new())?)
}
