//! A connection string, read by our own parser: the driver's refuses `verify-ca`, `verify-full` and `sslrootcert`.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use distributed_lock::InvalidInput;
use tokio_postgres::config::ChannelBinding;

use super::{
    syntax::Settings,
    tls::{Roots, TlsMode, TlsSettings},
};

/// Where and how to connect: a `postgres://` URL or a list of `name=value` pairs in the words of libpq.
///
/// Neither `Debug` nor `Display` show the password, and no error repeats it. The environment is not read.
#[derive(Clone)]
pub(crate) struct ConnectionString {
    pub(super) targets: Vec<Target>,
    pub(super) user: String,
    pub(super) password: Option<String>,
    pub(super) dbname: Option<String>,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) application_name: Option<String>,
    pub(super) options: Option<String>,
    pub(super) channel_binding: ChannelBinding,
    pub(super) tls: TlsSettings,
}

/// One server to try: a host and a port, or a unix socket.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Target {
    pub(super) host: Host,
    pub(super) port: u16,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Host {
    /// A name or an address.
    Tcp(String),
    /// The directory of the socket.
    Unix(PathBuf),
}

impl FromStr for ConnectionString {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let mut settings = Settings::parse(text)?;
        let user = settings.take("user").filter(|user| !user.is_empty()).ok_or_else(|| {
            InvalidInput::new("connection parameter user", "missing", "must be given; the environment is not read")
        })?;
        let tls = tls_settings(&mut settings)?;
        read_write_only(settings.take("target_session_attrs"))?;
        Ok(Self {
            targets: targets(&settings)?,
            user,
            password: text_of(&mut settings, "password"),
            dbname: text_of(&mut settings, "dbname"),
            connect_timeout: settings.take("connect_timeout").as_deref().map(seconds).transpose()?,
            application_name: text_of(&mut settings, "application_name"),
            options: text_of(&mut settings, "options"),
            channel_binding: channel_binding(settings.take("channel_binding"), tls.mode)?,
            tls,
        })
    }
}

impl fmt::Debug for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionString")
            .field("targets", &self.targets)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "set"))
            .field("dbname", &self.dbname)
            .field("connect_timeout", &self.connect_timeout)
            .field("application_name", &self.application_name)
            .field("options", &self.options.as_ref().map(|_| "set"))
            .field("channel_binding", &self.channel_binding)
            .field("tls", &self.tls)
            .finish()
    }
}

/// User, database and servers, as an operator would name the place.
impl fmt::Display for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dbname = self.dbname.as_ref().unwrap_or(&self.user);
        write!(f, "user {}, database {}, at ", self.user.escape_debug(), dbname.escape_debug())?;
        for (index, target) in self.targets.iter().enumerate() {
            write!(f, "{}{target}", if index == 0 { "" } else { " or " })?;
        }
        Ok(())
    }
}

impl Target {
    /// The file of a unix socket, by the server's rule.
    pub(super) fn socket_path(&self) -> Option<PathBuf> {
        match &self.host {
            Host::Tcp(_) => None,
            Host::Unix(directory) => Some(directory.join(format!(".s.PGSQL.{}", self.port))),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Tcp(host) if host.contains(':') => write!(f, "[{host}]:{}", self.port),
            Host::Tcp(host) => write!(f, "{host}:{}", self.port),
            Host::Unix(directory) => write!(f, "{}/.s.PGSQL.{}", directory.display(), self.port),
        }
    }
}

/// An empty text is one that was not given, as in libpq.
fn text_of(settings: &mut Settings, name: &str) -> Option<String> {
    settings.take(name).filter(|value| !value.is_empty())
}

fn targets(settings: &Settings) -> Result<Vec<Target>, InvalidInput> {
    let one = [String::new()];
    let hosts = if settings.hosts.is_empty() { &one } else { settings.hosts.as_slice() };
    let ports = if settings.ports.is_empty() { &one } else { settings.ports.as_slice() };
    if ports.len() != 1 && ports.len() != hosts.len() {
        let value = format!("{} for {} hosts", ports.len(), hosts.len());
        return Err(InvalidInput::new("connection parameter port", value, "one port for all hosts, or one for each"));
    }
    let mut targets = Vec::with_capacity(hosts.len());
    for (index, host) in hosts.iter().enumerate() {
        let port = &ports[if ports.len() == 1 { 0 } else { index }];
        let target = Target { host: parse_host(host)?, port: parse_port(port, settings.ports_are_public)? };
        check_path(&target)?;
        targets.push(target);
    }
    Ok(targets)
}

