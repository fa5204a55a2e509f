//! BER as restricted by RFC 4511 §5.1: one-byte tags, definite lengths.

use alloc::vec::Vec;

use zeroize::Zeroizing;

/// Maximum bytes of a message of a directory. Only a few attributes of each entry are requested.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// Maximum bytes of a length after its first one: enough for 4 GiB, which other limits reject.
const LENGTH_BYTES_MAX: usize = 4;

pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const OCTETS: u8 = 0x04;
pub(crate) const ENUMERATED: u8 = 0x0A;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;

/// Reason why a message of the server is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LdapError {
    /// An element ends beyond the message.
    #[error("truncated element")]
    CutOff,
    /// A tag of more than one byte, an indefinite length, or a length of more than four bytes.
    #[error("an element in an encoding that LDAP does not use")]
    Encoding,
    /// An expected element is missing.
    #[error("missing {0}")]
    Unexpected(&'static str),
    /// The message is too long.
    #[error("a message of {length} bytes; at most {bytes_max}")]
    TooLong {
        /// Its length in bytes.
        length: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The entry has too many values.
    #[error("a message of more than {} values", crate::VALUES_MAX)]
    TooMany,
    /// There are bytes after the end.
    #[error("bytes after the end of an element")]
    Tail,
}

/// Returns the length of the message that starts with these bytes, header included. Returns `None`
/// if the header is incomplete.
///
/// # Errors
/// `Unexpected` if the bytes are no message, `Encoding`, `TooLong`.
pub fn message_length(bytes: &[u8]) -> Result<Option<usize>, LdapError> {
    message_length_up_to(bytes, MESSAGE_BYTES_MAX)
}

/// Does the same as [`message_length`] with another maximum.
///
/// # Errors
/// As [`message_length`].
pub fn message_length_up_to(bytes: &[u8], bytes_max: usize) -> Result<Option<usize>, LdapError> {
    match bytes.first() {
        None => return Ok(None),
        Some(&SEQUENCE) => {}
        Some(_) => return Err(LdapError::Unexpected("message")),
    }
    let Some((head, content)) = length(&bytes[1..])? else { return Ok(None) };
    let whole = content.saturating_add(head + 1);
    if whole > bytes_max { Err(LdapError::TooLong { length: whole, bytes_max }) } else { Ok(Some(whole)) }
}

/// Decodes a length field. Returns its size and its value.
fn length(bytes: &[u8]) -> Result<Option<(usize, usize)>, LdapError> {
    let Some((&first, rest)) = bytes.split_first() else { return Ok(None) };
    if first < 0x80 {
        return Ok(Some((1, usize::from(first))));
    }
    let count = usize::from(first & 0x7F);
    if count == 0 || count > LENGTH_BYTES_MAX {
        return Err(LdapError::Encoding);
    }
    let Some(digits) = rest.get(..count) else { return Ok(None) };
    // Some servers always send four bytes with leading zeros.
    let value = digits.iter().fold(0u64, |value, digit| value << 8 | u64::from(*digit));
    Ok(Some((1 + count, usize::try_from(value).unwrap_or(usize::MAX))))
}

/// A sequence of elements.
pub(crate) struct BerElements<'a>(&'a [u8]);

impl<'a> BerElements<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns tag and content of the next element.
    pub(crate) fn next(&mut self) -> Result<(u8, &'a [u8]), LdapError> {
        let (&tag, rest) = self.0.split_first().ok_or(LdapError::CutOff)?;
        if tag & 0x1F == 0x1F {
            return Err(LdapError::Encoding);
        }
        let (head, content) = length(rest)?.ok_or(LdapError::CutOff)?;
        let content = rest.get(head..head.saturating_add(content)).ok_or(LdapError::CutOff)?;
        self.0 = &rest[head + content.len()..];
        Ok((tag, content))
    }

    /// Returns the content of the next element, which must have this tag.
    pub(crate) fn expect(&mut self, tag: u8, what: &'static str) -> Result<&'a [u8], LdapError> {
        match self.next()? {
            (found, content) if found == tag => Ok(content),
            _ => Err(LdapError::Unexpected(what)),
        }
    }

    /// Decodes a number of 0 to 2^31 − 1, such as a message id or a result code.
    pub(crate) fn number(&mut self, tag: u8, what: &'static str) -> Result<u32, LdapError> {
        let digits = self.expect(tag, what)?;
        if digits.is_empty() || digits.len() > 4 || digits[0] & 0x80 != 0 {
            return Err(LdapError::Unexpected(what));
        }
        Ok(digits.iter().fold(0, |value, digit| value << 8 | u32::from(*digit)))
    }
}

/// Encoder of a message; its buffer is wiped, because a bind has a password.
#[derive(Default)]
pub(crate) struct BerWriter(Zeroizing<Vec<u8>>);

