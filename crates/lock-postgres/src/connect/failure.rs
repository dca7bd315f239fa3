//! Why a connection could not be opened, and what to do about it.

use std::{error::Error as StdError, fmt, io, time::Duration};

use distributed_lock::{Error, ErrorKind};
use rustls::{AlertDescription, CertificateError};
use tokio_postgres::error::SqlState;

use super::{
    password::{PasswordError, PasswordSource},
    string::Target,
    tls::TlsMode,
};
use crate::error::{classify, with_state};

/// A connection that could not be opened. Becomes an [`Error`] with the driver's own as its source.
#[derive(Debug)]
pub(crate) struct ConnectError {
    target: String,
    mode: TlsMode,
    /// Where the password came from, if not from the connection string.
    password: Option<String>,
    reason: Reason,
}

#[derive(Debug)]
pub(super) enum Reason {
    Connect(io::Error),
    /// No certificate can have such a name.
    HostName,
    Negotiate(io::Error),
    NotPostgres,
    NoTls,
    Password(PasswordError),
    RefusedBeforeTls,
    Resolve(io::Error),
    Server(tokio_postgres::Error),
    Timeout {
        stage: Stage,
        within: Duration,
    },
}

/// How far an attempt had come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    Password,
    Reaching,
    Negotiating,
    Starting,
}

impl ConnectError {
    pub(super) fn new(target: &Target, mode: TlsMode, password: Option<&PasswordSource>, reason: Reason) -> Self {
        Self { target: target.to_string(), mode, password: password.map(ToString::to_string), reason }
    }

    /// The kind this error has as an [`Error`].
    ///
    /// A certificate that we refuse is `Misconfigured`: trying again does not help, and whether the set-up or an attacker is
    /// the cause cannot be known. One that the server refuses is `Denied`.
    pub(crate) fn kind(&self) -> ErrorKind {
        match &self.reason {
            Reason::Connect(error) if error.kind() == io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            Reason::Connect(_) | Reason::Negotiate(_) | Reason::RefusedBeforeTls | Reason::Resolve(_) => {
                ErrorKind::Unavailable
            }
            Reason::Timeout { .. } => ErrorKind::Unavailable,
            Reason::Password(error) => error.kind(),
            Reason::HostName | Reason::NotPostgres | Reason::NoTls => ErrorKind::Misconfigured,
            Reason::Server(error) => match tls_error(error) {
                Some(rustls::Error::AlertReceived(alert)) if concerns_client(*alert) => ErrorKind::Denied,
                Some(_) => ErrorKind::Misconfigured,
                None => match classify(error) {
                    // Nothing but the string's own `options` was sent with the start.
                    ErrorKind::InvalidInput => ErrorKind::Misconfigured,
                    kind => kind,
                },
            },
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, mode, password, reason } = self;
        write!(f, "no connection to {target}: ")?;
        match reason {
            Reason::Connect(error) => f.write_str(advice_on_socket(error.kind())),
            Reason::HostName => write!(f, "sslmode={mode} needs a host name or address that a certificate can hold"),
            Reason::Negotiate(_) => f.write_str("it broke off before TLS; see that PostgreSQL listens there"),
            Reason::NotPostgres => f.write_str("it does not answer as PostgreSQL does; check host and port"),
            Reason::NoTls => write!(
                f,
                "it does not offer TLS, which sslmode={mode} demands; turn ssl on in the server, or choose a weaker sslmode"
            ),
            Reason::Password(error) => error.fmt(f),
            Reason::RefusedBeforeTls => f.write_str("it refused before TLS; the server's log says why"),
            Reason::Resolve(_) => f.write_str("the host name could not be resolved; check it and the DNS"),
            Reason::Timeout { stage, within } => write!(f, "{} within {within:?}; {}", stage.missing(), stage.advice()),
            Reason::Server(error) => match (tls_error(error), password) {
                (Some(error), _) => write!(f, "{} (sslmode={mode})", advice_on_tls(error)),
                (None, source) => {
                    f.write_str(advice_on_refusal(error))?;
                    match source {
                        Some(source) if is_about_login(error) => write!(f, ", and what {source} gives"),
                        _ => Ok(()),
                    }
                }
            },
        }
    }
}

