//! The two ways a connection string is written, read into named values. No error made here repeats a part of the string
//! that could belong to a password.

use std::{collections::BTreeMap, net::Ipv6Addr};

use distributed_lock::InvalidInput;

/// The parameters understood, in the words of libpq.
const KNOWN: [&str; 13] = [
    "user",
    "password",
    "dbname",
    "connect_timeout",
    "application_name",
    "options",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "target_session_attrs",
    "channel_binding",
    // Read here only; the hosts and ports are kept as lists.
    "host",
];

/// What a connection string says, before any value is judged.
#[derive(Default)]
pub(super) struct Settings {
    values: BTreeMap<&'static str, String>,
    /// In the order given; an empty one stands for the default.
    pub(super) hosts: Vec<String>,
    /// As many as hosts, or one for all, or none.
    pub(super) ports: Vec<String>,
    /// Whether a faulty port can be shown: `postgres://user:secret` has the form of a host and a port.
    pub(super) ports_are_public: bool,
}

impl Settings {
    /// Reads a URL or a list of `name=value` pairs.
    pub(super) fn parse(text: &str) -> Result<Self, InvalidInput> {
        if text.contains('\0') {
            return Err(unshown("must not contain NUL"));
        }
        let scheme_end = text.find("://").filter(|end| !text[..*end].contains(['=', '\'', ' ']));
        match scheme_end.map(|end| (&text[..end], &text[end + 3..])) {
            Some(("postgres" | "postgresql", rest)) => parse_url(rest),
            Some((scheme, _)) if is_plain(scheme) => {
                Err(InvalidInput::new("connection URL scheme", scheme, "must be postgres:// or postgresql://"))
            }
            Some(_) => Err(unshown("a URL must begin with postgres:// or postgresql://")),
            None => parse_pairs(text),
        }
    }

    /// Takes one value out; each is judged once.
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        self.values.remove(name)
    }

    /// Keeps one value. `follows_password` says that the name could be the rest of a password that should have been quoted.
    fn put(&mut self, name: &str, value: String, follows_password: bool) -> Result<(), InvalidInput> {
        if name == "port" {
            self.ports = value.split(',').map(str::to_owned).collect();
            self.ports_are_public = true;
            return Ok(());
        }
        if name == "host" {
            self.hosts = value.split(',').map(str::to_owned).collect();
            return Ok(());
        }
        if name == "sslpassword" {
            return Err(InvalidInput::new("sslpassword", "not shown", "encrypted keys are not read: decrypt `sslkey`"));
        }
        let Some(known) = KNOWN.into_iter().find(|known| *known == name) else {
            let shown = if is_plain(name) && !follows_password { name } else { "not shown" };
            let rule = format!("no such parameter; known are {}, port", KNOWN.join(", "));
            return Err(InvalidInput::new("connection parameter", shown, &rule));
        };
        self.values.insert(known, value);
        Ok(())
    }
}

/// An error about the string as a whole, which is not shown.
fn unshown(rule: &str) -> InvalidInput {
    InvalidInput::new("connection string", "not shown, it may hold a password", rule)
}

fn is_plain(name: &str) -> bool {
    (1..=40).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// `[user[:password]@][host[:port]][,...][/dbname][?name=value[&...]]`
fn parse_url(rest: &str) -> Result<Settings, InvalidInput> {
    let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
    let (login, hosts) = match authority.split_once('@') {
        Some((login, hosts)) => (Some(login), hosts),
        None => (None, authority),
    };
    // A password that was not encoded moves the borders of all parts, and then any of them could hold a piece of it.
    if hosts.contains('@') || path.contains('@') || (login.is_none() && query.contains('@')) {
        return Err(unshown("user, password and database must be percent-encoded: `@` is %40, `/` is %2F, `?` is %3F"));
    }

    let mut settings = Settings { ports_are_public: login.is_some(), ..Settings::default() };
    if let Some(login) = login {
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        settings.put("user", decode(user)?, false)?;
        settings.put("password", decode(password)?, false)?;
    }
    for part in hosts.split(',') {
        let (host, port) = split_port(part)?;
        settings.hosts.push(host);
        settings.ports.push(port);
    }
    if let Some(name) = path.strip_prefix('/') {
        settings.put("dbname", decode(name)?, false)?;
    }

    // As in libpq, the query overrides what stands before it: `postgres://localhost/db?host=/run/postgresql`.
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let mut seen = Vec::new();
    for pair in pairs {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(unshown("each parameter after `?` must be written name=value"));
        };
        let name = decode(name)?;
        let follows_password = seen.last().is_some_and(|last| last == "password");
        settings.put(&name, decode(value)?, follows_password)?;
        refuse_twice(&mut seen, name)?;
    }
    Ok(settings)
}