impl BerWriter {
    pub(crate) fn put(&mut self, tag: u8, content: &[u8]) {
        self.0.push(tag);
        let length = content.len();
        if length < 0x80 {
            self.0.push(length as u8);
        } else {
            // Content is always below 4 GiB.
            let digits = (length as u32).to_be_bytes();
            let zeros = digits.iter().take_while(|digit| **digit == 0).count();
            self.0.push(0x80 | (4 - zeros) as u8);
            self.0.extend_from_slice(&digits[zeros..]);
        }
        self.0.extend_from_slice(content);
    }

    pub(crate) fn put_all(&mut self, tag: u8, content: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        content(&mut inner);
        self.put(tag, &inner.0);
    }

    pub(crate) fn number(&mut self, tag: u8, value: u32) {
        let digits = value.to_be_bytes();
        // The shortest encoding without a sign bit: all numbers here are non-negative.
        let zeros = digits.iter().take(3).take_while(|digit| **digit == 0).count();
        let sign = &[0u8][..usize::from(digits[zeros] & 0x80 != 0)];
        self.put(tag, &[sign, &digits[zeros..]].concat());
    }

    pub(crate) fn finish(self) -> Zeroizing<Vec<u8>> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn lengths_follow_x690_up_to_the_limit() {
        let mut bytes = vec![SEQUENCE, 0x82, 0x01, 0x00];
        assert_eq!(message_length(&bytes), Ok(Some(260)));
        assert_eq!(message_length(&bytes[..3]), Ok(None));
        assert_eq!(message_length(&[SEQUENCE, 0x84, 0, 0, 0, 5]), Ok(Some(11)), "leading zeros");
        assert_eq!(message_length(&[]), Ok(None));
        assert_eq!(message_length(&[SEQUENCE, 0x80]), Err(LdapError::Encoding), "indefinite");
        assert_eq!(message_length(&[SEQUENCE, 0x85]), Err(LdapError::Encoding));
        assert_eq!(message_length(&[0x16, 3, 1]), Err(LdapError::Unexpected("message")));
        // The longest message, and one byte more.
        let most = (MESSAGE_BYTES_MAX - 5) as u32;
        bytes = [&[SEQUENCE, 0x83][..], &most.to_be_bytes()[1..]].concat();
        assert_eq!(message_length(&bytes), Ok(Some(MESSAGE_BYTES_MAX)));
        bytes = [&[SEQUENCE, 0x83][..], &(most + 1).to_be_bytes()[1..]].concat();
        let (length, bytes_max) = (MESSAGE_BYTES_MAX + 1, MESSAGE_BYTES_MAX);
        assert_eq!(message_length(&bytes), Err(LdapError::TooLong { length, bytes_max }));
        assert!(matches!(
            message_length(&[SEQUENCE, 0x84, 0xFF, 0xFF, 0xFF, 0xFF]),
            Err(LdapError::TooLong { .. })
        ));
    }

    #[test]
    fn written_elements_parse() {
        for length in [0, 1, 127, 128, 255, 256, 65_535, 65_536] {
            let mut out = BerWriter::default();
            out.put(OCTETS, &vec![7; length]);
            let bytes = out.finish();
            let mut elements = BerElements::new(&bytes);
            assert_eq!(elements.expect(OCTETS, "bytes").map(<[u8]>::len), Ok(length));
            assert!(elements.is_empty());
        }
        for value in [0, 1, 127, 128, 255, 256, 32_768, 0x7FFF_FFFF] {
            let mut out = BerWriter::default();
            out.number(INTEGER, value);
            let bytes = out.finish();
            assert_eq!(BerElements::new(&bytes).number(INTEGER, "number"), Ok(value), "{bytes:?}");
        }
    }

    #[test]
    fn truncated_or_invalid_elements_fail() {
        assert_eq!(BerElements::new(&[]).next(), Err(LdapError::CutOff));
        assert_eq!(BerElements::new(&[OCTETS]).next(), Err(LdapError::CutOff));
        assert_eq!(BerElements::new(&[OCTETS, 2, 1]).next(), Err(LdapError::CutOff));
        assert_eq!(BerElements::new(&[0x1F, 1, 1]).next(), Err(LdapError::Encoding));
        assert_eq!(BerElements::new(&[OCTETS, 0]).expect(SET, "set"), Err(LdapError::Unexpected("set")));
        for digits in [&[][..], &[0x80], &[1, 2, 3, 4, 5]] {
            let mut out = BerWriter::default();
            out.put(INTEGER, digits);
            assert_eq!(
                BerElements::new(&out.finish()).number(INTEGER, "number"),
                Err(LdapError::Unexpected("number"))
            );
        }
    }
}
