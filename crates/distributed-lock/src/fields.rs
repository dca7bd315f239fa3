use std::{collections::BTreeMap, ffi::OsString, fmt, time::Duration};

use crate::InvalidInput;

mod given;

use given::Given;

/// What a configuration gives for one part of it, before any rule: from a file by serde, or from the environment.
///
/// A backend reads its fields one by one. What breaks a rule is kept, so that [`finish`](Self::finish) names all of it at once,
/// and so are fields that nobody asked for. A field that is left out, or null, is `None`, and so is a refused one. Text that is a
/// number or a truth value counts as one, since the environment has nothing else. Values are never shown by `Debug`, those of
/// secrets not by an error either.
///
/// Formats must describe themselves, as JSON, TOML and YAML do.
///
/// ```
/// use std::time::Duration;
/// use distributed_lock::{InvalidInput, backend::Fields};
///
/// #[derive(Debug, PartialEq, serde::Deserialize)]
/// #[serde(try_from = "Fields")]
/// struct Config {
///     size: usize,
///     patience: Option<Duration>,
/// }
///
/// impl TryFrom<Fields> for Config {
///     type Error = InvalidInput;
///     fn try_from(mut fields: Fields) -> Result<Self, InvalidInput> {
///         let size = fields.integer("size", "must be 1 to 9").unwrap_or(8);
///         let patience = fields.duration("patience");
///         fields.check(InvalidInput::all((size > 9).then(|| InvalidInput::new("size", size, "must be 1 to 9"))));
///         fields.finish().map(|()| Self { size, patience })
///     }
/// }
///
/// let config: Config = serde_json::from_str(r#"{ "patience": "250ms" }"#)?;
/// assert_eq!(config, Config { size: 8, patience: Some(Duration::from_millis(250)) });
/// let refused = serde_json::from_str::<Config>(r#"{ "size": 10, "patience": 5, "sise": 7 }"#).unwrap_err().to_string();
/// assert!(refused.starts_with("invalid configuration (3 faults): invalid patience (5): must be text with a unit"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Fields {
    given: BTreeMap<String, Given>,
    known: Vec<&'static str>,
    faults: Vec<InvalidInput>,
    refused: Vec<&'static str>,
}

const DURATION: &str = "must be text with a unit, such as \"5s\" or \"250ms\"";

impl Fields {
    /// From the variables whose names begin with this prefix: after it stands a field's name in upper case, or the name of one of
    /// these parts, `_` and the name of one of its fields.
    ///
    /// A name that nobody asks for is refused like an unknown field in a file, so take a prefix that nothing else uses.
    ///
    /// ```
    /// use distributed_lock::backend::Fields;
    ///
    /// let vars = [("APP_LOCKS_SIZE", "8"), ("APP_LOCKS_RETRY_LIMIT", "3"), ("HOME", "/")];
    /// let vars = vars.map(|(name, value)| (name.into(), value.into()));
    /// let mut fields = Fields::from_vars("APP_LOCKS_", &["retry"], vars); // or `std::env::vars_os()`
    /// assert_eq!(fields.integer("size", "must be a number"), Some(8));
    /// assert_eq!(fields.part("retry").unwrap().integer("limit", "must be a number"), Some(3));
    /// fields.finish()?;
    /// # Ok::<(), distributed_lock::InvalidInput>(())
    /// ```
    pub fn from_vars(prefix: &str, parts: &[&str], vars: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let (mut fields, mut whole) = (Self::default(), Self::default());
        for (name, value) in vars {
            let Some(name) = name.to_str().and_then(|name| name.strip_prefix(prefix)) else { continue };
            let name = name.to_ascii_lowercase();
            let value = value.into_string().map_or(Given::Other, Given::Text);
            let within = |part: &&str| name.strip_prefix(*part).and_then(|rest| rest.strip_prefix('_'));
            match parts.iter().find_map(|part| within(part).map(|field| (*part, field))) {
                Some((part, field)) => fields.given.entry(part.to_owned()).or_default().put(field, value),
                None => drop(whole.given.insert(name, value)),
            }
        }
        // After the fields, in whatever order they stood, so that a part can be switched off that has some.
        fields.overlay(whole);
        fields
    }

