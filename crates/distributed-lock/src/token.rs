use std::fmt;

/// A number minted with each grant, strictly increasing per key in grant order. Its text and its bytes sort as it does.
///
/// Hand it to the resource you protect and let the resource refuse anything lower than the highest it has seen: a lock
/// alone cannot stop a process that was paused past the end of its hold.
///
/// ```
/// use distributed_lock::FencingToken;
///
/// let (older, newer) = (FencingToken::new(9), FencingToken::new(10));
/// assert!(older < newer && older.to_string() < newer.to_string() && older.to_bytes() < newer.to_bytes());
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct FencingToken(u128);

impl FencingToken {
    /// The token with this value.
    ///
    /// ```
    /// use distributed_lock::FencingToken;
    ///
    /// assert_eq!(FencingToken::new(7).get(), 7);
    /// ```
    pub const fn new(value: u128) -> Self {
        Self(value)
    }

    /// Its value.
    pub const fn get(self) -> u128 {
        self.0
    }

    /// Its 16 bytes, big-endian, so that comparing bytes compares tokens.
    ///
    /// ```
    /// use distributed_lock::FencingToken;
    ///
    /// assert_eq!(FencingToken::new(7).to_bytes()[15], 7);
    /// ```
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The token with these big-endian bytes.
    ///
    /// ```
    /// use distributed_lock::FencingToken;
    ///
    /// let token = FencingToken::new(7);
    /// assert_eq!(FencingToken::from_bytes(token.to_bytes()), token);
    /// ```
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
