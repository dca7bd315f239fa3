//! From the name or URL of a provider to its lockers: the one place that knows which there are.

use std::{sync::Arc, time::Duration};

use distributed_lock::{InvalidInput, Locker, MemoryLocker, Result, Scoped, ScopedLocker, Ttl, backend::Fields};
#[cfg(feature = "postgres")]
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresScopedLocker};

use crate::{around::Around, noop::Noop};

/// The parts of a configuration, one for each provider that has settings.
pub(crate) const PARTS: [&str; 2] = ["memory", "postgres"];

#[cfg(feature = "postgres")]
const THERE_ARE: &str = "there are memory, noop, postgres, and URLs that begin with postgres:// or postgresql://";
#[cfg(not(feature = "postgres"))]
const THERE_ARE: &str = "there are memory and noop; postgres needs the cargo feature `postgres` of lock-connect";

/// A provider whose settings keep their rules.
pub(crate) enum Chosen {
    Memory {
        scoped_ttl: Ttl,
    },
    Noop,
    #[cfg(feature = "postgres")]
    Postgres(PostgresConfig),
}

impl Chosen {
    /// The provider that the fields name, with what its part sets. Faults stay with the fields.
    pub(crate) fn read(fields: &mut Fields) -> Option<Self> {
        let text = match fields.text("provider", &format!("must be text; {THERE_ARE}")) {
            None if fields.has_refused("provider") => return None,
            None => return fields.check(Err(Self::missing())),
            Some(text) => text,
        };
        let (scheme, rest) = match text.trim().split_once(':') {
            Some((scheme, rest)) => (scheme, Some(rest)),
            None => (text.trim(), None),
        };
        let scheme = scheme.to_ascii_lowercase();
        match (scheme.as_str(), rest) {
            ("memory", None | Some("")) => memory(fields),
            ("noop", None | Some("")) => Some(Self::Noop),
            ("memory" | "noop", Some(_)) => {
                let rule = format!("nothing can follow {scheme}: in it");
                fields.check(Err(InvalidInput::new("provider", format_args!("{scheme}:…"), &rule)))
            }
            ("postgres" | "postgresql", rest) => postgres(fields, &scheme, rest),
            (unknown, rest) => {
                let rule = format!("unknown; {THERE_ARE}");
                fields.check(Err(InvalidInput::new("provider", shown(&text, unknown, rest.is_some()), &rule)))
            }
        }
    }

    pub(crate) fn missing() -> InvalidInput {
        InvalidInput::new("provider", "missing", &format!("must be given, there is no default; {THERE_ARE}"))
    }

    pub(crate) fn locker(self, memory: &MemoryLocker, around: Around) -> Result<Arc<dyn Locker>> {
        match self {
            Self::Memory { .. } => around.locker(memory.peer()),
            Self::Noop => around.locker(Noop::new()),
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => {
                let config = config.with_telemetry(around.telemetry());
                around.locker(PostgresLocker::new(&config)?)
            }
        }
    }

    pub(crate) fn scoped_locker(self, memory: &MemoryLocker, around: Around) -> Result<Arc<dyn ScopedLocker>> {
        match self {
            Self::Memory { scoped_ttl } => around.scoped_locker(Scoped::new(memory.peer()).with_ttl(scoped_ttl)),
            Self::Noop => around.scoped_locker(Scoped::new(Noop::new())),
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => {
                let config = config.with_telemetry(around.telemetry());
                around.scoped_locker(PostgresScopedLocker::new(&config)?)
            }
        }
    }
}

fn memory(fields: &mut Fields) -> Option<Chosen> {
    let mut part = fields.part("memory").unwrap_or_default();
    let scoped_ttl = part.duration("scoped_ttl").unwrap_or(Duration::from_secs(30));
    let rule = "must be between 1 ms and 366 days";
    let refused = |_| InvalidInput::new("scoped_ttl", format_args!("{scoped_ttl:?}"), rule);
    let ttl = part.check(Ttl::new(scoped_ttl).map_err(refused));
    fields.check(part.finish().map_err(|invalid| invalid.under("memory")));
    ttl.map(|scoped_ttl| Chosen::Memory { scoped_ttl })
}

#[cfg(feature = "postgres")]
fn postgres(fields: &mut Fields, scheme: &str, rest: Option<&str>) -> Option<Chosen> {
    let mut part = fields.part("postgres").unwrap_or_default();
    match rest {
        None | Some("") => {
            if !part.has("url") && !fields.has_refused("postgres") {
                let rule = "must be given, unless the provider is the URL";
                fields.check::<()>(Err(InvalidInput::new("postgres.url", "missing", rule)));
            }
        }
        Some(rest) if !rest.starts_with("//") => {
            let rule = "must be a URL like postgres://user@host/database, or the name alone";
            fields.check::<()>(Err(InvalidInput::new("provider", format_args!("{scheme}:…"), rule)));
        }
        Some(_) if part.has("url") => {
            let rule = "must be left out, since the provider is the URL";
            fields.check::<()>(Err(InvalidInput::new("postgres.url", "not shown", rule)));
        }
        Some(rest) => {
            // By itself, so that what is wrong in it is found where it stands.
            let url = Fields::default().with_text("url", format!("{scheme}:{rest}"));
            match PostgresConfig::try_from(url.clone()) {
                Ok(_sound) => part.overlay(url),
                Err(invalid) => drop(fields.check::<()>(Err(invalid.under("provider")))),
            }
        }
    }
    fields.check(PostgresConfig::try_from(part).map_err(|invalid| invalid.under("postgres"))).map(Chosen::Postgres)
}

#[cfg(not(feature = "postgres"))]
fn postgres(fields: &mut Fields, scheme: &str, rest: Option<&str>) -> Option<Chosen> {
    let rule = "known, but this program was built without the cargo feature `postgres` of lock-connect";
    let value = format!("{scheme}{}", if rest.is_some() { ":…" } else { "" });
    fields.check(Err(InvalidInput::new("provider", value, rule)))
}

/// What was given, as far as it can hold no password: one word, or the one before a colon.
fn shown(text: &str, scheme: &str, more: bool) -> String {
    let is_word =
        scheme.len() <= 40 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte));
    match scheme {
        "" if text.is_empty() => "empty".to_owned(),
        "" if text.trim().is_empty() => "blank".to_owned(),
        word if is_word && !word.is_empty() => format!("{word}{}", if more { ":…" } else { "" }),
        _ => "not shown, it may hold a password".to_owned(),
    }
}
