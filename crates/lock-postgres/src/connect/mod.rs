//! Opens one connection to PostgreSQL over a socket of our own, from a connection string, within a time.

mod driver;
mod failure;
mod password;
mod socket;
mod string;
mod syntax;
mod tls;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    net::IpAddr,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use distributed_lock::{Error, ErrorKind, InvalidInput, Result};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, timeout_at},
};
use tokio_postgres::{
    Client, NoTls,
    config::{SslMode, SslNegotiation},
    tls::MakeTlsConnect,
};

pub(crate) use self::socket::Readiness;
pub(crate) use self::{
    driver::Driver,
    failure::ConnectError,
    password::{PasswordCallback, PasswordFile, PasswordSource},
    socket::SocketHandle,
    string::{ConnectionString, Target},
};
use self::{
    failure::{Reason, Stage},
    socket::{Socket, Unreached},
    string::Host,
    tls::{Tls, TlsMode},
};

/// For one server, from the look-up of its name until it is ready for statements.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// For one server, from the look-up of its name until the session is set up.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// What operators see of us in the server's views, unless the string says otherwise.
const APPLICATION_NAME: &str = "distributed-lock";

/// The protocol's request for TLS: its length and its code.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// Opens connections as one connection string says.
#[derive(Clone)]
pub(crate) struct Connector {
    targets: Vec<Target>,
    /// For the driver; holds the password of the string.
    driver: tokio_postgres::Config,
    /// What gives the password for each attempt, if the string has none.
    password: Option<PasswordSource>,
    tls: Tls,
    connect_timeout: Duration,
}

/// The driver's side of a connection: it must be polled for anything to happen, and ends with the connection.
pub(crate) type Driven = Pin<Box<dyn Driver>>;

/// A connection that is ready for statements once `connection` is polled.
pub(crate) struct Opened {
    /// Its cancel token knows neither the address nor how TLS was negotiated: a session is ended by `socket` instead.
    pub(crate) client: Client,
    pub(crate) connection: Driven,
    pub(crate) socket: SocketHandle,
    /// The server, without secrets.
    pub(crate) target: String,
}

impl Connector {
    /// Reads the files that the string names; they are not read again. The password's source is asked at each attempt.
    pub(crate) fn new(string: ConnectionString, password: Option<PasswordSource>) -> Result<Self, InvalidInput> {
        if let (Some(_), Some(source)) = (&string.password, &password) {
            let value = format_args!("in the url and by {}", source.name());
            return Err(InvalidInput::new("password", value, "must come from one source: leave the other out"));
        }
        let tls = Tls::new(&string.tls).map_err(|invalid| invalid.under("url"))?;
        let mut driver = tokio_postgres::Config::new();
        driver.user(string.user).channel_binding(string.channel_binding);
        if let Some(password) = string.password {
            driver.password(password);
        }
        if let Some(dbname) = string.dbname {
            driver.dbname(dbname);
        }
        driver.application_name(string.application_name.unwrap_or_else(|| APPLICATION_NAME.to_owned()));
        if let Some(options) = string.options {
            driver.options(options);
        }
        let connect_timeout = string.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
        Ok(Self { targets: string.targets, driver, password, tls, connect_timeout })
    }

