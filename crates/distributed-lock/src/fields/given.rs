//! One value of a configuration, of any type: so that the refusal of a wrong one can name its field and never shows a secret.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::Fields;

#[derive(Clone, Default)]
pub(super) enum Given {
    Flag(bool),
    Integer(i128),
    #[default]
    Null,
    Number(f64),
    /// A list, or bytes that are no text.
    Other,
    Part(BTreeMap<String, Self>),
    Text(String),
}

impl Given {
    /// Puts a value over this one; over that of a part, field by field.
    pub(super) fn overlay(&mut self, over: Self) {
        match (self, over) {
            (Self::Part(here), Self::Part(over)) => {
                for (name, value) in over {
                    here.entry(name).or_default().overlay(value);
                }
            }
            (Self::Part(_), over) if super::flag(&over) == Some(true) => {}
            (here, over) => *here = over,
        }
    }

    /// Makes it a part, and puts one of its fields.
    pub(super) fn put(&mut self, name: &str, value: Self) {
        if !matches!(self, Self::Part(_)) {
            *self = Self::Part(BTreeMap::new());
        }
        self.overlay(Self::Part(BTreeMap::from([(name.to_owned(), value)])));
    }
}

/// As in the file, text quoted and escaped.
impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(f),
            Self::Integer(number) => number.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => fmt::Debug::fmt(text, f),
            Self::Null | Self::Other | Self::Part(_) => f.write_str("neither text, number nor truth value"),
        }
    }
}

/// A name that is none of ours, if it is one at all: a value that slipped into its place is not shown.
pub(super) fn shown(name: &str) -> &str {
    let is_name =
        (1..=40).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_name { name } else { "field" }
}

pub(super) fn debug(given: &BTreeMap<String, Given>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    struct Part<'a>(&'a Given);
    impl fmt::Debug for Part<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {
                Given::Null => f.write_str("null"),
                Given::Part(given) => debug(given, f),
                _ => f.write_str("<given>"),
            }
        }
    }
    f.debug_map().entries(given.iter().map(|(name, value)| (shown(name), Part(value)))).finish()
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Any, so that what is no map is refused by us: a deserializer that wanted one would show the value, which may be a URL.
        let given = deserializer.deserialize_any(Map)?;
        Ok(Self { given, ..Self::default() })
    }
}

struct Map;

impl<'de> Visitor<'de> for Map {
    type Value = BTreeMap<String, Given>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of settings")
    }

    fn visit_str<E: Error>(self, _text: &str) -> Result<Self::Value, E> {
        Err(E::custom("invalid type: text that is not shown, expected a map of settings"))
    }

    fn visit_bytes<E: Error>(self, _bytes: &[u8]) -> Result<Self::Value, E> {
        Err(E::custom("invalid type: bytes, expected a map of settings"))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut given = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let value: Given = map.next_value()?;
            if given.contains_key(&name) {
                return Err(M::Error::custom(format_args!("{} is given twice", shown(&name))));
            }
            given.insert(name, value);
        }
        Ok(given)
    }
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Given;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a setting")
    }
    fn visit_bool<E>(self, flag: bool) -> Result<Given, E> {
        Ok(Given::Flag(flag))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Given, E> {
        Ok(Given::Integer(number.into()))
    }
    fn visit_u64<E>(self, number: u64) -> Result<Given, E> {
        Ok(Given::Integer(number.into()))
    }
    fn visit_i128<E>(self, number: i128) -> Result<Given, E> {
        Ok(Given::Integer(number))
    }
    fn visit_f64<E>(self, number: f64) -> Result<Given, E> {
        Ok(Given::Number(number))
    }
    fn visit_str<E>(self, text: &str) -> Result<Given, E> {
        Ok(Given::Text(text.to_owned()))
    }
    fn visit_string<E>(self, text: String) -> Result<Given, E> {
        Ok(Given::Text(text))
    }
    fn visit_bytes<E>(self, _bytes: &[u8]) -> Result<Given, E> {
        Ok(Given::Other)
    }
    fn visit_unit<E>(self) -> Result<Given, E> {
        Ok(Given::Null)
    }
    fn visit_none<E>(self) -> Result<Given, E> {
        Ok(Given::Null)
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Given, D::Error> {
        Given::deserialize(deserializer)
    }
    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Given, S::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Given::Other)
    }
    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Given, M::Error> {
        Map.visit_map(map).map(Given::Part)
    }
}
