//! BER as RFC 4511 §5.1 restricts it: one-byte tags, definite lengths.

use alloc::vec::Vec;

use zeroize::Zeroizing;

/// Bytes of one message of a directory at most. Entries are asked for with a handful of attributes each.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// Bytes that a length may have after its first one: enough for 4 GiB, which is refused by other limits.
const LENGTH_BYTES_MAX: usize = 4;

pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const OCTETS: u8 = 0x04;
pub(crate) const ENUMERATED: u8 = 0x0A;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;

/// What a directory sent is no message that is understood here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LdapError {
    /// An element ends beyond the bytes that there are.
    #[error("an element is cut off")]
    CutOff,
    /// A tag of more than one byte, an indefinite length, or a length of more than four bytes.
    #[error("an element in an encoding that LDAP does not use")]
    Encoding,
    /// Something else than what must be there.
    #[error("no {0} where one must be")]
    Unexpected(&'static str),
    /// More bytes than a message may have.
    #[error("a message of {length} bytes; at most {bytes_max}")]
    TooLong {
        /// Its bytes.
        length: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// More values than a message may have.
    #[error("a message of more than {} values", crate::VALUES_MAX)]
    TooMany,
    /// Bytes after the end.
    #[error("bytes after the end of an element")]
    Tail,
}

/// Length of the message that begins with these bytes, its head included; `None` if its head is not there yet.
///
/// # Errors
/// `Unexpected` if no message begins so, `Encoding`, `TooLong`.
pub fn message_length(bytes: &[u8]) -> Result<Option<usize>, LdapError> {
    message_length_up_to(bytes, MESSAGE_BYTES_MAX)
}

/// The same of messages of at most so many bytes.
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

/// Bytes of the length field that begins here, and what it says.
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
    // Some servers always send four bytes, leading zeros and all.
    let value = digits.iter().fold(0u64, |value, digit| value << 8 | u64::from(*digit));
    Ok(Some((1 + count, usize::try_from(value).unwrap_or(usize::MAX))))
}

/// Elements, one after the other.
pub(crate) struct Elements<'a>(&'a [u8]);

impl<'a> Elements<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next one: its tag and what is in it.
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

    /// The next one, which must have this tag.
    pub(crate) fn expect(&mut self, tag: u8, what: &'static str) -> Result<&'a [u8], LdapError> {
        match self.next()? {
            (found, content) if found == tag => Ok(content),
            _ => Err(LdapError::Unexpected(what)),
        }
    }

    /// A number of 0 to 2^31 − 1, as messages are numbered and results are.
    pub(crate) fn number(&mut self, tag: u8, what: &'static str) -> Result<u32, LdapError> {
        let digits = self.expect(tag, what)?;
        if digits.is_empty() || digits.len() > 4 || digits[0] & 0x80 != 0 {
            return Err(LdapError::Unexpected(what));
        }
        Ok(digits.iter().fold(0, |value, digit| value << 8 | u32::from(*digit)))
    }
}

/// Bytes of a message in the making; wiped, as a bind has a password in it.
#[derive(Default)]
pub(crate) struct Writer(Zeroizing<Vec<u8>>);

impl Writer {
    pub(crate) fn put(&mut self, tag: u8, content: &[u8]) {
        self.0.push(tag);
        let length = content.len();
        if length < 0x80 {
            self.0.push(length as u8);
        } else {
            // Nothing of 4 GiB is ever put.
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
        // As few bytes as there can be, the first one without its top bit: numbers here are not negative.
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
    fn lengths_are_those_of_x690_and_the_limit_holds() {
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
    fn what_is_written_is_read_back() {
        for length in [0, 1, 127, 128, 255, 256, 65_535, 65_536] {
            let mut out = Writer::default();
            out.put(OCTETS, &vec![7; length]);
            let bytes = out.finish();
            let mut elements = Elements::new(&bytes);
            assert_eq!(elements.expect(OCTETS, "bytes").map(<[u8]>::len), Ok(length));
            assert!(elements.is_empty());
        }
        for value in [0, 1, 127, 128, 255, 256, 32_768, 0x7FFF_FFFF] {
            let mut out = Writer::default();
            out.number(INTEGER, value);
            let bytes = out.finish();
            assert_eq!(Elements::new(&bytes).number(INTEGER, "number"), Ok(value), "{bytes:?}");
        }
    }

    #[test]
    fn elements_that_are_cut_off_or_strange_are_errors() {
        assert_eq!(Elements::new(&[]).next(), Err(LdapError::CutOff));
        assert_eq!(Elements::new(&[OCTETS]).next(), Err(LdapError::CutOff));
        assert_eq!(Elements::new(&[OCTETS, 2, 1]).next(), Err(LdapError::CutOff));
        assert_eq!(Elements::new(&[0x1F, 1, 1]).next(), Err(LdapError::Encoding));
        assert_eq!(Elements::new(&[OCTETS, 0]).expect(SET, "set"), Err(LdapError::Unexpected("set")));
        for digits in [&[][..], &[0x80], &[1, 2, 3, 4, 5]] {
            let mut out = Writer::default();
            out.put(INTEGER, digits);
            assert_eq!(
                Elements::new(&out.finish()).number(INTEGER, "number"),
                Err(LdapError::Unexpected("number"))
            );
        }
    }
}