    /// Opens a connection to the first of the servers, in their order, that it can be set up on.
    ///
    /// Cancel safe, as [`open`](Self::open) is.
    pub(crate) async fn first<T, F: Future<Output = Result<T>>>(&self, set_up: impl Fn(Opened) -> F) -> Result<T> {
        let mut failed = None;
        for target in &self.targets {
            let deadline = Instant::now() + OPEN_TIMEOUT;
            let opened = match self.open(target, OPEN_TIMEOUT).await {
                Ok(opened) => opened,
                Err(error) => {
                    failed = Some(Error::from(error));
                    continue;
                }
            };
            match timeout_at(deadline, set_up(opened)).await {
                Ok(Ok(ready)) => return Ok(ready),
                Ok(Err(error)) => failed = Some(error),
                Err(_elapsed) => {
                    let message =
                        format!("{target} accepted the connection but did not answer within {OPEN_TIMEOUT:?}");
                    failed = Some(Error::new(ErrorKind::Unavailable, message));
                }
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::Misconfigured, "the connection string names no host")))
    }

    /// Opens a connection to this server within this time, or the connect timeout if that is shorter.
    ///
    /// Cancel safe: a dropped future closes the socket, and the server ends the session when it notices.
    pub(crate) async fn open(&self, target: &Target, within: Duration) -> Result<Opened, ConnectError> {
        let within = within.min(self.connect_timeout);
        let deadline = Instant::now() + within;
        let mut stage = Stage::Password;
        let opened = timeout_at(deadline, self.open_before(target, deadline, &mut stage)).await;
        let outcome = opened.unwrap_or(Err(Reason::Timeout { stage, within }));
        outcome.map_err(|reason| ConnectError::new(target, self.tls.mode, self.password.as_ref(), reason))
    }

    async fn open_before(&self, target: &Target, deadline: Instant, stage: &mut Stage) -> Result<Opened, Reason> {
        let mut driver = self.driver.clone();
        // Before the server has a session to keep for us.
        if let Some(source) = &self.password {
            driver.password(source.fetch().await.map_err(Reason::Password)?);
        }
        *stage = Stage::Reaching;
        let mut socket = Socket::open(target, deadline).await.map_err(|unreached| match unreached {
            Unreached::Connect(error) => Reason::Connect(error),
            Unreached::Resolve(error) => Reason::Resolve(error),
        })?;
        let handle = socket.handle().map_err(Reason::Connect)?;
        let peer = socket.peer();
        let opened = |client, connection| Opened { client, connection, socket: handle, target: target.to_string() };

        *stage = Stage::Negotiating;
        if let Some((mut maker, host)) = self.offer_tls(target, &mut socket).await? {
            // The request is answered, so the driver's handshake comes directly.
            driver.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
            let name = self.tls.server_name(host, peer);
            ServerName::try_from(name.as_str()).map_err(|_| Reason::HostName)?;
            let Ok(tls) = MakeTlsConnect::<Socket>::make_tls_connect(&mut maker, &name);
            *stage = Stage::Starting;
            let (client, connection) = driver.connect_raw(socket, tls).await.map_err(Reason::Server)?;
            return Ok(opened(client, Box::pin(connection)));
        }
        if peer.is_some_and(leaves_the_machine) {
            warn_of_plaintext(target);
        }
        driver.ssl_mode(SslMode::Disable);
        *stage = Stage::Starting;
        let (client, connection) = driver.connect_raw(socket, NoTls).await.map_err(Reason::Server)?;
        Ok(opened(client, Box::pin(connection)))
    }

    /// Asks for TLS where it is wanted. What to make it with and the host's name, or `None` for plaintext.
    ///
    /// The driver's own negotiation takes whatever is not a yes for a no. Only one byte is read: what an attacker appends in
    /// plaintext goes into the handshake and breaks it.
    async fn offer_tls<'t>(
        &self,
        target: &'t Target,
        socket: &mut Socket,
    ) -> Result<Option<(tokio_postgres_rustls::MakeRustlsConnect, &'t str)>, Reason> {
        // As in libpq, TLS does not concern unix sockets.
        let (Some(maker), Host::Tcp(host)) = (&self.tls.maker, &target.host) else {
            return Ok(None);
        };
        socket.write_all(&SSL_REQUEST).await.map_err(Reason::Negotiate)?;
        match socket.read_u8().await.map_err(Reason::Negotiate)? {
            b'S' => Ok(Some((maker.clone(), host))),
            b'N' if self.tls.mode == TlsMode::Prefer => Ok(None),
            b'N' => Err(Reason::NoTls),
            // An error before TLS could be anybody's, so it is not read.
            b'E' => Err(Reason::RefusedBeforeTls),
            _ => Err(Reason::NotPostgres),
        }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("targets", &self.targets)
            .field("password", &self.password)
            .field("tls", &self.tls.mode)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("target", &self.target).finish_non_exhaustive()
    }
}

fn leaves_the_machine(peer: IpAddr) -> bool {
    !peer.to_canonical().is_loopback()
}

/// Once in the life of the process: the first pool fills with dozens of connections.
fn warn_of_plaintext(target: &Target) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(%target, "connected to PostgreSQL without TLS: set sslmode=verify-full, or disable if the network is trusted");
    }
}