    /// Puts these fields over the ones that are here; of a part that both have, field by field. True leaves a part as it is, and
    /// false switches it off.
    ///
    /// ```
    /// use distributed_lock::backend::Fields;
    ///
    /// let mut fields: Fields = serde_json::from_str(r#"{ "size": 1, "limit": 1 }"#)?;
    /// fields.overlay(serde_json::from_str(r#"{ "size": 2 }"#)?);
    /// assert_eq!(fields.integer("size", "must be a number"), Some(2));
    /// assert_eq!(fields.integer("limit", "must be a number"), Some(1));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn overlay(&mut self, over: Self) {
        for (name, value) in over.given {
            self.given.entry(name).or_default().overlay(value);
        }
    }

    /// The same with this text for a field.
    ///
    /// ```
    /// use distributed_lock::backend::Fields;
    ///
    /// assert_eq!(Fields::default().with_text("name", "x").text("name", "must be text").as_deref(), Some("x"));
    /// ```
    #[must_use]
    pub fn with_text(mut self, name: &str, text: impl Into<String>) -> Self {
        self.given.insert(name.to_owned(), Given::Text(text.into()));
        self
    }

    /// Whether there is a field of this name that is not null.
    pub fn has(&self, name: &str) -> bool {
        !matches!(self.given.get(name), None | Some(Given::Null))
    }

    /// Text; the rule is told to who gives anything else.
    pub fn text(&mut self, name: &'static str, rule: &str) -> Option<String> {
        self.read(name, rule, |given| match given {
            Given::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// Text that no error shows.
    pub fn secret(&mut self, name: &'static str) -> Option<String> {
        match self.take(name)? {
            Given::Text(text) => Some(text),
            _ => self.refuse(name, InvalidInput::new(name, "not shown", "must be text")),
        }
    }

    /// A whole number that fits; the rule says which do.
    pub fn integer<N: TryFrom<i128>>(&mut self, name: &'static str, rule: &str) -> Option<N> {
        self.read(name, rule, |given| {
            let number = match given {
                Given::Integer(number) => *number,
                Given::Text(text) => text.parse().ok()?,
                _ => return None,
            };
            N::try_from(number).ok()
        })
    }

    /// A finite number.
    ///
    /// ```
    /// use distributed_lock::backend::Fields;
    ///
    /// let mut fields: Fields = serde_json::from_str(r#"{ "share": 0.5 }"#)?;
    /// assert_eq!(fields.number("share", "must be 0 to 1"), Some(0.5));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn number(&mut self, name: &'static str, rule: &str) -> Option<f64> {
        self.read(name, rule, |given| {
            let number: f64 = match given {
                Given::Integer(number) => number.to_string().parse().ok()?,
                Given::Number(number) => *number,
                Given::Text(text) => text.parse().ok()?,
                _ => return None,
            };
            number.is_finite().then_some(number)
        })
    }

    /// Text with a unit: `"5s"`, `"250ms"`, `"1m 30s"`.
    pub fn duration(&mut self, name: &'static str) -> Option<Duration> {
        self.read(name, DURATION, duration)
    }

    /// The same, or this word, which gives `Some(None)`.
    ///
    /// ```
    /// use distributed_lock::backend::Fields;
    ///
    /// let mut fields = Fields::default().with_text("patience", "forever");
    /// assert_eq!(fields.duration_or("patience", "forever"), Some(None));
    /// ```
    pub fn duration_or(&mut self, name: &'static str, word: &str) -> Option<Option<Duration>> {
        self.read(name, &format!("{DURATION}, or {word:?}"), |given| match given {
            Given::Text(text) if text == word => Some(None),
            given => duration(given).map(Some),
        })
    }

    /// A truth value.
    pub fn flag(&mut self, name: &'static str) -> Option<bool> {
        self.read(name, "must be true or false", flag)
    }

    /// One of these words.
    ///
    /// ```
    /// use distributed_lock::backend::Fields;
    ///
    /// let mut fields = Fields::default().with_text("mode", "slow");
    /// assert_eq!(fields.choice("mode", &["quick", "fast"]), None);
    /// assert_eq!(fields.finish().unwrap_err().to_string(), r#"invalid mode ("slow"): must be "quick" or "fast""#);
    /// ```
    pub fn choice(&mut self, name: &'static str, words: &[&'static str]) -> Option<&'static str> {
        let quoted: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
        self.read(name, &format!("must be {}", quoted.join(" or ")), |given| match given {
            Given::Text(text) => words.iter().copied().find(|word| word == text),
            _ => None,
        })
    }

    /// The fields of a part of it. True is a part without fields, and false is none.
    ///
    /// ```
    /// use distributed_lock::backend::Fields;
    ///
    /// let mut fields: Fields = serde_json::from_str(r#"{ "breaker": true, "other": false, "pool": { "size": 8 } }"#)?;
    /// assert!(fields.part("breaker").is_some() && fields.part("other").is_none());
    /// assert!(fields.part("pool").unwrap().has("size"));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn part(&mut self, name: &'static str) -> Option<Self> {
        match self.take(name)? {
            Given::Part(given) => Some(Self { given, ..Self::default() }),
            given => match flag(&given) {
                Some(asked) => asked.then(Self::default),
                // Text here may well be a connection string.
                None => {
                    let rule = "must be a map of settings, or true for the defaults";
                    self.refuse(name, InvalidInput::new(name, "not shown", rule))
                }
            },
        }
    }

    /// Leaves a field out of it: it is known, and keeps no rule here.
    pub fn ignore(&mut self, name: &'static str) {
        let _value = self.take(name);
    }

    /// Keeps what a rule found.
    pub fn check<T>(&mut self, judged: Result<T, InvalidInput>) -> Option<T> {
        judged.map_err(|invalid| self.faults.push(invalid)).ok()
    }

    /// Whether what was given for this field was refused, so that a rule over several fields can wait.
    pub fn has_refused(&self, name: &str) -> bool {
        self.refused.contains(&name)
    }

    /// # Errors
    /// All that was refused since the beginning, and all fields that nobody asked for.
    pub fn finish(self) -> Result<(), InvalidInput> {
        let rule = format!("unknown; known are {}", self.known.join(", "));
        let unknown = self.given.keys().map(|name| InvalidInput::new(given::shown(name), "not shown", &rule));
        InvalidInput::all(self.faults.into_iter().chain(unknown))
    }

    fn take(&mut self, name: &'static str) -> Option<Given> {
        if !self.known.contains(&name) {
            self.known.push(name);
        }
        self.given.remove(name).filter(|given| !matches!(given, Given::Null))
    }

    fn read<T>(&mut self, name: &'static str, rule: &str, parse: impl FnOnce(&Given) -> Option<T>) -> Option<T> {
        let given = self.take(name)?;
        let parsed = parse(&given);
        if parsed.is_none() {
            self.refuse::<T>(name, InvalidInput::new(name, given, rule));
        }
        parsed
    }

    fn refuse<T>(&mut self, name: &'static str, why: InvalidInput) -> Option<T> {
        self.refused.push(name);
        self.faults.push(why);
        None
    }
}

/// The names alone.
impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        given::debug(&self.given, f)
    }
}

fn flag(given: &Given) -> Option<bool> {
    match given {
        Given::Flag(flag) => Some(*flag),
        Given::Text(text) => text.parse().ok(),
        _ => None,
    }
}

fn duration(given: &Given) -> Option<Duration> {
    match given {
        // A bare 0 is the one number that the parser takes without a unit.
        Given::Text(text) if text.trim().bytes().any(|byte| byte.is_ascii_alphabetic()) => {
            humantime::parse_duration(text).ok()
        }
        _ => None,
    }
}
