//! Which failure of the driver is of which kind: the one table.

use std::{error::Error as StdError, io};

use distributed_lock::{Error, ErrorKind};
use tokio_postgres::error::Severity;

/// SQLSTATEs by their longest known beginning; the first match counts.
///
/// The kinds hold for a session that owns nothing. Whoever sent a lock statement destroys the session first, since a
/// statement that failed may have been granted all the same.
const KINDS: &[(&str, ErrorKind)] = &[
    // Connections. 08007: the fate of a transaction is unknown.
    ("08007", ErrorKind::Indeterminate),
    ("08", ErrorKind::Unavailable),
    ("0A", ErrorKind::Unsupported),
    ("22", ErrorKind::InvalidInput),
    // Read-only: a standby, or a database or role that was set so.
    ("25006", ErrorKind::Misconfigured),
    // The server's timers ended the session.
    ("25P03", ErrorKind::Unavailable),
    ("25P04", ErrorKind::Unavailable),
    // A prepared statement that is gone: a pooler swapped the session, or somebody else used it.
    ("26", ErrorKind::Misconfigured),
    ("28", ErrorKind::Denied),
    ("3D", ErrorKind::Misconfigured),
    ("3F", ErrorKind::Misconfigured),
    ("40P01", ErrorKind::Deadlock),
    ("40003", ErrorKind::Indeterminate),
    ("40", ErrorKind::Unavailable),
    ("42501", ErrorKind::Denied),
    ("42704", ErrorKind::Misconfigured),
    ("42883", ErrorKind::Unsupported),
    ("42P01", ErrorKind::Misconfigured),
    // Memory (the lock table too), connections, a configured limit; but a full disk is a broken server.
    ("53100", ErrorKind::Unavailable),
    ("53", ErrorKind::LimitReached),
    // A limit of the program, such as transaction ids about to wrap around.
    ("54", ErrorKind::LimitReached),
    // What a server in recovery says of functions that need a primary.
    ("55000", ErrorKind::Misconfigured),
    ("55006", ErrorKind::Unavailable),
    ("55P02", ErrorKind::Misconfigured),
    ("55P03", ErrorKind::Contended),
    // Cancelled, shut down, crashed, starting up, idle for too long; but a dropped database does not come back.
    ("57P04", ErrorKind::Misconfigured),
    ("57", ErrorKind::Unavailable),
    ("58", ErrorKind::Unavailable),
    ("F0", ErrorKind::Misconfigured),
];

/// The kind of a driver's error.
pub(crate) fn classify(error: &tokio_postgres::Error) -> ErrorKind {
    match error.code() {
        Some(state) => classify_state(state.code()),
        None if error.is_closed() => ErrorKind::Unavailable,
        None => classify_driver(error),
    }
}

/// A driver's error as ours, with its SQLSTATE and itself as the source; `doing` continues "could not".
pub(crate) fn wrap(error: tokio_postgres::Error, doing: &'static str) -> Error {
    with_state(Error::new(classify(&error), format!("could not {doing}")), error)
}

/// The same of an error that several are told.
pub(crate) fn shared(error: &std::sync::Arc<tokio_postgres::Error>, doing: &'static str) -> Error {
    let told = crate::link::SharedError(std::sync::Arc::clone(error));
    let ours = Error::new(classify(error), format!("could not {doing}")).with_source(told);
    match error.code() {
        Some(state) => ours.with_code(state.code().to_owned()),
        None => ours,
    }
}

/// Whether it says that the session was over before the statement could be carried out, or ended with it.
pub(crate) fn ended_session(error: &tokio_postgres::Error) -> bool {
    server_ended_session(error) || (error.code().is_none() && error.is_closed())
}

/// The same in the server's own words: terminated, crashed, idle for too long.
pub(crate) fn server_ended_session(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|state| matches!(state.code(), "57P01" | "57P02" | "57P05" | "25P03" | "25P04"))
}

