//! The fencing token of a grant, from the text that the grant's own statement returns.

use distributed_lock::{Error, ErrorKind, FencingToken, Result};

/// Characters of a text shown in an error; a well-formed one has at most 63.
const SHOWN: usize = 80;

const REMEDY: &str = "restore a dump into a new cluster and raise the fencing epoch, or switch fencing off";

/// The token for `"<WAL file name> <redo position> <transaction id>"`, such as `"000000010000000000000001 0/16B3748 742"`.
///
/// From the highest bit: the operator's epoch (8 bits), the timeline (16), the redo position of the last checkpoint in
/// units of its 8-byte alignment (54), the transaction id (50). A part that does not fit is refused, since a part cut off
/// would let a later grant have the lower token.
pub(crate) fn parse(epoch: u8, text: &str) -> Result<FencingToken> {
    let mut words = text.split(' ');
    let (Some(file), Some(redo), Some(id), None) = (words.next(), words.next(), words.next(), words.next()) else {
        return Err(malformed(text, "three words"));
    };
    let timeline = timeline(file).ok_or_else(|| malformed(text, "a WAL file name of 24 hexadecimal digits first"))?;
    let redo = redo_units(redo).ok_or_else(|| malformed(text, "a redo position that is a multiple of 8 second"))?;
    let id = decimal(id).ok_or_else(|| malformed(text, "a transaction id third"))?;
    let value = u128::from(epoch) << 120
        | within("timeline", u64::from(timeline), 16)? << 104
        | within("redo position divided by 8", redo, 54)? << 50
        | within("transaction id", id, 50)?;
    Ok(FencingToken::new(value))
}

fn within(field: &str, value: u64, bits: u32) -> Result<u128> {
    if value >> bits == 0 {
        return Ok(value.into());
    }
    let message = format!("the {field} {value} does not fit in its {bits} bits of a fencing token: {REMEDY}");
    Err(Error::new(ErrorKind::LimitReached, message))
}

fn malformed(text: &str, expected: &str) -> Error {
    let shown: String = text.chars().take(SHOWN).collect();
    Error::new(ErrorKind::Other, format!("the server's answer {shown:?} gives no fencing token: expected {expected}"))
}

fn timeline(file: &str) -> Option<u32> {
    let is_name = file.len() == 24 && file.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_name.then(|| hexadecimal(file.get(..8)?)).flatten()
}

/// A checkpoint begins where a WAL record does, and these are aligned to 8 bytes.
fn redo_units(position: &str) -> Option<u64> {
    let (high, low) = position.split_once('/')?;
    let position = u64::from(hexadecimal(high)?) << 32 | u64::from(hexadecimal(low)?);
    (position % 8 == 0).then_some(position / 8)
}

/// Stricter than `from_str_radix`, which takes a sign.
fn hexadecimal(digits: &str) -> Option<u32> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

