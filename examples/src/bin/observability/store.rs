//! Where the locks live, and what can go wrong on the way there.

use std::env;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::Duration;

use distributed_lock::telemetry::Telemetry;
use distributed_lock::{ErrorKind, Inspect, Locker, MemoryLocker};
use examples::observed::IN_MEMORY;
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresSharedSession};
use lock_testkit::postgres::{Cluster, StartError};
use lock_testkit::proxy::{Flow, Proxy};

use crate::Failure;

/// How many connections a service has.
pub(crate) const POOL: usize = 3;

/// A locker that also shows who holds and who waits, as all of ours do.
pub(crate) trait Observable: Locker + Inspect {}
impl<L: Locker + Inspect> Observable for L {}

/// What one service has: a locker, and one for the jobs of its lease runner.
pub(crate) struct Service {
    pub(crate) locker: Arc<dyn Observable>,
    pub(crate) leases: Arc<dyn Observable>,
}

/// Two services on one store. In real life they are two programs on two machines.
pub(crate) struct Store {
    pub(crate) place: String,
    pub(crate) billing: Service,
    pub(crate) reports: Service,
    /// From `reports` to the store.
    pub(crate) way: Way,
    /// Ends when it is dropped.
    _server: Option<Cluster>,
}

pub(crate) enum Way {
    Network(Proxy),
    Memory([Arc<MemoryLocker>; 2]),
}

impl Way {
    /// Nothing comes through any more. In memory, where nothing can be cut, the next call fails.
    pub(crate) fn cut(&self) {
        match self {
            Self::Network(proxy) => proxy.cut(),
            Self::Memory(lockers) => lockers.iter().for_each(|locker| locker.fail_next(ErrorKind::Unavailable)),
        }
    }

    pub(crate) fn heal(&self) {
        if let Self::Network(proxy) = self {
            proxy.pass();
        }
    }

    /// Every answer is late by so much. In memory there is none that could be under way.
    pub(crate) fn slow_answers(&self, by: Duration) {
        if let Self::Network(proxy) = self {
            proxy.down(Flow::Delay(by));
        }
    }
}

impl Store {
    /// On the PostgreSQL of `DATABASE_URL`, else on one of its own where the programs are installed, else in memory.
    pub(crate) fn choose(telemetry: &Telemetry) -> Result<Self, Failure> {
        if let Ok(url) = env::var("DATABASE_URL") {
            return Self::postgres("the locks are on the PostgreSQL of DATABASE_URL".into(), &url, None, telemetry);
        }
        match Cluster::start() {
            Ok(server) => {
                let place = format!("the locks are on a PostgreSQL {} of its own", server.major_version());
                let url = server.url();
                Self::postgres(place, &url, Some(server), telemetry)
            }
            Err(StartError::Missing(_)) => Ok(Self::memory()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn in_memory(&self) -> bool {
        matches!(self.way, Way::Memory(_))
    }

    fn postgres(place: String, url: &str, server: Option<Cluster>, telemetry: &Telemetry) -> Result<Self, Failure> {
        let proxy = Proxy::start(address(url)?)?;
        let through = url.replacen(host_and_port(url)?, &proxy.address().to_string(), 1);
        Ok(Self {
            place,
            billing: Self::service("billing", url, telemetry)?,
            reports: Self::service("reports", &through, telemetry)?,
            way: Way::Network(proxy),
            _server: server,
        })
    }

    fn service(name: &str, url: &str, telemetry: &Telemetry) -> Result<Service, Failure> {
        // The server shows this name to everybody who asks who holds a lock.
        let url = format!("{url}{}application_name={name}", if url.contains('?') { '&' } else { '?' });
        let config = PostgresConfig::from_url(url)
            .with_telemetry(telemetry.clone()) // connections, lanes, ghosts
            .with_pool_size(POOL)
            .with_conn_wait_timeout(Duration::from_secs(1));
        let leases = PostgresSharedSession::new(&config)?;
        Ok(Service { locker: Arc::new(PostgresLocker::new(&config)?), leases: Arc::new(leases) })
    }

    fn memory() -> Self {
        let store = MemoryLocker::new();
        let locker = |name: &str| Arc::new(store.peer().with_application_name(name));
        let reports = [locker("reports"), locker("reports")];
        let [for_locks, for_leases] = reports.clone();
        Self {
            place: IN_MEMORY.into(),
            billing: Service { locker: locker("billing"), leases: locker("billing") },
            reports: Service { locker: for_locks, leases: for_leases },
            way: Way::Memory(reports),
            _server: None,
        }
    }
}

/// What stands in a URL between the user and the database.
fn host_and_port(url: &str) -> Result<&str, Failure> {
    let (_scheme, rest) = url.split_once("://").ok_or("DATABASE_URL must be a URL here")?;
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    let server = authority.rsplit('@').next().filter(|server| !server.is_empty());
    server.ok_or_else(|| "DATABASE_URL must name a host here: the way to it is to be cut".into())
}

fn address(url: &str) -> Result<std::net::SocketAddr, Failure> {
    let server = host_and_port(url)?;
    let has_port = server.rsplit(']').next().is_some_and(|after| after.contains(':'));
    let server = if has_port { server.to_owned() } else { format!("{server}:5432") };
    server.to_socket_addrs()?.next().ok_or_else(|| "the host of DATABASE_URL has no address".into())
}
