//! Keys of packets: AES-CMAC with 128 bits.
//!
//! Truth: RFC 8573 (the MAC covers the header), RFC 4493 (vectors). Key files have the format of
//! other NTP servers.

use core::fmt;

use aes::Aes128;
use cmac::{Cmac, KeyInit as _, Mac as _};
use subtle::ConstantTimeEq as _;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::packet::HEADER_LEN;

/// Bytes of a key.
pub const KEY_LEN: usize = 16;
/// Bytes of a MAC.
pub const TAG_LEN: usize = 16;

/// A key and its number.
#[derive(Clone)]
pub struct TimeKey {
    id: u32,
    secret: Zeroizing<[u8; KEY_LEN]>,
}

impl fmt::Debug for TimeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TimeKey({:08x})", self.id)
    }
}

impl TimeKey {
    /// Creates a key; `None` for number zero, which is invalid.
    #[must_use]
    pub fn new(id: u32, secret: [u8; KEY_LEN]) -> Option<Self> {
        (id != 0).then(|| Self { id, secret: Zeroizing::new(secret) })
    }

    /// Creates a key from 32 bytes that both ends derived: 16 are the key, 4 its number, which is
    /// independent of the key.
    #[must_use]
    pub fn derived(bytes: &[u8; 32]) -> Self {
        let mut secret = Zeroizing::new([0; KEY_LEN]);
        secret.copy_from_slice(&bytes[..KEY_LEN]);
        let id = u32::from_be_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
        Self { id: id.max(1), secret }
    }

    /// Returns its number, which packets carry in the clear.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// Returns the MAC of a header.
    #[must_use]
    pub fn tag(&self, header: &[u8; HEADER_LEN]) -> [u8; TAG_LEN] {
        let mut mac = Cmac::<Aes128>::new((&*self.secret).into());
        mac.update(header);
        mac.finalize().into_bytes().into()
    }

    /// Whether the MAC of the header is correct. Compares in constant time.
    #[must_use]
    pub fn verifies(&self, header: &[u8; HEADER_LEN], tag: &[u8; TAG_LEN]) -> bool {
        self.tag(header).ct_eq(tag).into()
    }
}

/// Reason why a line of a key file is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyFileError {
    /// The line does not have three words.
    #[error("expected three words: number, AES128, HEX:32 digits")]
    Words,
    /// The number is out of range.
    #[error("the key number must be 1 to 4294967295")]
    Number,
    /// The kind is MD5, SHA1 or another weak MAC.
    #[error("unsupported kind of key: only AES128 (AES-CMAC, RFC 8573)")]
    Kind,
    /// The key is not 32 hexadecimal digits.
    #[error("the key is not 32 hexadecimal digits")]
    Digits,
}

/// Parses a line `NUMBER AES128 HEX:DIGITS`, as in chrony's key files, or `NUMBER AES128CMAC
/// DIGITS` (ntpsec). Returns `None` for an empty line and a comment. Errors do not quote the line.
///
/// # Errors
/// [`KeyFileError`].
pub fn parse_key_line(line: &str) -> Result<Option<TimeKey>, KeyFileError> {
    let line = line.split('#').next().unwrap_or_default().trim();
    if line.is_empty() {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (Some(number), Some(kind), Some(digits), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(KeyFileError::Words);
    };
    let number: u32 = number.parse().map_err(|_| KeyFileError::Number)?;
    if !["AES128", "AES128CMAC", "AES"].iter().any(|name| kind.eq_ignore_ascii_case(name)) {
        return Err(KeyFileError::Kind);
    }
    let digits = digits.strip_prefix("HEX:").unwrap_or(digits).as_bytes();
    let mut secret = Zeroizing::new([0; KEY_LEN]);
    if digits.len() != 2 * KEY_LEN {
        return Err(KeyFileError::Digits);
    }
    for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        let (Some(high), Some(low)) = (digit(0), digit(1)) else { return Err(KeyFileError::Digits) };
        *byte = (high << 4 | low) as u8;
    }
    TimeKey::new(number, *secret).ok_or(KeyFileError::Number).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn mac_matches_rfc_4493_vectors() {
        let key =
            [0x2b, 0x7e, 0x15, 0x16, 0x28, 0xae, 0xd2, 0xa6, 0xab, 0xf7, 0x15, 0x88, 0x09, 0xcf, 0x4f, 0x3c];
        let mac = |message: &[u8]| -> [u8; 16] {
            let mut mac = Cmac::<Aes128>::new((&key).into());
            mac.update(message);
            mac.finalize().into_bytes().into()
        };
        assert_eq!(mac(&[])[..4], [0xbb, 0x1d, 0x69, 0x29]);
        let sixteen =
            [0x6b, 0xc1, 0xbe, 0xe2, 0x2e, 0x40, 0x9f, 0x96, 0xe9, 0x3d, 0x7e, 0x11, 0x73, 0x93, 0x17, 0x2a];
        assert_eq!(mac(&sixteen)[..4], [0x07, 0x0a, 0x16, 0xb4]);
    }

    #[test]
    fn any_flipped_bit_fails_the_mac() {
        let key = TimeKey::new(7, [3; KEY_LEN]).unwrap();
        let header = [9; HEADER_LEN];
        let tag = key.tag(&header);
        assert!(key.verifies(&header, &tag));
        for bit in 0..HEADER_LEN * 8 {
            let mut other = header;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.verifies(&other, &tag));
        }
        for bit in 0..TAG_LEN * 8 {
            let mut other = tag;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.verifies(&header, &other));
        }
        assert!(!TimeKey::new(7, [4; KEY_LEN]).unwrap().verifies(&header, &tag));
    }

    #[test]
    fn key_lines_of_other_servers_parse() {
        let digits = "000102030405060708090a0b0c0d0e0F";
        for line in [
            format!("10 AES128 HEX:{digits}"),
            format!("  10 aes128cmac {digits}  # upstream"),
            format!("10 AES {digits}"),
        ] {
            let key = parse_key_line(&line).unwrap().unwrap();
            assert_eq!((key.id(), key.secret[15]), (10, 15), "{line}");
        }
        for empty in ["", "   ", "# a comment"] {
            assert!(parse_key_line(empty).unwrap().is_none());
        }
        let wrong = |line: &str| parse_key_line(line).err();
        assert_eq!(wrong("10 AES128"), Some(KeyFileError::Words));
        assert_eq!(wrong(&format!("10 AES128 {digits} more")), Some(KeyFileError::Words));
        assert_eq!(wrong(&format!("0 AES128 {digits}")), Some(KeyFileError::Number));
        assert_eq!(wrong(&format!("4294967296 AES128 {digits}")), Some(KeyFileError::Number));
        assert_eq!(wrong(&format!("1 MD5 {digits}")), Some(KeyFileError::Kind));
        assert_eq!(wrong(&format!("1 AES128 {digits}00")), Some(KeyFileError::Digits));
        assert_eq!(wrong("1 AES128 0001020304050607é8090a0b0c0d0e0"), Some(KeyFileError::Digits));
    }

    #[test]
    fn debug_output_hides_the_key() {
        assert_eq!(format!("{:?}", TimeKey::new(0xAB, [0x5A; KEY_LEN]).unwrap()), "TimeKey(000000ab)");
        assert!(TimeKey::new(0, [1; KEY_LEN]).is_none());
        assert_eq!(TimeKey::derived(&[0; 32]).id(), 1);
    }
}
