use std::{fmt, hash::Hasher};

use distributed_lock::LockKey;
use siphasher::sip::SipHasher24;

/// The key of [`KeyScheme::SipHash`]; frozen, as every vector below.
const DEFAULT_SECRET: [u8; 16] = *b"distributed-lock";

/// First of the hashed bytes, so that no other use of the hash in this crate gives the id of a lock.
const LOCK_DOMAIN: u8 = 1;

/// How a namespace and a lock's name become the 64-bit id of a PostgreSQL advisory lock.
///
/// All processes that are to exclude each other must use the same scheme and namespace. Changing either is a new set of
/// locks: stop every process first. Ids are in PostgreSQL's `bigint` space of advisory locks, which is apart from its space
/// of two `int`s. Two names share an id with odds of one in 2<sup>64</sup> a pair (about one in 370,000 that it happens
/// anywhere among ten million names); they then exclude each other, and nothing worse.
///
/// ```
/// use lock_postgres::{KeyScheme, PostgresConfig};
///
/// assert_eq!(KeyScheme::default(), KeyScheme::SipHash);
/// let secret = KeyScheme::SipHashWithSecret(*b"sixteen of bytes");
/// assert_eq!(format!("{secret:?}"), "SipHashWithSecret(<redacted>)");
/// let config = PostgresConfig::for_pool().with_key_scheme(secret);
/// # let _ = config;
/// ```
#[derive(Clone, Copy, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum KeyScheme {
    /// FNV-1a over the namespace (4 bytes, big-endian) and the name's UTF-8 bytes: for sharing locks with processes of the
    /// Go original. Whoever chooses names can make them collide.
    Fnv1a,
    /// SipHash-2-4 with the 16 ASCII bytes `distributed-lock` as its key, over one byte 1, the namespace (4 bytes,
    /// big-endian) and the name's UTF-8 bytes. The default.
    #[default]
    SipHash,
    /// The same with a key of your own, unknown to whoever chooses names: they cannot make names collide.
    SipHashWithSecret([u8; 16]),
}

impl KeyScheme {
    /// The lock's id in the server; the same on every platform, in every build, for ever.
    ///
    /// `pg_locks` shows its upper half as `classid` and its lower half as `objid`, with `objsubid` 1.
    pub fn id(&self, namespace: i32, key: &LockKey) -> i64 {
        let name = key.as_str().as_bytes();
        match self {
            Self::Fnv1a => fnv1a(namespace, name),
            Self::SipHash => siphash(&DEFAULT_SECRET, namespace, name),
            Self::SipHashWithSecret(secret) => siphash(secret, namespace, name),
        }
    }
}

/// Never shows the secret.
impl fmt::Debug for KeyScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fnv1a => "Fnv1a",
            Self::SipHash => "SipHash",
            Self::SipHashWithSecret(_) => "SipHashWithSecret(<redacted>)",
        })
    }
}

fn siphash(secret: &[u8; 16], namespace: i32, name: &[u8]) -> i64 {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(&[LOCK_DOMAIN]);
    hasher.write(&namespace.to_be_bytes());
    hasher.write(name);
    hasher.finish() as i64
}

