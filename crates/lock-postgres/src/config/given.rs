//! A configuration as files and the environment give it.

use distributed_lock::{InvalidInput, backend::Fields};

use super::PostgresConfig;
use crate::{KeyScheme, connect::PasswordFile};

/// Every fault is in the error, with its field; secrets are not.
impl TryFrom<Fields> for PostgresConfig {
    type Error = InvalidInput;

    fn try_from(mut fields: Fields) -> Result<Self, InvalidInput> {
        let defaults = Self::for_pool();
        let config = Self {
            url: fields.secret("url"),
            password_file: fields
                .text("password_file", "must be the path of a file")
                .map(|path| PasswordFile::new(path.into())),
            namespace: fields.integer("namespace", "must be a 32-bit number").unwrap_or(defaults.namespace),
            pool_size: fields.integer("pool_size", "must be 1 to 1000 connections").unwrap_or(defaults.pool_size),
            conn_wait_timeout: fields.duration_or("conn_wait_timeout", "forever").unwrap_or(defaults.conn_wait_timeout),
            close_timeout: fields.duration("close_timeout").unwrap_or(defaults.close_timeout),
            heartbeat_interval: fields.duration("heartbeat_interval"),
            query_timeout: fields.duration("query_timeout"),
            session_ttl: fields.duration("session_ttl"),
            fencing: fields.flag("fencing").unwrap_or(defaults.fencing),
            fencing_epoch: fields.integer("fencing_epoch", "must be 0 to 255").unwrap_or(defaults.fencing_epoch),
            key_scheme: key_scheme(&mut fields).unwrap_or(defaults.key_scheme),
            hand_over: fields.flag("hand_over").unwrap_or(defaults.hand_over),
            watchdog: fields.flag("watchdog").unwrap_or(defaults.watchdog),
            ..defaults
        };
        fields.check(config.connection_string().transpose());
        fields.check(config.password());
        fields.check(config.limits());
        // A default in the place of what was refused may not fit to the others.
        if !["heartbeat_interval", "query_timeout", "session_ttl"].iter().any(|field| fields.has_refused(field)) {
            fields.check(config.timing());
        }
        fields.finish().map(|()| config)
    }
}

fn key_scheme(fields: &mut Fields) -> Option<KeyScheme> {
    let scheme = fields.choice("key_scheme", &["siphash", "fnv1a"]);
    let secret = fields.secret("key_secret");
    match (scheme, secret) {
        (Some("fnv1a"), None) => Some(KeyScheme::Fnv1a),
        (Some("fnv1a"), Some(_)) => {
            let rule = "must be left out, since the key_scheme fnv1a has no secret";
            fields.check(Err(InvalidInput::new("key_secret", "not shown", rule)))
        }
        (_, None) => None,
        (_, Some(digits)) => {
            let rule = "must be 32 hexadecimal digits, which are 16 bytes";
            let secret = bytes(&digits).ok_or_else(|| InvalidInput::new("key_secret", "not shown", rule));
            fields.check(secret).map(KeyScheme::SipHashWithSecret)
        }
    }
}

fn bytes(digits: &str) -> Option<[u8; 16]> {
    let is_hexadecimal = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hexadecimal.then(|| u128::from_str_radix(digits, 16).ok()).flatten().map(u128::to_be_bytes)
}