/// Whether the server refused a statement in a session that goes on.
pub(crate) fn leaves_session(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|error| error.parsed_severity() == Some(Severity::Error))
}

/// An unavailability for a statement after which the session is destroyed: whatever it did ends with the session, so nothing stays in doubt.
pub(crate) fn unavailable(error: tokio_postgres::Error, doing: &'static str) -> Error {
    let kind = match classify(&error) {
        ErrorKind::Indeterminate | ErrorKind::Contended => ErrorKind::Unavailable,
        kind => kind,
    };
    with_state(Error::new(kind, format!("could not {doing}")), error)
}

/// Adds the driver's error and its SQLSTATE.
pub(crate) fn with_state(ours: Error, driver: tokio_postgres::Error) -> Error {
    match driver.code().map(|state| state.code().to_owned()) {
        Some(state) => ours.with_code(state).with_source(driver),
        None => ours.with_source(driver),
    }
}

pub(crate) fn classify_state(state: &str) -> ErrorKind {
    KINDS.iter().find(|(start, _)| state.starts_with(start)).map_or(ErrorKind::Other, |(_, kind)| *kind)
}

/// The driver hides its own kinds; its fixed texts are what tells them apart, and a test holds each of them.
fn classify_driver(error: &tokio_postgres::Error) -> ErrorKind {
    match error.to_string().as_str() {
        "error communicating with the server" | "error connecting to server" | "timeout waiting for server" => {
            if is_garbled(error) {
                ErrorKind::Other
            } else {
                ErrorKind::Unavailable
            }
        }
        "authentication error" => ErrorKind::Denied,
        "error performing TLS handshake" | "invalid configuration" => ErrorKind::Misconfigured,
        _ => ErrorKind::Other,
    }
}