fn fnv1a(namespace: i32, name: &[u8]) -> i64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let bytes = namespace.to_be_bytes();
    let hash = bytes.iter().chain(name).fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    hash as i64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn id(scheme: KeyScheme, namespace: i32, name: &str) -> i64 {
        scheme.id(namespace, &LockKey::new(name).unwrap())
    }

    /// Computed by a second implementation of SipHash-2-4 in another language, checked against the vector of its paper.
    #[test]
    fn case_06_siphash_ids_are_the_frozen_ones() {
        let longest = "x".repeat(LockKey::MAX_LEN);
        let vectors: [(i32, &str, i64); 17] = [
            (0, "k", -267_060_044_214_003_201),
            (1, "k", 7_613_889_040_714_248_424),
            (-1, "k", -7_568_388_865_004_380_035),
            (i32::MAX, "k", -1_157_207_728_204_432_476),
            (i32::MIN, "k", -3_222_955_254_925_878_640),
            (0, "a", -3_403_160_415_705_413_454),
            (0, "b", -6_696_661_348_568_117_906),
            (0, "a ", 7_156_805_234_574_893_977),
            (0, "\u{e9}", 2_552_154_011_218_901_758),
            (0, "e\u{301}", -6_817_033_783_956_900_638),
            (0, "\0", -12_132_278_983_129_764),
            (0, "order:42", -8_280_546_477_428_446_176),
            (7, "nightly-compaction", -896_428_307_211_701_250),
            (42, "chore", -7_042_566_835_733_423_291),
            (-42, "chore", 2_718_571_424_841_175_085),
            (0, "\u{1f512}", 2_616_564_879_820_966_033),
            (0, &longest, -3_314_718_100_558_876_871),
        ];
        for (namespace, name, expected) in vectors {
            assert_eq!(id(KeyScheme::SipHash, namespace, name), expected, "{namespace} {name:?}");
        }
    }

    #[test]
    fn case_06_siphash_ids_with_a_secret_are_the_frozen_ones() {
        let secret = std::array::from_fn(|index| u8::try_from(index).unwrap());
        let longest = "x".repeat(LockKey::MAX_LEN);
        let vectors: [(i32, &str, i64); 4] = [
            (0, "k", -687_116_251_031_102_149),
            (-1, "k", -637_250_845_464_797_800),
            (0, "order:42", -6_794_461_564_028_831_333),
            (0, &longest, 6_357_841_893_297_985_518),
        ];
        for (namespace, name, expected) in vectors {
            assert_eq!(id(KeyScheme::SipHashWithSecret(secret), namespace, name), expected, "{namespace} {name:?}");
        }
        let default = KeyScheme::SipHashWithSecret(*b"distributed-lock");
        assert_eq!(id(default, 0, "k"), id(KeyScheme::SipHash, 0, "k"));
    }

    /// The ids that the Go original computes. Its one for the empty name is below `LockKey`, which refuses that name.
    #[test]
    fn case_06_fnv1a_ids_are_those_of_the_original() {
        let vectors: [(i32, &str, i64); 12] = [
            (0, "", 5_558_979_605_539_197_941),
            (0, "k", -1_964_703_200_901_900_934),
            (1, "k", -1_965_591_606_297_306_197),
            (0, "a", -1_964_714_196_018_183_044),
            (0, "b", -1_964_710_897_483_298_411),
            (7, "nightly-compaction", 4_245_717_979_147_071_141),
            (42, "chore", -5_464_270_387_435_335_428),
            (-1, "k", -6_034_990_589_370_483_314),
            (i32::MAX, "k", -5_962_543_329_195_612_402),
            (i32::MIN, "k", 4_336_278_249_100_314_362),
            (0, "\u{e9}", -3_072_708_414_230_142_511),
            (0, "order:42", 3_190_025_737_164_670_369),
        ];
        for (namespace, name, expected) in vectors {
            assert_eq!(fnv1a(namespace, name.as_bytes()), expected, "{namespace} {name:?}");
            if !name.is_empty() {
                assert_eq!(id(KeyScheme::Fnv1a, namespace, name), expected, "{namespace} {name:?}");
            }
        }
    }

    #[test]
    fn case_06_names_that_look_alike_have_ids_of_their_own() {
        let names = ["\u{e9}", "e\u{301}", "e", "a", "a ", " a", "A", "a\0", "\0", "\0\0", "a\n", "'a'", "\u{1b}[31ma"];
        for scheme in [KeyScheme::Fnv1a, KeyScheme::SipHash, KeyScheme::SipHashWithSecret([7; 16])] {
            let ids: HashSet<_> = names.iter().map(|name| id(scheme, 0, name)).collect();
            assert_eq!(ids.len(), names.len(), "{scheme:?}");
        }
    }

    /// The names of the reports collide in 32-bit hashes.
    #[test]
    fn case_07_names_that_collide_in_32_bit_hashes_have_ids_of_their_own() {
        let pairs = [
            ("costarring", "liquid"),
            ("declinate", "macallums"),
            ("plumless", "buckeroo"),
            ("job-298872", "job-4775"),
        ];
        for (one, other) in pairs {
            for scheme in [KeyScheme::Fnv1a, KeyScheme::SipHash] {
                assert_ne!(id(scheme, 0, one), id(scheme, 0, other), "{one} {other}");
            }
        }
    }

    /// Names like those of users, in two namespaces: no id twice, and each bit set in half of the ids. By chance alone five
    /// standard deviations are left once in 27,000 runs of 64 bits; the names are fixed, so this passes always or never.
    /// `LOCK_TEST_ROUNDS=10000000` is the full number.
    #[test]
    fn case_07_a_million_names_have_ids_of_their_own_and_every_bit_is_balanced() {
        let rounds = lock_testkit::requirement::rounds(1_000_000).clamp(1_000_000, 10_000_000);
        let mut set = [0_u64; 64];
        let mut ids = Vec::with_capacity(usize::try_from(rounds).unwrap());
        for round in 0..rounds {
            let namespace = i32::from(round % 2 == 0) - 1;
            let id = id(KeyScheme::SipHash, namespace, &format!("tenant-{}/order:{round}", round % 97));
            for (bit, count) in set.iter_mut().enumerate() {
                *count += ((id as u64) >> bit) & 1;
            }
            ids.push(id);
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), usize::try_from(rounds).unwrap());
        let rounds = f64::from(u32::try_from(rounds).unwrap());
        for (bit, count) in set.into_iter().enumerate() {
            let deviation = (f64::from(u32::try_from(count).unwrap()) - rounds / 2.0) / (rounds.sqrt() / 2.0);
            assert!(deviation.abs() < 5.0, "bit {bit} is {deviation} standard deviations off the middle");
        }
    }

    #[test]
    fn a_secret_and_a_namespace_change_every_id_and_the_secret_is_not_shown() {
        let secret = KeyScheme::SipHashWithSecret(*b"canary-canary-16");
        assert_ne!(id(secret, 0, "k"), id(KeyScheme::SipHash, 0, "k"));
        assert_ne!(id(secret, 0, "k"), id(secret, 1, "k"));
        assert_eq!(format!("{secret:?} {:?}", Some(secret)), format!("{0} Some({0})", "SipHashWithSecret(<redacted>)"));
    }
}