fn parse_host(host: &str) -> Result<Host, InvalidInput> {
    let refuse = |rule| Err(InvalidInput::new("connection parameter host", shown(host), rule));
    match host {
        "" => Ok(Host::Tcp("localhost".to_owned())),
        _ if host.chars().any(char::is_control) => refuse("must not contain control characters"),
        _ if host.starts_with('/') => Ok(Host::Unix(PathBuf::from(host))),
        _ if host.starts_with('@') => refuse("sockets in the abstract namespace are not supported"),
        _ if host.contains(|char: char| char.is_whitespace() || "/@[]".contains(char)) => {
            refuse("must be a name, an address without brackets, or the absolute path of a socket's directory")
        }
        _ => Ok(Host::Tcp(host.to_owned())),
    }
}

fn parse_port(port: &str, public: bool) -> Result<u16, InvalidInput> {
    if port.is_empty() {
        return Ok(5432);
    }
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse() {
        Ok(number) if digits && number != 0 => Ok(number),
        _ => {
            let value = if public { shown(port) } else { "not shown, it may be a password".to_owned() };
            Err(InvalidInput::new("connection parameter port", value, "must be a number from 1 to 65535"))
        }
    }
}

/// A longer path does not fit into a socket address.
fn check_path(target: &Target) -> Result<(), InvalidInput> {
    const LONGEST: usize = 107;
    match target.socket_path() {
        Some(path) if path.as_os_str().len() > LONGEST => Err(InvalidInput::new(
            "connection parameter host",
            target,
            "the path of the socket must not exceed 107 bytes",
        )),
        _ => Ok(()),
    }
}

fn seconds(value: &str) -> Result<Duration, InvalidInput> {
    match value.parse::<u32>() {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds.into())),
        _ => Err(InvalidInput::new(
            "connection parameter connect_timeout",
            shown(value),
            "must be whole seconds from 1 to 86400; an endless wait cannot be asked for",
        )),
    }
}

fn tls_settings(settings: &mut Settings) -> Result<TlsSettings, InvalidInput> {
    let roots = match settings.take("sslrootcert") {
        None => None,
        Some(path) if path.is_empty() => return Err(empty("sslrootcert")),
        Some(system) if system == "system" => Some(Roots::System),
        Some(path) => Some(Roots::File(path.into())),
    };
    let mode = match settings.take("sslmode").as_deref() {
        None if roots == Some(Roots::System) => TlsMode::VerifyFull,
        None => TlsMode::Prefer,
        Some(name) => {
            TlsMode::parse(name).map_err(|rule| InvalidInput::new("connection parameter sslmode", shown(name), rule))?
        }
    };
    if roots == Some(Roots::System) && mode != TlsMode::VerifyFull {
        let rule =
            "with sslrootcert=system it must be verify-full: anybody can get a certificate from a public authority";
        return Err(InvalidInput::new("connection parameter sslmode", mode, rule));
    }
    let identity = match (settings.take("sslcert"), settings.take("sslkey")) {
        (None, None) => None,
        (Some(path), _) if path.is_empty() => return Err(empty("sslcert")),
        (_, Some(path)) if path.is_empty() => return Err(empty("sslkey")),
        (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
        (Some(_), None) => {
            return Err(InvalidInput::new("connection parameter sslkey", "missing", "belongs to sslcert"));
        }
        (None, Some(_)) => {
            return Err(InvalidInput::new("connection parameter sslcert", "missing", "belongs to sslkey"));
        }
    };
    Ok(TlsSettings { mode, roots, identity })
}

fn empty(name: &str) -> InvalidInput {
    InvalidInput::new(&format!("connection parameter {name}"), "empty", "must be the path of a PEM file")
}

fn read_write_only(value: Option<String>) -> Result<(), InvalidInput> {
    match value.as_deref() {
        None | Some("read-write") => Ok(()),
        Some(other) => Err(InvalidInput::new(
            "connection parameter target_session_attrs",
            shown(other),
            "must be read-write, the default: a hot standby grants what the primary has granted to somebody else",
        )),
    }
}

fn channel_binding(value: Option<String>, mode: TlsMode) -> Result<ChannelBinding, InvalidInput> {
    match value.as_deref() {
        None | Some("prefer") => Ok(ChannelBinding::Prefer),
        Some("disable") => Ok(ChannelBinding::Disable),
        Some("require") if mode == TlsMode::Disable => Err(InvalidInput::new(
            "connection parameter channel_binding",
            "require",
            "needs TLS, which sslmode=disable turns off",
        )),
        Some("require") => Ok(ChannelBinding::Require),
        Some(other) => Err(InvalidInput::new(
            "connection parameter channel_binding",
            shown(other),
            "must be disable, prefer or require",
        )),
    }
}

/// A value for an error message: short, and without anything a terminal would obey.
fn shown(value: &str) -> String {
    let short: String = value.chars().take(60).collect();
    let more = if short.len() < value.len() { "..." } else { "" };
    format!("{}{more}", short.escape_debug())
}