/// An answer arrived, but it was not PostgreSQL's protocol.
fn is_garbled(error: &tokio_postgres::Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    io.is_some_and(|io| matches!(io.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio_postgres::{Config, NoTls, config::ChannelBinding};

    use super::*;

    /// What the driver makes of these bytes after its start message.
    async fn driver_error(config: &Config, answer: &[u8]) -> tokio_postgres::Error {
        let (ours, mut server) = duplex(1 << 16);
        let serve = async {
            let length = server.read_u32().await.unwrap();
            let mut start = vec![0; length as usize - 4];
            server.read_exact(&mut start).await.unwrap();
            server.write_all(answer).await.unwrap();
            server.shutdown().await.unwrap();
        };
        let (connected, ()) = tokio::join!(config.connect_raw(ours, NoTls), serve);
        connected.map(|_| ()).expect_err("the server did not let us in")
    }

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[tag], &length.to_be_bytes()[..], body].concat()
    }

    async fn refused_with(state: &str) -> tokio_postgres::Error {
        let body = format!("SFATAL\0VFATAL\0C{state}\0Mwhy\0\0");
        driver_error(Config::new().user("u"), &message(b'E', body.as_bytes())).await
    }

    /// Every state is sent through the driver, as a server does.
    #[tokio::test]
    async fn each_sqlstate_has_its_kind() {
        use ErrorKind as Kind;
        let expected = BTreeMap::from([
            ("08000", Kind::Unavailable),
            ("08006", Kind::Unavailable),
            ("08007", Kind::Indeterminate),
            ("08P01", Kind::Unavailable),
            ("0A000", Kind::Unsupported),
            ("22003", Kind::InvalidInput),
            ("22023", Kind::InvalidInput),
            ("23505", Kind::Other),
            ("25001", Kind::Other),
            ("25006", Kind::Misconfigured),
            ("25P02", Kind::Other),
            ("25P03", Kind::Unavailable),
            ("25P04", Kind::Unavailable),
            ("26000", Kind::Misconfigured),
            ("28000", Kind::Denied),
            ("28P01", Kind::Denied),
            ("3D000", Kind::Misconfigured),
            ("3F000", Kind::Misconfigured),
            ("40001", Kind::Unavailable),
            ("40003", Kind::Indeterminate),
            ("40P01", Kind::Deadlock),
            ("42501", Kind::Denied),
            ("42601", Kind::Other),
            ("42704", Kind::Misconfigured),
            ("42883", Kind::Unsupported),
            ("42P01", Kind::Misconfigured),
            ("53000", Kind::LimitReached),
            ("53100", Kind::Unavailable),
            ("53200", Kind::LimitReached),
            ("53300", Kind::LimitReached),
            ("53400", Kind::LimitReached),
            ("54000", Kind::LimitReached),
            ("55000", Kind::Misconfigured),
            ("55006", Kind::Unavailable),
            ("55P02", Kind::Misconfigured),
            ("55P03", Kind::Contended),
            ("57014", Kind::Unavailable),
            ("57P01", Kind::Unavailable),
            ("57P02", Kind::Unavailable),
            ("57P03", Kind::Unavailable),
            ("57P04", Kind::Misconfigured),
            ("57P05", Kind::Unavailable),
            ("58030", Kind::Unavailable),
            ("F0001", Kind::Misconfigured),
            ("P0001", Kind::Other),
            ("XX000", Kind::Other),
            ("XX001", Kind::Other),
        ]);
        for (state, kind) in &expected {
            let error = wrap(refused_with(state).await, "take the lock");
            assert_eq!((error.kind(), error.code()), (*kind, Some(*state)));
            assert_eq!(error.to_string(), "could not take the lock");
            assert!(error.source().is_some_and(|source| source.is::<tokio_postgres::Error>()));
        }
        // No row that no state of the test above reaches.
        for (start, kind) in KINDS {
            let reached = expected.keys().any(|state| {
                KINDS.iter().find(|(start, _)| state.starts_with(start)).is_some_and(|row| row == &(*start, *kind))
            });
            assert!(reached, "no test reaches {start}");
        }
    }

    #[tokio::test]
    async fn driver_errors_without_sqlstate_have_their_kind() {
        use ErrorKind as Kind;
        let plain = Config::new().user("u").password("p").clone();
        let bound = plain.clone().channel_binding(ChannelBinding::Require).clone();
        let silent = Config::new().user("u").clone();
        let scram = message(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0");
        for (config, answer, kind) in [
            (&plain, vec![], Kind::Unavailable),
            (&plain, message(b'R', &[0, 0, 0, 0]), Kind::Unavailable),
            (&plain, b"E\0\0".to_vec(), Kind::Unavailable),
            (&plain, message(b'E', b"nonsense\0\0"), Kind::Other),
            (&plain, message(b'x', b"no such message"), Kind::Other),
            (&plain, message(b'Z', b"I"), Kind::Other),
            (&plain, message(b'R', &[0, 0, 0, 7]), Kind::Denied),
            (&bound, scram.clone(), Kind::Denied),
            (&silent, scram, Kind::Misconfigured),
        ] {
            let error = driver_error(config, &answer).await;
            assert_eq!(classify(&error), kind, "{answer:?}: {error:?}");
        }
        assert_eq!(classify(&"sslmode=x".parse::<Config>().unwrap_err()), Kind::Other);
    }

    /// The table reads the driver's texts; an update that changes one fails here.
    #[tokio::test]
    async fn driver_texts_are_those_the_table_knows() {
        let config = Config::new().user("u").ssl_mode(tokio_postgres::config::SslMode::Require).clone();
        let (ours, mut server) = duplex(64);
        let serve = async {
            server.read_u64().await.unwrap();
            server.write_all(b"N").await.unwrap();
        };
        let (tls, ()) = tokio::join!(config.connect_raw(ours, NoTls), serve);
        assert_eq!(classify(&tls.map(|_| ()).unwrap_err()), ErrorKind::Misconfigured);
        let cut = driver_error(Config::new().user("u"), b"E\0\0").await;
        assert_eq!(cut.to_string(), "error communicating with the server");
    }
}
