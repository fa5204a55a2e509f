//! CHAP (RFC 7143 §12.1.3, RFC 1994): algorithms, secrets, and the values of the exchange, for both
//! ends.
//!
//! Does: computes and checks responses; reads and writes binary values.
//! Does not: store accounts or draw random bytes.
//! Contract: a response is compared in constant time; a secret is wiped when dropped and never
//! printed.
//! Source of truth: RFC 7143 §12.1.3 and §6.1 (binary values); IANA's PPP authentication algorithms
//! for the numbers.

use alloc::{string::String, vec::Vec};
use core::fmt;

use md5::Md5;
use sha2::{Digest, Sha256};
use sha3::Sha3_256;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use crate::text;

/// Minimum bytes of a secret: 96 bits, as the connection is not inside IPsec (RFC 7143 §12.1.3).
pub const SECRET_MIN: usize = 12;
/// Maximum bytes of a secret.
pub const SECRET_MAX: usize = 256;
/// Bytes of our challenges.
pub const CHALLENGE_LEN: usize = 32;
/// Maximum bytes of an accepted challenge (RFC 7143 §12.1.3).
pub const CHALLENGE_MAX: usize = 1024;
/// Minimum bytes of a challenge that we answer: a shorter one is meant to repeat.
pub const CHALLENGE_MIN: usize = 8;

/// A hash algorithm for responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChapAlgorithm {
    /// 5: MD5, for old initiators.
    Md5,
    /// 7: SHA-256.
    Sha256,
    /// 8: SHA3-256.
    Sha3,
}

impl ChapAlgorithm {
    /// All algorithms, in our order of preference.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha3, Self::Md5];
    /// The default algorithms. MD5 is not among them, although RFC 7143 §12.1.3 requires initiators
    /// to offer it: only old peers need it, and configuration can enable it.
    pub const DEFAULT: [Self; 2] = [Self::Sha256, Self::Sha3];

    /// Returns its number in `CHAP_A`.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Md5 => 5,
            Self::Sha256 => 7,
            Self::Sha3 => 8,
        }
    }

    /// Returns its name in configuration files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Md5 => "md5",
            Self::Sha256 => "sha256",
            Self::Sha3 => "sha3-256",
        }
    }

    /// Returns the algorithm of a number.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.number() == number)
    }

    /// Returns the response to a challenge: hash of identifier, secret, challenge (RFC 1994 §4.1).
    pub(crate) fn response(self, identifier: u8, secret: &ChapSecret, challenge: &[u8]) -> Vec<u8> {
        match self {
            Self::Md5 => digest::<Md5>(identifier, secret, challenge),
            Self::Sha256 => digest::<Sha256>(identifier, secret, challenge),
            Self::Sha3 => digest::<Sha3_256>(identifier, secret, challenge),
        }
    }

    /// Whether this is the response, in constant time.
    pub(crate) fn accepts(
        self,
        identifier: u8,
        secret: &ChapSecret,
        challenge: &[u8],
        response: &[u8],
    ) -> bool {
        self.response(identifier, secret, challenge).ct_eq(response).into()
    }
}

fn digest<D: Digest>(identifier: u8, secret: &ChapSecret, challenge: &[u8]) -> Vec<u8> {
    D::new().chain_update([identifier]).chain_update(&*secret.0).chain_update(challenge).finalize().to_vec()
}

/// A CHAP secret.
#[derive(Clone)]
pub struct ChapSecret(Zeroizing<Vec<u8>>);

/// The length of the secret is not permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret has {SECRET_MIN} to {SECRET_MAX} bytes, this one has {0}")]
pub struct SecretLength(pub usize);