impl StdError for ConnectError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.reason {
            Reason::Connect(error) | Reason::Negotiate(error) | Reason::Resolve(error) => Some(error),
            Reason::Password(error) => error.cause(),
            Reason::Server(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ConnectError> for Error {
    fn from(failed: ConnectError) -> Self {
        let ours = Self::new(failed.kind(), failed.to_string());
        match failed.reason {
            Reason::Connect(error) | Reason::Negotiate(error) | Reason::Resolve(error) => ours.with_source(error),
            Reason::Password(error) => match error.into_cause() {
                Some(cause) => ours.with_source(cause),
                None => ours,
            },
            Reason::Server(error) => with_state(ours, error),
            _ => ours,
        }
    }
}

impl Stage {
    fn missing(self) -> &'static str {
        match self {
            Self::Password => "there was no password to log in with",
            Self::Reaching => "nothing answered",
            Self::Negotiating => "it accepted, but did not say whether it has TLS",
            Self::Starting => "it accepted, but did not become ready",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Password => "see what password_callback waits for, or where password_file lies",
            Self::Reaching => "check host, port, DNS and firewall",
            Self::Negotiating | Self::Starting => "see that PostgreSQL listens there and is not overloaded",
        }
    }
}

fn advice_on_socket(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::ConnectionRefused => "nothing listens there; check host and port and that the server runs",
        io::ErrorKind::NotFound => "there is no such socket; check the directory and port and that the server runs",
        io::ErrorKind::PermissionDenied => "the system does not let us use it; check the rights of the socket",
        io::ErrorKind::TimedOut => "nothing answered in time; check host, port and firewall",
        _ => "the system could not connect; check host, port and network",
    }
}

/// The second state is what a server says that has passwords checked by others, such as tokens of a cloud.
fn is_about_login(error: &tokio_postgres::Error) -> bool {
    matches!(error.code().map_or("", SqlState::code), "28P01" | "28000")
}

/// Only the first words are ours; what the server said is the source.
fn advice_on_refusal(error: &tokio_postgres::Error) -> &'static str {
    match error.code().map_or("", |state| state.code()) {
        "28P01" => "wrong password or user; check both",
        "28000" => "the server refuses this login; check the role, pg_hba.conf and sslmode",
        "3D000" => "there is no such database; check dbname",
        "42501" => "the role may not connect to this database; GRANT CONNECT to it",
        "53300" => "the server has no connection left; raise max_connections or make the pools smaller",
        "57P03" => "the server is starting up, shutting down or recovering; try again",
        "" => match classify(error) {
            ErrorKind::Denied => "the server's way to log in is not supported, or not what channel_binding demands",
            ErrorKind::Misconfigured => {
                "the server asks for a password; give one in the url, by password_file or by password_callback"
            }
            ErrorKind::Unavailable => "the server broke off; try again, and see its log",
            _ => "it does not answer as PostgreSQL does; check host and port",
        },
        _ => "the server refused; the source says why",
    }
}

fn advice_on_tls(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidCertificate(refused) => match refused {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the server's certificate has expired; renew it"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the server's certificate is not valid yet; check the clocks"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the server's certificate is for another name; connect by a name among its alternative names, or renew it"
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "the server's certificate is not from a trusted authority; name the authority's file with sslrootcert"
            }
            _ => "the server's certificate cannot be trusted; it must be issued by an authority, and not be one itself",
        },
        rustls::Error::AlertReceived(alert) if concerns_client(*alert) => {
            "the server refuses our certificate; check sslcert and sslkey"
        }
        _ => "the TLS handshake failed; the source says why",
    }
}

fn concerns_client(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::AccessDenied
            | Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateRequired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::UnsupportedCertificate
    )
}

/// Looks into I/O errors too, whose `source` skips the error they carry.
fn tls_error<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        let carried = error.downcast_ref::<io::Error>().and_then(|io| io.get_ref());
        let found = carried.and_then(|carried| carried.downcast_ref()).or_else(|| error.downcast_ref());
        if found.is_some() {
            return found;
        }
        next = error.source();
    }
    None
}
