//! Key=value text of login and text PDUs (RFC 7143 §6.1): splitting, numbers, booleans, encoding.
//!
//! Does not: know keys; `parameters` does.

use alloc::{string::String, vec::Vec};
use core::fmt::Write as _;

use crate::limits::{KEY_BINARY_MAX, KEY_NAME_MAX, KEY_VALUE_MAX, KEYS_MAX};

/// A negotiation text that violates the rules of §6.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// Not UTF-8 or a control character within.
    #[error("text is not printable UTF-8")]
    Encoding,
    /// A pair without `=`, or without a well-formed key name.
    #[error("text holds something other than key=value")]
    Form,
    /// Longer than [`KEY_NAME_MAX`].
    #[error("a key name exceeds {KEY_NAME_MAX} bytes")]
    LongKey,
    /// Longer than [`KEY_VALUE_MAX`].
    #[error("a value exceeds {KEY_VALUE_MAX} bytes")]
    LongValue,
    /// A key twice in one negotiation.
    #[error("duplicate key")]
    Twice,
    /// More than [`KEYS_MAX`] pairs.
    #[error("more than {KEYS_MAX} keys")]
    TooManyKeys,
}

/// Keys with large binary values (§6.1).
const BINARY: [&str; 2] = ["CHAP_C", "CHAP_R"];

/// Parses the pairs of a whole negotiation text.
///
/// # Errors
/// See [`TextError`].
pub(crate) fn parse(text: &[u8]) -> Result<Vec<(&str, &str)>, TextError> {
    parse_up_to(KEYS_MAX, text)
}

/// Like [`parse`], for answers that repeat their keys; the caller has limited the text.
pub(crate) fn parse_up_to(most: usize, text: &[u8]) -> Result<Vec<(&str, &str)>, TextError> {
    let mut pairs = Vec::new();
    for pair in text.split(|byte| *byte == 0).filter(|pair| !pair.is_empty()) {
        if pairs.len() == most {
            return Err(TextError::TooManyKeys);
        }
        let pair = core::str::from_utf8(pair).map_err(|_| TextError::Encoding)?;
        if pair.chars().any(char::is_control) {
            return Err(TextError::Encoding);
        }
        let (key, value) = pair.split_once('=').ok_or(TextError::Form)?;
        if key.len() > KEY_NAME_MAX {
            return Err(TextError::LongKey);
        }
        let most = if BINARY.contains(&key) { KEY_BINARY_MAX } else { KEY_VALUE_MAX };
        if value.len() > most {
            return Err(TextError::LongValue);
        }
        let proper = |c: char| c.is_ascii_alphanumeric() || ".-+@_#".contains(c);
        if !key.starts_with(|c: char| c.is_ascii_alphabetic()) || !key.chars().all(proper) {
            return Err(TextError::Form);
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

/// Appends `key=value` and its NUL.
pub(crate) fn put(text: &mut Vec<u8>, key: &str, value: impl core::fmt::Display) {
    let mut pair = String::new();
    // Writing to a String cannot fail.
    let _ = write!(pair, "{key}={value}\0");
    text.extend_from_slice(pair.as_bytes());
}

/// Parses a number as in §6.1: decimal or 0x-hexadecimal.
pub(crate) fn number(value: &str) -> Option<u32> {
    let (digits, radix) = match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (value, 10),
    };
    // from_str_radix would accept a sign.
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

/// Parses `Yes` or `No`.
pub(crate) fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// Returns the word for a boolean.
pub(crate) const fn word(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_read_strictly() {
        assert_eq!(number("0x10").zip(number("262144")), Some((16, 262_144)));
        for bad in ["", "+1", "-1", "0x", "0x+1", "1 ", "4294967296", "ten"] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn each_broken_rule_has_its_name() {
        assert_eq!(parse(b"Nothing\0"), Err(TextError::Form));
        assert_eq!(parse(b"=x\0"), Err(TextError::Form));
        assert_eq!(parse(b"1a=x\0"), Err(TextError::Form));
        assert_eq!(parse(b"a b=x\0"), Err(TextError::Form));
        assert_eq!(parse(b"a=\xFF\0"), Err(TextError::Encoding));
        assert_eq!(parse(b"a=\n\0"), Err(TextError::Encoding));
        let long = [b"a".repeat(KEY_NAME_MAX + 1), b"=1".to_vec()].concat();
        assert_eq!(parse(&long), Err(TextError::LongKey));
        let long = [b"a=".to_vec(), b"1".repeat(KEY_VALUE_MAX + 1)].concat();
        assert_eq!(parse(&long), Err(TextError::LongValue));
        assert_eq!(parse(&b"a=1\0".repeat(KEYS_MAX)).map(|pairs| pairs.len()), Ok(KEYS_MAX));
        assert_eq!(parse(&b"a=1\0".repeat(KEYS_MAX + 1)), Err(TextError::TooManyKeys));
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }

        #[test]
        fn pairs_round_trip(pairs in proptest::collection::vec(("[A-Za-z][A-Za-z0-9.+@_-]{0,62}", "[ -~]{0,255}"), 0..20)) {
            let mut text = Vec::new();
            for (key, value) in &pairs {
                put(&mut text, key, value);
            }
            let back: Vec<(String, String)> =
                parse(&text).unwrap().into_iter().map(|(k, v)| (k.into(), v.into())).collect();
            prop_assert_eq!(back, pairs);
        }
    }
}
