//! What a configuration file gives, before it keeps any rule. Formats must describe themselves, as JSON, TOML and YAML do.

use std::{fmt, time::Duration};

use distributed_lock::InvalidInput;
use serde::{Deserialize, de::IgnoredAny};

use super::{PostgresConfig, all};
use crate::KeyScheme;

/// Every field takes any value here, so that the refusal of a wrong one can name the field and never shows a secret.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a map of the settings of a PostgreSQL locker")]
pub(super) struct Fields {
    url: Option<Given>,
    password_file: Option<Given>,
    namespace: Option<Given>,
    pool_size: Option<Given>,
    conn_wait_timeout: Option<Given>,
    close_timeout: Option<Given>,
    heartbeat_interval: Option<Given>,
    query_timeout: Option<Given>,
    session_ttl: Option<Given>,
    fencing: Option<Given>,
    fencing_epoch: Option<Given>,
    key_scheme: Option<Given>,
    key_secret: Option<Given>,
    hand_over: Option<Given>,
    watchdog: Option<Given>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Given {
    Flag(bool),
    Integer(i64),
    Number(f64),
    Text(String),
    Other(IgnoredAny),
}

const DURATION: &str = "must be text with a unit, such as \"5s\" or \"250ms\"";

impl TryFrom<Fields> for PostgresConfig {
    type Error = InvalidInput;

