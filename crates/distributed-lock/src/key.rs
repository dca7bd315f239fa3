use std::{fmt, sync::Arc};

use crate::InvalidInput;

/// A lock's name: 1 to 512 bytes of UTF-8, taken as bytes. Parsed once, cheap to clone.
///
/// Nothing is folded: two names are the same lock only if they are the same bytes. Methods that want a key take
/// `impl TryInto<LockKey>`, so a literal works: `locker.try_acquire("orders", ttl)`.
///
/// ```
/// use distributed_lock::LockKey;
///
/// assert_eq!(LockKey::new("orders")?.as_str(), "orders");
/// assert_eq!(LockKey::new("").unwrap_err().to_string(), "invalid lock key (0 bytes): must be 1 to 512 bytes long");
/// # Ok::<(), distributed_lock::InvalidInput>(())
/// ```
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LockKey(Arc<str>);

impl LockKey {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 512;

    /// Parses a name; the error gives its length and the rule, never the name itself.
    ///
    /// # Errors
    /// For a name that is empty or longer than [`MAX_LEN`](Self::MAX_LEN) bytes.
    ///
    /// ```
    /// use distributed_lock::LockKey;
    ///
    /// assert!(LockKey::new("orders/4711").is_ok());
    /// assert!(LockKey::new("x".repeat(513)).is_err());
    /// ```
    pub fn new(name: impl Into<Arc<str>>) -> Result<Self, InvalidInput> {
        let name = name.into();
        match name.len() {
            1..=Self::MAX_LEN => Ok(Self(name)),
            len => Err(InvalidInput::new("lock key", format_args!("{len} bytes"), "must be 1 to 512 bytes long")),
        }
    }

    /// The name as given.
    ///
    /// ```
    /// use distributed_lock::LockKey;
    ///
    /// assert_eq!(LockKey::new("orders")?.as_str(), "orders");
    /// # Ok::<(), distributed_lock::InvalidInput>(())
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name quoted and escaped, so that a newline or a terminal code in it cannot forge a log line.
impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<&Self> for LockKey {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

macro_rules! parse_from { ($($text:ty),+) => { $(
    impl TryFrom<$text> for LockKey {
        type Error = InvalidInput;
        fn try_from(name: $text) -> Result<Self, InvalidInput> {
            Self::new(name.to_owned())
        }
    }
)+ } }
parse_from!(&str, &String, String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_counted_in_bytes() {
        assert!(LockKey::new("é".repeat(256)).is_ok());
        assert!(LockKey::new("é".repeat(257)).is_err());
        assert!(LockKey::new("").is_err());
    }

    #[test]
    fn odd_names_are_ordinary_distinct_keys_and_print_escaped() {
        let names = ["'; drop table cs; --", "a\nlevel=error", "\0", "\u{1b}[31m", "\u{e9}", "e\u{301}", "a", "a "];
        let keys: std::collections::HashSet<_> = names.iter().map(|name| LockKey::new(*name).unwrap()).collect();
        assert_eq!(keys.len(), names.len());
        for key in keys {
            assert!(!format!("{key:?}").contains(|c: char| c.is_control()));
        }
    }
}
