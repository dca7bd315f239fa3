use std::{fmt, time::Duration};

use distributed_lock::{Fencing, InvalidInput};
use serde::Deserialize;

use crate::{
    KeyScheme,
    timing::{MAX_TTL, Timing},
};

mod given;

#[cfg(test)]
mod tests;

/// How a PostgreSQL locker is set up. Checked as a whole when a locker is built from it, before anything connects.
///
/// Also read from a file by serde: the fields are named like the `with_` methods, durations are text with a unit (`"5s"`,
/// `"250ms"`, `"1m 30s"`), and a number without a unit, an unknown field or a value against its rule is refused with the
/// name of the field. A field that is left out, or null, has its default.
///
/// | field | default | rule |
/// |---|---|---|
/// | `url` | none | a `postgres://` URL or `name=value` pairs; leave it out to bring a pool |
/// | `namespace` | 0 | any 32-bit number; keys of different namespaces never meet |
/// | `pool_size` | 8 | 1 to 1000 connections; each hold and each waiter uses one |
/// | `conn_wait_timeout` | `"5s"` | how long an acquire waits for a connection; from `"1ms"`, or `"forever"` |
/// | `close_timeout` | `"10s"` | how long closing a locker may take; from `"1ms"` |
/// | `heartbeat_interval` | `"5s"`, with a TTL at most TTL/8 | see below |
/// | `query_timeout` | `"10s"`, with a TTL at most TTL/2 | see below |
/// | `session_ttl` | the smallest whole second that fits: `"17s"` | at least `"1s"`; see below |
/// | `fencing` | true | whether a grant has a fencing token, unless the acquire says; scoped runs must ask |
/// | `fencing_epoch` | 0 | 0 to 255; raise it after a restore or any other rollback of storage |
/// | `key_scheme` | `"siphash"` | or `"fnv1a"`, for sharing locks with processes of the Go original |
/// | `key_secret` | none | 32 hexadecimal digits, with `"siphash"` only |
///
/// A holder proves every `heartbeat_interval` that it still owns its lock, and an answer that takes longer than
/// `query_timeout` is a loss. The server ends a session that was silent for its TTL: the one given to the acquire, or
/// `session_ttl` for a hold until released, which is also how long a frozen holder can keep others out. Both must satisfy
/// `heartbeat_interval + query_timeout + 100 ms <= TTL - 1 % - max(TTL/10, 250 ms)`, so that a holder that is cut off knows
/// before anybody else gets in.
///
/// ```
/// use std::time::Duration;
/// use lock_postgres::PostgresConfig;
///
/// let config = PostgresConfig::from_url("postgres://app:secret@db.example/app")
///     .with_namespace(7)
///     .with_conn_wait_timeout(Duration::from_millis(250));
/// assert!(!format!("{config:?}").contains("secret"));
/// ```
#[derive(Clone, Deserialize)]
#[serde(try_from = "given::Fields")]
pub struct PostgresConfig {
    url: Option<String>,
    namespace: i32,
    pool_size: usize,
    /// `None` is for ever.
    conn_wait_timeout: Option<Duration>,
    close_timeout: Duration,
    heartbeat_interval: Option<Duration>,
    query_timeout: Option<Duration>,
    session_ttl: Option<Duration>,
    fencing: bool,
    fencing_epoch: u8,
    key_scheme: KeyScheme,
}

impl PostgresConfig {
    /// Everything at its default, for a locker with a pool of its own to this server.
    ///
    /// ```
    /// let config = lock_postgres::PostgresConfig::from_url("host=/run/postgresql user=app dbname=app");
    /// # let _ = config;
    /// ```
    pub fn from_url(url: impl Into<String>) -> Self {
        Self { url: Some(url.into()), ..Self::for_pool() }
    }

    /// Everything at its default, for a locker over a pool that you bring. `pool_size` has no effect then.
    pub fn for_pool() -> Self {
        Self {
            url: None,
            namespace: 0,
            pool_size: 8,
            conn_wait_timeout: Some(Duration::from_secs(5)),
            close_timeout: Duration::from_secs(10),
            heartbeat_interval: None,
            query_timeout: None,
            session_ttl: None,
            fencing: true,
            fencing_epoch: 0,
            key_scheme: KeyScheme::SipHash,
        }
    }

    /// The namespace that is hashed into every id.
    #[must_use]
    pub fn with_namespace(mut self, namespace: i32) -> Self {
        self.namespace = namespace;
        self
    }