impl ChapSecret {
    /// Creates a secret from its bytes.
    ///
    /// # Errors
    /// [`SecretLength`].
    pub fn new(bytes: &[u8]) -> Result<Self, SecretLength> {
        if !(SECRET_MIN..=SECRET_MAX).contains(&bytes.len()) {
            return Err(SecretLength(bytes.len()));
        }
        Ok(Self(Zeroizing::new(bytes.to_vec())))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether the two are equal. The two directions must not share a secret (RFC 7143 §12.1.3).
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for ChapSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A name with its secret.
#[derive(Clone, Debug)]
pub struct ChapAccount {
    /// CHAP name, at most 255 bytes.
    pub name: String,
    /// Its secret.
    pub secret: ChapSecret,
}

/// Returns the first algorithm of ours that was offered; `ours` is in our order of preference.
pub(crate) fn pick(ours: &[ChapAlgorithm], offered: &str) -> Option<ChapAlgorithm> {
    let offers = |wanted: ChapAlgorithm| {
        offered.split(',').filter_map(text::number).any(|number| number == wanted.number())
    };
    ours.iter().copied().find(|algorithm| offers(*algorithm))
}

/// Returns `CHAP_A` of an originator.
pub(crate) fn offer(ours: &[ChapAlgorithm]) -> String {
    let numbers: Vec<String> =
        ours.iter().map(|algorithm| alloc::format!("{}", algorithm.number())).collect();
    numbers.join(",")
}

/// Parses `CHAP_I`: one byte.
pub(crate) fn identifier(value: &str) -> Option<u8> {
    text::number(value).and_then(|number| u8::try_from(number).ok())
}

/// Returns a binary value as hexadecimal, which every peer can read.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    use fmt::Write as _;
    let mut out = String::with_capacity(2 + 2 * bytes.len());
    out.push_str("0x");
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// Parses a binary value of at most [`CHALLENGE_MAX`] bytes: `0x…` hexadecimal or `0b…` base64
/// (§6.1).
pub(crate) fn binary(value: &str) -> Option<Vec<u8>> {
    let (prefix, digits) = value.split_at_checked(2)?;
    let bytes = match prefix {
        "0x" | "0X" => from_hexadecimal(digits.as_bytes())?,
        "0b" | "0B" => from_base64(digits.as_bytes())?,
        _ => return None,
    };
    (bytes.len() <= CHALLENGE_MAX).then_some(bytes)
}

fn from_hexadecimal(digits: &[u8]) -> Option<Vec<u8>> {
    let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    if digits.is_empty() || digits.len() > 2 * CHALLENGE_MAX {
        return None;
    }
    // An odd number of digits lacks a leading zero.
    let (first, pairs) = digits.split_at(digits.len() % 2);
    let mut out = Vec::with_capacity(digits.len().div_ceil(2));
    for digit in first {
        out.push(nibble(*digit)?);
    }
    for pair in pairs.chunks_exact(2) {
        out.push(nibble(pair[0])? << 4 | nibble(pair[1])?);
    }
    Some(out)
}

/// Decodes RFC 4648 §4, with padding.
fn from_base64(digits: &[u8]) -> Option<Vec<u8>> {
    if digits.is_empty() || !digits.len().is_multiple_of(4) || digits.len() > CHALLENGE_MAX.div_ceil(3) * 4 {
        return None;
    }
    let padding = digits.iter().rev().take_while(|digit| **digit == b'=').count();
    let body = &digits[..digits.len() - padding];
    if padding > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3);
    for group in body.chunks(4) {
        let mut word = 0_u32;
        for digit in group {
            let value = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            word = word << 6 | u32::from(value);
        }
        word <<= 6 * (4 - group.len());
        // Bits beyond the last byte must be zero, or two texts would have the same value.
        let kept = group.len() - 1;
        if kept < 3 && word << (8 * (kept + 1)) != 0 {
            return None;
        }
        out.extend_from_slice(&word.to_be_bytes()[1..=kept]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use proptest::prelude::*;

    use super::*;

    fn secret(text: &str) -> ChapSecret {
        ChapSecret::new(text.as_bytes()).unwrap()
    }

    /// Computed with another implementation of the three hashes: hash(01h, "twelve bytes",
    /// 00h…0Fh).
    #[test]
    fn responses_are_those_of_the_standard_hashes() {
        let challenge: Vec<u8> = (0..16).collect();
        for (algorithm, expected) in [
            (ChapAlgorithm::Md5, "0xaee9b4254102ede033f31f724e642db9"),
            (ChapAlgorithm::Sha256, "0x38d39cc782d999f02d54b1ca54f640acef8dbdf170fd6eb64a385ecc4188b49c"),
            (ChapAlgorithm::Sha3, "0xc4dcbda8b964858c5aab76a761362c5df043f07a569399f38eee6339fd2e34ca"),
        ] {
            let response = algorithm.response(1, &secret("twelve bytes"), &challenge);
            assert_eq!(hexadecimal(&response), expected, "{algorithm:?}");
            assert!(algorithm.accepts(1, &secret("twelve bytes"), &challenge, &response));
            for (identifier, text) in [(2, "twelve bytes"), (1, "twelve bytez")] {
                assert!(!algorithm.accepts(identifier, &secret(text), &challenge, &response));
            }
            assert!(!algorithm.accepts(1, &secret("twelve bytes"), &challenge, &response[1..]));
            assert!(!algorithm.accepts(1, &secret("twelve bytes"), &challenge, &[]));
        }
    }

    #[test]
    fn secrets_have_limits_and_are_never_shown() {
        assert_eq!(ChapSecret::new(&[1; 11]).map(drop), Err(SecretLength(11)));
        assert!(ChapSecret::new(&[1; 12]).is_ok() && ChapSecret::new(&[1; 256]).is_ok());
        assert_eq!(ChapSecret::new(&[1; 257]).map(drop), Err(SecretLength(257)));
        let account = ChapAccount { name: "a".to_string(), secret: secret("very secret indeed") };
        assert!(!std::format!("{account:?}").contains("very"));
        assert!(
            secret("twelve bytes").same(&secret("twelve bytes"))
                && !secret("twelve bytes").same(&secret("twelve bytez"))
        );
    }

    #[test]
    fn preferred_offered_algorithm_is_chosen() {
        assert_eq!(pick(&ChapAlgorithm::ALL, "5,6,8,7"), Some(ChapAlgorithm::Sha256));
        assert_eq!(pick(&ChapAlgorithm::DEFAULT, "5"), None);
        assert_eq!(pick(&ChapAlgorithm::ALL, "5,0x7"), Some(ChapAlgorithm::Sha256));
        assert_eq!(pick(&ChapAlgorithm::ALL, "5"), Some(ChapAlgorithm::Md5));
        assert_eq!(pick(&[ChapAlgorithm::Sha256], "5,8"), None);
        assert_eq!(pick(&ChapAlgorithm::ALL, ",x,"), None);
        assert_eq!(offer(&ChapAlgorithm::ALL), "7,8,5");
    }

    #[test]
    fn binary_values_are_read_strictly() {
        for (text, bytes) in [
            ("0x00fF", &[0, 0xFF][..]),
            ("0Xabc", &[0x0A, 0xBC]),
            ("0bAAEC", &[0, 1, 2]),
            ("0bAAE=", &[0, 1]),
            ("0BAA==", &[0]),
        ] {
            assert_eq!(binary(text).as_deref(), Some(bytes), "{text}");
        }
        for bad in [
            "", "0", "0x", "0b", "00", "0xgg", "0bA", "0bAAE", "0bA===", "0bAAF=", "0b====", "0bA=AA", "é1",
            "12",
        ] {
            assert_eq!(binary(bad), None, "{bad:?}");
        }
        assert!(binary(&hexadecimal(&[7; CHALLENGE_MAX])).is_some());
        assert!(binary(&hexadecimal(&[7; CHALLENGE_MAX + 1])).is_none());
        assert_eq!((identifier("255"), identifier("256"), identifier("0x10")), (Some(255), None, Some(16)));
    }

    proptest! {
        #[test]
        fn binary_values_round_trip(bytes in proptest::collection::vec(any::<u8>(), 1..200), text in "0[xXbB][0-9a-zA-Z+/=]{0,40}") {
            prop_assert_eq!(binary(&hexadecimal(&bytes)), Some(bytes));
            let _ = binary(&text);
        }
    }
}