fn decimal(digits: &str) -> Option<u64> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> FencingToken {
        parse(0, text).unwrap()
    }

    #[test]
    fn tokens_are_the_frozen_ones() {
        let vectors = [
            (0, "000000010000000000000001 0/16B3748 742", "00000100000000b59ba40000000002e6"),
            (0, "000000010000000000000001 0/0 3", "00000100000000000000000000000003"),
            (1, "000000010000000000000001 0/16B3748 742", "01000100000000b59ba40000000002e6"),
            (0, "000000020000000000000003 0/3000028 11264", "00000200000001800014000000002c00"),
            (0, "0000002A0000000A000000FF A/FF000028 4294967296", "00002a0000057f800014000100000000"),
            (0, "0000002a0000000a000000ff a/ff000028 4294967296", "00002a0000057f800014000100000000"),
            (255, "0000FFFF0000000000000001 1FFFFFF/FFFFFFF8 1125899906842623", "ffffffffffffffffffffffffffffffff"),
        ];
        for (epoch, text, expected) in vectors {
            assert_eq!(parse(epoch, text).unwrap().to_string(), expected.replace(' ', ""), "{epoch} {text}");
        }
    }

    /// Parts in descending weight; each step here is a later grant, whatever the lighter parts do.
    #[test]
    fn a_heavier_part_beats_all_lighter_ones_and_the_text_sorts_as_the_token() {
        let ascending = [
            (0, "000000010000000000000001 0/28 3"),
            (0, "000000010000000000000001 0/28 4"),
            (0, "000000010000000000000001 0/28 1125899906842623"),
            (0, "000000010000000000000001 0/30 3"),
            (0, "000000010000000000000001 0/FFFFFFF8 9"),
            (0, "000000010000000000000001 1/0 3"),
            (0, "000000010000000000000001 1FFFFFF/FFFFFFF8 1125899906842623"),
            (0, "000000020000000000000001 0/0 0"),
            (0, "0000000A0000000000000001 0/0 0"),
            (0, "0000FFFF0000000000000001 1FFFFFF/FFFFFFF8 1125899906842623"),
            (1, "000000010000000000000001 0/0 0"),
            (2, "000000010000000000000001 0/0 0"),
        ];
        let tokens: Vec<_> = ascending.iter().map(|(epoch, text)| parse(*epoch, text).unwrap()).collect();
        for (earlier, later) in tokens.iter().zip(&tokens[1..]) {
            assert!(earlier < later, "{earlier} {later}");
            assert!(earlier.to_string() < later.to_string() && earlier.to_bytes() < later.to_bytes());
        }
    }

    /// The promotion that was measured: position and id of the standby were behind those of the old primary.
    #[test]
    fn a_promotion_to_a_higher_timeline_beats_a_higher_position_and_id() {
        let before = token("000000010000000000000003 0/33F0A38 731");
        let after = token("000000020000000000000002 0/2000028 725");
        assert!(before < after);
    }

    #[test]
    fn a_part_too_large_is_a_limit_named_with_its_value_and_the_way_out() {
        let cases = [
            ("000100000000000000000001 0/28 3", "timeline 65536 does not fit in its 16 bits"),
            (
                "000000010000000000000001 2000000/0 3",
                "redo position divided by 8 18014398509481984 does not fit in its 54",
            ),
            (
                "000000010000000000000001 0/28 1125899906842624",
                "transaction id 1125899906842624 does not fit in its 50",
            ),
            ("000000010000000000000001 0/28 18446744073709551615", "transaction id 18446744073709551615 does not fit"),
        ];
        for (text, expected) in cases {
            let error = parse(0, text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitReached, "{text}");
            assert!(error.to_string().contains(expected), "{error}");
            assert!(error.to_string().contains("raise the fencing epoch"), "{error}");
        }
    }

    #[test]
    fn a_malformed_text_is_an_error_that_shows_it_escaped_and_cut() {
        let texts = [
            "",
            " ",
            "000000010000000000000001 0/28",
            "000000010000000000000001 0/28 3 4",
            "000000010000000000000001  0/28 3",
            "00000001000000000000001 0/28 3",
            "0000000100000000000000001 0/28 3",
            "+00000010000000000000001 0/28 3",
            "00000001000000000000000g 0/28 3",
            "00000001\u{e9}00000000000000 0/28 3",
            "000000010000000000000001 028 3",
            "000000010000000000000001 /28 3",
            "000000010000000000000001 0/ 3",
            "000000010000000000000001 0/+28 3",
            "000000010000000000000001 0/29 3",
            "000000010000000000000001 0/100000000 3",
            "000000010000000000000001 0/28/30 3",
            "000000010000000000000001 0/28 ",
            "000000010000000000000001 0/28 -3",
            "000000010000000000000001 0/28 +3",
            "000000010000000000000001 0/28 18446744073709551616",
            "000000010000000000000001\n0/28 3",
        ];
        for text in texts {
            let error = parse(0, text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Other, "{text:?}");
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
        let long = parse(0, &"\u{e9}".repeat(10_000)).unwrap_err();
        assert!(long.to_string().len() < 300);
    }
}