    /// How many connections the locker's own pool has at most, 1 to 1000.
    #[must_use]
    pub fn with_pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections;
        self
    }

    /// How long an acquire waits for a connection before it is contended. The acquire's own budget can only shorten it.
    #[must_use]
    pub fn with_conn_wait_timeout(mut self, timeout: Duration) -> Self {
        self.conn_wait_timeout = Some(timeout);
        self
    }

    /// An acquire waits for a connection for as long as its own budget lasts.
    #[must_use]
    pub fn with_conn_wait_forever(mut self) -> Self {
        self.conn_wait_timeout = None;
        self
    }

    /// How long closing the locker may take until it gives up on a clean end of what is still held.
    #[must_use]
    pub fn with_close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// From one proof of ownership to the next.
    #[must_use]
    pub fn with_heartbeat_interval(mut self, interval: Duration) -> Self {
        self.heartbeat_interval = Some(interval);
        self
    }

    /// After how long without an answer a hold is lost.
    #[must_use]
    pub fn with_query_timeout(mut self, timeout: Duration) -> Self {
        self.query_timeout = Some(timeout);
        self
    }

    /// After how much silence the server ends the session of a hold until released.
    #[must_use]
    pub fn with_session_ttl(mut self, ttl: Duration) -> Self {
        self.session_ttl = Some(ttl);
        self
    }

    /// Whether a grant has a fencing token, unless the acquire says; `Fencing::Default` is on. A token costs one
    /// transaction id.
    ///
    /// ```
    /// use distributed_lock::Fencing;
    ///
    /// let config = lock_postgres::PostgresConfig::for_pool().with_fencing(Fencing::Off);
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn with_fencing(mut self, fencing: Fencing) -> Self {
        self.fencing = fencing != Fencing::Off;
        self
    }

    /// The highest part of every fencing token: raise it after a restore, a storage rollback, a logical failover or
    /// `pg_upgrade`, which can set back what the rest is made of.
    #[must_use]
    pub fn with_fencing_epoch(mut self, epoch: u8) -> Self {
        self.fencing_epoch = epoch;
        self
    }

    /// How names become ids; the same for all processes that share locks.
    #[must_use]
    pub fn with_key_scheme(mut self, scheme: KeyScheme) -> Self {
        self.key_scheme = scheme;
        self
    }

    /// The connection string, with its secrets.
    pub(crate) fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// The settings if all of them keep their rules, else one error that names every fault.
    pub(crate) fn settings(&self) -> Result<Settings, InvalidInput> {
        let mut faults = Vec::new();
        if !(1..=1_000).contains(&self.pool_size) {
            faults.push(InvalidInput::new("pool_size", self.pool_size, "must be 1 to 1000 connections"));
        }
        let or_forever = "must be at least 1ms and at most 24 days, or \"forever\"";
        let conn_wait = self.conn_wait_timeout;
        faults.extend(conn_wait.and_then(|timeout| out_of_range("conn_wait_timeout", timeout, or_forever)));
        let bounded = "must be at least 1ms and at most 24 days";
        faults.extend(out_of_range("close_timeout", self.close_timeout, bounded));
        let timing = Timing::for_session(self.heartbeat_interval, self.query_timeout, self.session_ttl);
        match timing {
            Ok(session) if faults.is_empty() => Ok(Settings {
                namespace: self.namespace,
                pool_size: self.pool_size,
                conn_wait,
                close_timeout: self.close_timeout,
                session,
                heartbeat: self.heartbeat_interval,
                query_timeout: self.query_timeout,
                fencing: self.fencing,
                epoch: self.fencing_epoch,
                keys: self.key_scheme,
            }),
            timing => {
                faults.extend(timing.err());
                Err(all(&faults))
            }
        }
    }
}

/// Shows neither the connection string nor the key's secret.
impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("url", &self.url.as_ref().map(|_| format_args!("<redacted>")))
            .field("namespace", &self.namespace)
            .field("pool_size", &self.pool_size)
            .field("conn_wait_timeout", &self.conn_wait_timeout)
            .field("close_timeout", &self.close_timeout)
            .field("heartbeat_interval", &self.heartbeat_interval)
            .field("query_timeout", &self.query_timeout)
            .field("session_ttl", &self.session_ttl)
            .field("fencing", &self.fencing)
            .field("fencing_epoch", &self.fencing_epoch)
            .field("key_scheme", &self.key_scheme)
            .finish()
    }
}

/// A configuration that keeps every rule, without the connection string.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) namespace: i32,
    pub(crate) pool_size: usize,
    /// `None` is for ever.
    pub(crate) conn_wait: Option<Duration>,
    pub(crate) close_timeout: Duration,
    /// The lease of a hold until released.
    pub(crate) session: Timing,
    /// As set, for [`Timing::for_ttl`].
    pub(crate) heartbeat: Option<Duration>,
    /// As set, for [`Timing::for_ttl`].
    pub(crate) query_timeout: Option<Duration>,
    pub(crate) fencing: bool,
    pub(crate) epoch: u8,
    pub(crate) keys: KeyScheme,
}

fn out_of_range(field: &str, value: Duration, rule: &str) -> Option<InvalidInput> {
    let allowed = Duration::from_millis(1)..=MAX_TTL;
    (!allowed.contains(&value)).then(|| InvalidInput::new(field, format_args!("{value:?}"), rule))
}

/// One error for all of these faults, of which there is at least one.
fn all(faults: &[InvalidInput]) -> InvalidInput {
    match faults {
        [only] => only.clone(),
        several => {
            let texts: Vec<_> = several.iter().map(ToString::to_string).collect();
            InvalidInput::new("configuration", format_args!("{} faults", several.len()), &texts.join("; "))
        }
    }
}