    fn try_from(fields: Fields) -> Result<Self, InvalidInput> {
        let mut faults = Vec::new();
        let mut config = Self::for_pool();
        config.url = take(&mut faults, secret_text("url", fields.url));
        if let Some(path) = take(&mut faults, text("password_file", fields.password_file, "the path of a file")) {
            config = config.with_password_file(path);
        }
        if let Some(namespace) = take(&mut faults, integer("namespace", fields.namespace, "a 32-bit number")) {
            config.namespace = namespace;
        }
        if let Some(connections) = take(&mut faults, integer("pool_size", fields.pool_size, "1 to 1000 connections")) {
            config.pool_size = connections;
        }
        match fields.conn_wait_timeout {
            Some(Given::Text(text)) if text == "forever" => config.conn_wait_timeout = None,
            given => {
                let rule = format!("{DURATION}, or \"forever\"");
                if let Some(timeout) = take(&mut faults, duration("conn_wait_timeout", given, &rule)) {
                    config.conn_wait_timeout = Some(timeout);
                }
            }
        }
        if let Some(timeout) = take(&mut faults, duration("close_timeout", fields.close_timeout, DURATION)) {
            config.close_timeout = timeout;
        }
        config.heartbeat_interval =
            take(&mut faults, duration("heartbeat_interval", fields.heartbeat_interval, DURATION));
        config.query_timeout = take(&mut faults, duration("query_timeout", fields.query_timeout, DURATION));
        config.session_ttl = take(&mut faults, duration("session_ttl", fields.session_ttl, DURATION));
        if let Some(fencing) = take(&mut faults, flag("fencing", fields.fencing)) {
            config.fencing = fencing;
        }
        if let Some(epoch) = take(&mut faults, integer("fencing_epoch", fields.fencing_epoch, "0 to 255")) {
            config.fencing_epoch = epoch;
        }
        if let Some(scheme) = take(&mut faults, key_scheme(fields.key_scheme, fields.key_secret)) {
            config.key_scheme = scheme;
        }
        if let Some(hand_over) = take(&mut faults, flag("hand_over", fields.hand_over)) {
            config.hand_over = hand_over;
        }
        if let Some(watchdog) = take(&mut faults, flag("watchdog", fields.watchdog)) {
            config.watchdog = watchdog;
        }
        if !faults.is_empty() {
            return Err(all(&faults));
        }
        config.settings().map(|_| config)
    }
}

/// What is well-formed; a fault is put with the others.
fn take<T>(faults: &mut Vec<InvalidInput>, parsed: Result<Option<T>, InvalidInput>) -> Option<T> {
    parsed.unwrap_or_else(|fault| {
        faults.push(fault);
        None
    })
}

fn secret_text(field: &str, given: Option<Given>) -> Result<Option<String>, InvalidInput> {
    match given {
        None => Ok(None),
        Some(Given::Text(text)) => Ok(Some(text)),
        Some(_) => Err(InvalidInput::new(field, "not shown", "must be text")),
    }
}

fn text(field: &str, given: Option<Given>, what: &str) -> Result<Option<String>, InvalidInput> {
    match given {
        None => Ok(None),
        Some(Given::Text(text)) => Ok(Some(text)),
        Some(given) => Err(InvalidInput::new(field, given, &format!("must be {what}"))),
    }
}

/// Text that is a number counts as one: the environment has nothing else.
fn integer<N: TryFrom<i64>>(field: &str, given: Option<Given>, range: &str) -> Result<Option<N>, InvalidInput> {
    let Some(given) = given else { return Ok(None) };
    let number = match &given {
        Given::Integer(number) => Some(*number),
        Given::Text(text) => text.parse().ok(),
        _ => None,
    };
    let number = number.and_then(|number| N::try_from(number).ok());
    number.map(Some).ok_or_else(|| InvalidInput::new(field, given, &format!("must be {range}")))
}

fn duration(field: &str, given: Option<Given>, rule: &str) -> Result<Option<Duration>, InvalidInput> {
    let Some(given) = given else { return Ok(None) };
    let parsed = match &given {
        // A bare 0 is the one number that the parser takes without a unit.
        Given::Text(text) if text.trim().bytes().any(|byte| byte.is_ascii_alphabetic()) => {
            humantime::parse_duration(text).ok()
        }
        _ => None,
    };
    parsed.map(Some).ok_or_else(|| InvalidInput::new(field, given, rule))
}

/// Text that is a truth value counts as one: the environment has nothing else.
fn flag(field: &str, given: Option<Given>) -> Result<Option<bool>, InvalidInput> {
    match given {
        None => Ok(None),
        Some(Given::Flag(flag)) => Ok(Some(flag)),
        Some(Given::Text(text)) if text == "true" => Ok(Some(true)),
        Some(Given::Text(text)) if text == "false" => Ok(Some(false)),
        Some(given) => Err(InvalidInput::new(field, given, "must be true or false")),
    }
}

fn key_scheme(scheme: Option<Given>, secret: Option<Given>) -> Result<Option<KeyScheme>, InvalidInput> {
    let secret = secret_text("key_secret", secret)?;
    let scheme = match scheme {
        None => None,
        Some(Given::Text(text)) if text == "siphash" => Some(KeyScheme::SipHash),
        Some(Given::Text(text)) if text == "fnv1a" => Some(KeyScheme::Fnv1a),
        Some(given) => return Err(InvalidInput::new("key_scheme", given, "must be \"siphash\" or \"fnv1a\"")),
    };
    match (scheme, secret) {
        (scheme, None) => Ok(scheme),
        (Some(KeyScheme::Fnv1a), Some(_)) => Err(InvalidInput::new(
            "key_secret",
            "not shown",
            "must be left out, since the key_scheme fnv1a has no secret",
        )),
        (_, Some(digits)) => {
            let secret = bytes(&digits).ok_or_else(|| {
                InvalidInput::new("key_secret", "not shown", "must be 32 hexadecimal digits, which are 16 bytes")
            })?;
            Ok(Some(KeyScheme::SipHashWithSecret(secret)))
        }
    }
}

fn bytes(digits: &str) -> Option<[u8; 16]> {
    let is_hexadecimal = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hexadecimal.then(|| u128::from_str_radix(digits, 16).ok()).flatten().map(u128::to_be_bytes)
}

/// As in the file, text quoted and escaped.
impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(f),
            Self::Integer(number) => number.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => fmt::Debug::fmt(text, f),
            Self::Other(_) => f.write_str("neither text, number nor truth value"),
        }
    }
}