/// `host`, `host:port` or `[v6]:port`; both halves may be empty.
fn split_port(part: &str) -> Result<(String, String), InvalidInput> {
    let Some(bracketed) = part.strip_prefix('[') else {
        let (host, port) = part.split_once(':').unwrap_or((part, ""));
        if port.contains(':') {
            return Err(unshown("an IPv6 address must stand in brackets, as in [::1]:5432"));
        }
        return Ok((decode(host)?, port.to_owned()));
    };
    let (address, after) =
        bracketed.split_once(']').ok_or_else(|| unshown("the bracket of an IPv6 address must be closed"))?;
    if address.parse::<Ipv6Addr>().is_err() {
        return Err(unshown("what stands in brackets must be an IPv6 address"));
    }
    match after.strip_prefix(':') {
        Some(port) => Ok((address.to_owned(), port.to_owned())),
        None if after.is_empty() => Ok((address.to_owned(), String::new())),
        None => Err(unshown("after an IPv6 address in brackets only `:port` may follow")),
    }
}

fn decode(text: &str) -> Result<String, InvalidInput> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'%' {
            decoded.push(*first);
            rest = after;
            continue;
        }
        let byte = match after {
            [high, low, ..] => hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        match byte {
            None => return Err(unshown("`%` must be followed by two hexadecimal digits; a `%` itself is %25")),
            Some(0) => return Err(unshown("must not contain NUL")),
            Some(byte) => decoded.push(byte),
        }
        rest = &after[2..];
    }
    String::from_utf8(decoded).map_err(|_| unshown("what is percent-encoded must be UTF-8"))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// `name = value` pairs; a value with spaces stands in single quotes, and `\` takes the next character as it is.
fn parse_pairs(text: &str) -> Result<Settings, InvalidInput> {
    let mut settings = Settings { ports_are_public: true, ..Settings::default() };
    let mut seen = Vec::new();
    let mut follows_password = false;
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let Some((name, after)) = rest.split_once('=') else {
            return Err(unshown(
                "each parameter must be written name=value; a value with spaces stands in single quotes",
            ));
        };
        let name = name.trim_end();
        if name.contains(char::is_whitespace) {
            return Err(unshown(
                "each parameter must be written name=value; a value with spaces stands in single quotes",
            ));
        }
        let (value, quoted, after) = read_value(after.trim_start())?;
        settings.put(name, value, follows_password)?;
        refuse_twice(&mut seen, name.to_owned())?;
        follows_password = name == "password" && !quoted;
        rest = after.trim_start();
    }
    Ok(settings)
}

fn read_value(text: &str) -> Result<(String, bool, &str), InvalidInput> {
    let quoted = text.starts_with('\'');
    let mut chars = text.char_indices().skip(usize::from(quoted));
    let mut value = String::new();
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' => match chars.next() {
                Some((_, escaped)) => value.push(escaped),
                None => return Err(unshown("a backslash must be followed by the character it stands for")),
            },
            '\'' if quoted => {
                let after = &text[at + 1..];
                if after.starts_with(|next: char| !next.is_whitespace()) {
                    return Err(unshown("a quoted value must be followed by a space or the end"));
                }
                return Ok((value, true, after));
            }
            _ if !quoted && char.is_whitespace() => return Ok((value, false, &text[at..])),
            _ => value.push(char),
        }
    }
    if quoted { Err(unshown("a quoted value must end with a single quote")) } else { Ok((value, false, "")) }
}

/// One of two values would be ignored, and nobody would know which.
fn refuse_twice(seen: &mut Vec<String>, name: String) -> Result<(), InvalidInput> {
    if seen.contains(&name) {
        return Err(InvalidInput::new("connection parameter", name, "is given twice"));
    }
    seen.push(name);
    Ok(())
}
