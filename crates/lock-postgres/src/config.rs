use std::{fmt, future::Future, path::PathBuf, time::Duration};

use distributed_lock::{Fencing, InvalidInput, backend::Fields, telemetry::Telemetry};
use serde::Deserialize;

use crate::{
    KeyScheme,
    connect::{ConnectionString, Connector, PasswordCallback, PasswordFile, PasswordSource},
    timing::{MAX_TTL, Timing},
};

mod given;

#[cfg(test)]
mod tests;

/// How a PostgreSQL locker is set up. Checked as a whole when a locker is built from it, before anything connects.
///
/// Also read from a file by serde, or from the environment by [`Fields::from_vars`]: the fields are named like the `with_` methods,
/// durations are text with a unit (`"5s"`, `"250ms"`, `"1m 30s"`), and a number without a unit, an unknown field or a value against
/// its rule is refused with the name of the field, all of them in one error. A field that is left out, or null, has its default.
///
/// | field | default | rule |
/// |---|---|---|
/// | `url` | none | a `postgres://` URL or `name=value` pairs; leave it out to bring a pool |
/// | `password_file` | none | the path of a file that holds the password; see [`with_password_file`](Self::with_password_file) |
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
/// | `hand_over` | false | whether holders hear requests to step down; one connection more, not over a pool that you bring |
/// | `watchdog` | true | whether waiters end a holder that was cut off in the middle of a write; one connection more while they wait, none over a pool that you bring |
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
#[serde(try_from = "Fields")]
pub struct PostgresConfig {
    url: Option<String>,
    password_file: Option<PasswordFile>,
    password_callback: Option<PasswordCallback>,
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
    hand_over: bool,
    watchdog: bool,
    telemetry: Telemetry,
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
            password_file: None,
            password_callback: None,
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
            hand_over: false,
            watchdog: true,
            telemetry: Telemetry::OFF,
        }
    }

    /// The password is in this file, which is read again for each connection: one that was changed needs no restart, and
    /// connections that are open live on.
    ///
    /// One newline at its end is not part of the password. Write it anew by a rename, so that it is never read half written. A
    /// file that is not there, that everybody can write, or that is empty is refused, when a connection needs it, by an error of
    /// kind `Misconfigured` that names the path. One that others can read is used all the same, with a warning in the log:
    /// containers have their secrets mounted so.
    ///
    /// ```
    /// use lock_postgres::{PostgresConfig, PostgresLocker};
    ///
    /// let config = PostgresConfig::from_url("postgres://app@db.example/app").with_password_file("/run/secrets/db");
    /// PostgresLocker::new(&config)?;
    ///
    /// let twice = PostgresConfig::from_url("postgres://app:secret@db.example/app").with_password_file("/run/secrets/db");
    /// assert!(PostgresLocker::new(&twice).is_err(), "a password has one source");
    /// # Ok::<(), distributed_lock::Error>(())
    /// ```
    #[must_use]
    pub fn with_password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.password_file = Some(PasswordFile::new(path.into()));
        self
    }

    /// The password is what this gives, asked once for each attempt to connect to a server: for tokens that expire, such as those
    /// of a cloud's IAM.
    ///
    /// It runs within the time that connecting has (`connect_timeout` in the URL, 5 s) and is dropped at the end of it, so it must
    /// be cancel safe and should keep what it can give again. Its error is the source of ours, of kind `Unavailable`, so that
    /// it is tried again; or `Denied` if it is a [`distributed_lock::Error`] of that kind. It is printed, so it must not hold a
    /// secret. A panic is `Unavailable` too. The connection that keeps house is opened on a thread of its own, and asks there.
    ///
    /// ```
    /// use lock_postgres::{PostgresConfig, PostgresLocker};
    ///
    /// async fn token() -> Result<String, std::io::Error> {
    ///     Ok("made for the next fifteen minutes".to_owned())
    /// }
    ///
    /// let config = PostgresConfig::from_url("postgres://app@db.example/app").with_password_callback(token);
    /// PostgresLocker::new(&config)?;
    /// # Ok::<(), distributed_lock::Error>(())
    /// ```
    #[must_use]
    pub fn with_password_callback<F, A, E>(mut self, callback: F) -> Self
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<String, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.password_callback = Some(PasswordCallback::new(callback));
        self
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

    /// Whether the holds of this locker hear requests to step down: see
    /// [`Hold::step_down_requested`](distributed_lock::Hold::step_down_requested). From its first grant on, the locker keeps one
    /// connection beside its pool for that. Not to be had over a pool that you bring. Off unless set.
    ///
    /// ```
    /// let config = lock_postgres::PostgresConfig::from_url("postgres://app@db.example/app").with_hand_over(true);
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn with_hand_over(mut self, hand_over: bool) -> Self {
        self.hand_over = hand_over;
        self
    }

    /// Whether, while somebody of this locker waits, it looks for holders of the wanted key that were cut off or frozen in the
    /// middle of a write, which stops the server's own timer, and ends them. It only ever ends sessions of lockers of this
    /// crate, silent for longer than their TTL allows, and uses one connection beside the pool meanwhile. Does nothing over a
    /// pool that you bring. On unless set.
    ///
    /// ```
    /// let config = lock_postgres::PostgresConfig::from_url("postgres://app@db.example/app").with_watchdog(false);
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn with_watchdog(mut self, watchdog: bool) -> Self {
        self.watchdog = watchdog;
        self
    }

    /// Where the locker tells what only it knows: of its connections, of grants that came too late, and of a shared session's lanes.
    /// Nowhere unless set. Calls, holds and releases are told by an [`Instrumented`](distributed_lock::Instrumented) around it.
    ///
    /// ```
    /// use distributed_lock::{Instrumented, telemetry::Telemetry};
    /// use lock_postgres::{PostgresConfig, PostgresLocker};
    /// # fn main() -> distributed_lock::Result<()> {
    /// let config = PostgresConfig::from_url("postgres://app@db.example/app?sslmode=verify-full").with_telemetry(Telemetry::new());
    /// let locker = Instrumented::new(PostgresLocker::new(&config)?);
    /// # let _ = locker; Ok(()) }
    /// ```
    #[must_use]
    pub fn with_telemetry(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = telemetry;
        self
    }

    /// The connection string, with its secrets.
    pub(crate) fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// What gives the password, if it is not in the connection string.
    pub(crate) fn password(&self) -> Result<Option<PasswordSource>, InvalidInput> {
        match (&self.password_file, &self.password_callback) {
            (None, None) => Ok(None),
            (Some(file), None) if file.path().as_os_str().is_empty() => {
                Err(InvalidInput::new("password_file", "empty", "must be the path of a file"))
            }
            (Some(file), None) => Ok(Some(PasswordSource::File(file.clone()))),
            (None, Some(callback)) => Ok(Some(PasswordSource::Callback(callback.clone()))),
            (Some(_), Some(_)) => {
                let value = "by password_file and by password_callback";
                Err(InvalidInput::new("password", value, "must come from one source: leave the other out"))
            }
        }
    }

    /// Says nothing of a server, which a user's pool has chosen.
    pub(crate) fn ensure_no_server(&self) -> Result<(), InvalidInput> {
        let given = match &self.url {
            Some(_) => Some("url"),
            None => self.password()?.map(|source| source.name()),
        };
        match given {
            None => Ok(()),
            Some(field) => {
                Err(InvalidInput::new(field, "given", "belongs to a pool of our own: leave it out beside a pool"))
            }
        }
    }

    /// Where connections of our own go to.
    fn connection_string(&self) -> Option<Result<ConnectionString, InvalidInput>> {
        self.url().map(|url| url.parse().map_err(|invalid: InvalidInput| invalid.under("url")))
    }

    /// How connections of our own are opened.
    pub(crate) fn connector(&self) -> Result<Connector, InvalidInput> {
        let missing = || InvalidInput::new("url", "none", "must be given: a PostgreSQL URL");
        Connector::new(self.connection_string().ok_or_else(missing)??, self.password()?)
    }

    /// The settings if all of them keep their rules, else one error that names every fault.
    pub(crate) fn settings(&self) -> Result<Settings, InvalidInput> {
        let timing = self.timing();
        let judged = [self.limits(), self.password().map(drop), timing.clone().map(drop)];
        InvalidInput::all(judged.into_iter().filter_map(Result::err))?;
        Ok(Settings {
            namespace: self.namespace,
            pool_size: self.pool_size,
            conn_wait: self.conn_wait_timeout,
            close_timeout: self.close_timeout,
            session: timing?,
            heartbeat: self.heartbeat_interval,
            query_timeout: self.query_timeout,
            fencing: self.fencing,
            epoch: self.fencing_epoch,
            keys: self.key_scheme,
            hand_over: self.hand_over,
            watchdog: self.watchdog,
            telemetry: self.telemetry.clone(),
        })
    }

    /// The rules of single fields.
    fn limits(&self) -> Result<(), InvalidInput> {
        let size = "must be 1 to 1000 connections";
        let size =
            (!(1..=1_000).contains(&self.pool_size)).then(|| InvalidInput::new("pool_size", self.pool_size, size));
        let or_forever = "must be at least 1ms and at most 24 days, or \"forever\"";
        let conn_wait = self.conn_wait_timeout;
        let conn_wait = conn_wait.and_then(|timeout| out_of_range("conn_wait_timeout", timeout, or_forever));
        let bounded = "must be at least 1ms and at most 24 days";
        let close = out_of_range("close_timeout", self.close_timeout, bounded);
        InvalidInput::all([size, conn_wait, close].into_iter().flatten())
    }

    /// The lease of a hold until released: the rule over heartbeat, query timeout and TTL.
    fn timing(&self) -> Result<Timing, InvalidInput> {
        Timing::for_session(self.heartbeat_interval, self.query_timeout, self.session_ttl)
    }
}

/// Shows neither the connection string nor the key's secret, but which source the password has beside the string.
impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("url", &self.url.as_ref().map(|_| format_args!("<redacted>")))
            .field("password_file", &self.password_file.as_ref().map(PasswordFile::path))
            .field("password_callback", &self.password_callback.as_ref().map(|_| format_args!("<code>")))
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
            .field("hand_over", &self.hand_over)
            .field("watchdog", &self.watchdog)
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
    pub(crate) hand_over: bool,
    pub(crate) watchdog: bool,
    pub(crate) telemetry: Telemetry,
}

fn out_of_range(field: &str, value: Duration, rule: &str) -> Option<InvalidInput> {
    let allowed = Duration::from_millis(1)..=MAX_TTL;
    (!allowed.contains(&value)).then(|| InvalidInput::new(field, format_args!("{value:?}"), rule))
}
