//! Arguments of a function: `name=value` strings, each followed by a zero byte.
//!
//! The form needs no parser in C: a loop over strings. Values are UTF-8; binary values, such as
//! keys, are hexadecimal.
//! Source of truth: docs/reference/shipped-functions.md.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Maximum size of all arguments of a call, bytes; the limit of the wire format.
pub const ARGUMENT_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of arguments of a call.
pub const ARGUMENTS_MAX: usize = 256;

/// An argument that a function refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgumentError {
    /// All arguments together are too long.
    TooLong {
        /// Size of the arguments in bytes.
        bytes: usize,
    },
    /// There are too many arguments.
    TooMany,
    /// The last argument lacks its zero byte.
    Unterminated,
    /// An argument is not UTF-8.
    NotText {
        /// Position of the argument, from 0.
        position: usize,
    },
    /// An argument has no `=`, or an empty name.
    NoName {
        /// Position of the argument, from 0.
        position: usize,
    },
    /// A name occurs twice.
    Repeated {
        /// Name of the argument.
        name: String,
    },
    /// The function does not have this argument.
    Unknown {
        /// Name of the argument.
        name: String,
    },
    /// A required argument is absent.
    Missing {
        /// Name of the argument.
        name: &'static str,
    },
    /// A value is not of the expected form.
    Invalid {
        /// Name of the argument.
        name: &'static str,
        /// Form that the function expects.
        expected: &'static str,
    },
    /// A name or value contains a zero byte and cannot be encoded.
    ZeroByte {
        /// Name of the argument.
        name: String,
    },
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                write!(f, "arguments of {bytes} bytes; at most {ARGUMENT_BYTES_MAX}")
            }
            Self::TooMany => write!(f, "more than {ARGUMENTS_MAX} arguments"),
            Self::Unterminated => f.write_str("the last argument has no zero byte at its end"),
            Self::NotText { position } => write!(f, "argument {position} is not UTF-8"),
            Self::NoName { position } => write!(f, "argument {position} is not of the form name=value"),
            Self::Repeated { name } => write!(f, "argument {name} occurs twice"),
            Self::Unknown { name } => write!(f, "unknown argument {name}"),
            Self::Missing { name } => write!(f, "argument {name} is missing"),
            Self::Invalid { name, expected } => write!(f, "argument {name}: expected {expected}"),
            Self::ZeroByte { name } => write!(f, "argument {name} contains a zero byte"),
        }
    }
}

impl core::error::Error for ArgumentError {}

impl From<ArgumentError> for crate::FunctionFailure {
    fn from(error: ArgumentError) -> Self {
        Self::invalid(alloc::format!("{error}"))
    }
}

/// The parsed arguments of a call, borrowed from its bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct FunctionArguments<'a> {
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> FunctionArguments<'a> {
    /// Parses the argument bytes of a call.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ArgumentError> {
        if bytes.len() > ARGUMENT_BYTES_MAX {
            return Err(ArgumentError::TooLong { bytes: bytes.len() });
        }
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let position = pairs.len();
            if position == ARGUMENTS_MAX {
                return Err(ArgumentError::TooMany);
            }
            let end = memchr::memchr(0, rest).ok_or(ArgumentError::Unterminated)?;
            let text = core::str::from_utf8(&rest[..end]).map_err(|_| ArgumentError::NotText { position })?;
            let (name, value) = text
                .split_once('=')
                .filter(|(name, _)| !name.is_empty())
                .ok_or(ArgumentError::NoName { position })?;
            if pairs.iter().any(|(other, _)| *other == name) {
                return Err(ArgumentError::Repeated { name: name.into() });
            }
            pairs.push((name, value));
            rest = &rest[end + 1..];
        }
        Ok(Self { pairs })
    }

    /// Encodes pairs of name and value.
    pub fn encode<'p>(pairs: impl IntoIterator<Item = (&'p str, &'p str)>) -> Result<Vec<u8>, ArgumentError> {
        let mut out = Vec::new();
        for (count, (name, value)) in pairs.into_iter().enumerate() {
            if count == ARGUMENTS_MAX {
                return Err(ArgumentError::TooMany);
            }
            if name.is_empty() || name.contains('=') {
                return Err(ArgumentError::NoName { position: count });
            }
            if name.contains('\0') || value.contains('\0') {
                return Err(ArgumentError::ZeroByte { name: name.into() });
            }
            for part in [name, "=", value, "\0"] {
                out.extend_from_slice(part.as_bytes());
            }
            if out.len() > ARGUMENT_BYTES_MAX {
                return Err(ArgumentError::TooLong { bytes: out.len() });
            }
        }
        Ok(out)
    }

    /// Returns the value of an argument, if it is present.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.pairs.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    /// Returns the value of a required argument.
    pub fn require(&self, name: &'static str) -> Result<&'a str, ArgumentError> {
        self.get(name).ok_or(ArgumentError::Missing { name })
    }

    /// Returns whether a switch is on; an absent one is off.
    pub fn switch(&self, name: &'static str) -> Result<bool, ArgumentError> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(ArgumentError::Invalid { name, expected: "true or false" }),
        }
    }

    /// Returns a number, or the default if it is absent.
    pub fn number(&self, name: &'static str, default: u64) -> Result<u64, ArgumentError> {
        let parse = |text: &str| {
            text.parse().map_err(|_| ArgumentError::Invalid { name, expected: "a number of bytes or items" })
        };
        self.get(name).map_or(Ok(default), parse)
    }

    /// Decodes a hexadecimal value of a fixed size into `out`.
    pub fn hex(&self, name: &'static str, out: &mut [u8]) -> Result<(), ArgumentError> {
        let expected = match out.len() {
            16 => "32 hexadecimal digits",
            32 => "64 hexadecimal digits",
            _ => "hexadecimal digits",
        };
        let invalid = ArgumentError::Invalid { name, expected };
        let digits = self.require(name)?.as_bytes();
        if decode_hex(digits, out) { Ok(()) } else { Err(invalid) }
    }

    /// Refuses arguments that are not listed. A listed name that ends with `.` covers all numbers
    /// after it, as in `stripe.0`.
    pub fn allow_only(&self, names: &[&str]) -> Result<(), ArgumentError> {
        let is_listed = |name: &str| {
            names.iter().any(|listed| match name.strip_prefix(listed) {
                Some("") => true,
                Some(number) => listed.ends_with('.') && number.parse::<u32>().is_ok(),
                None => false,
            })
        };
        match self.pairs.iter().find(|(name, _)| !is_listed(name)) {
            None => Ok(()),
            Some((name, _)) => Err(ArgumentError::Unknown { name: (*name).into() }),
        }
    }
}

impl fmt::Debug for FunctionArguments<'_> {
    /// Shows names only: a value may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.pairs.iter().map(|(name, _)| name)).finish()
    }
}

const fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Decodes hexadecimal digits; returns whether there are exactly those of `out`.
#[must_use]
pub fn decode_hex(digits: &[u8], out: &mut [u8]) -> bool {
    digits.len() == out.len() * 2
        && out.iter_mut().zip(digits.chunks_exact(2)).all(|(byte, pair)| {
            let (Some(high), Some(low)) = (hex_digit(pair[0]), hex_digit(pair[1])) else { return false };
            *byte = high << 4 | low;
            true
        })
}

/// Returns the bytes as lower-case hexadecimal digits.
#[must_use]
pub fn encode_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn malformed_arguments_are_refused_precisely() {
        let too_long = vec![b'a'; ARGUMENT_BYTES_MAX + 1];
        let too_many: Vec<u8> =
            (0..=ARGUMENTS_MAX).flat_map(|n| alloc::format!("a{n}=\0").into_bytes()).collect();
        for (bytes, text) in [
            (&too_long[..], "arguments of 65537 bytes; at most 65536"),
            (&too_many, "more than 256 arguments"),
            (b"a=1", "the last argument has no zero byte at its end"),
            (b"a=1\0\xff=\0", "argument 1 is not UTF-8"),
            (b"a=1\0b\0", "argument 1 is not of the form name=value"),
            (b"=1\0", "argument 0 is not of the form name=value"),
            (b"a=1\0a=2\0", "argument a occurs twice"),
        ] {
            assert_eq!(FunctionArguments::parse(bytes).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn typed_values_are_checked() {
        let bytes =
            FunctionArguments::encode([("n", "12"), ("on", "true"), ("k", "00ff"), ("s.3", "")]).unwrap();
        let arguments = FunctionArguments::parse(&bytes).unwrap();
        assert_eq!(arguments.number("n", 0), Ok(12));
        assert_eq!(arguments.number("absent", 7), Ok(7));
        assert_eq!(arguments.switch("on"), Ok(true));
        assert!(arguments.switch("n").is_err() && arguments.number("on", 0).is_err());
        let mut key = [0; 2];
        arguments.hex("k", &mut key).unwrap();
        assert_eq!(key, [0, 255]);
        assert!(arguments.hex("k", &mut [0; 3]).is_err() && arguments.hex("n", &mut [0; 2]).is_err());
        assert_eq!(arguments.require("absent"), Err(ArgumentError::Missing { name: "absent" }));
        assert_eq!(arguments.allow_only(&["n", "on", "k", "s."]), Ok(()));
        assert_eq!(
            arguments.allow_only(&["n", "on", "k"]),
            Err(ArgumentError::Unknown { name: "s.3".into() })
        );
    }

    #[test]
    fn values_are_not_shown_in_debug() {
        let shown = alloc::format!("{:?}", FunctionArguments::parse(b"key=00112233\0").unwrap());
        assert_eq!(shown, "[\"key\"]");
    }

    proptest! {
        #[test]
        fn encoded_arguments_parse_to_the_same(
            pairs in proptest::collection::btree_map("[a-z.]{1,8}", "[^\0]{0,20}", 0..8),
        ) {
            let bytes =
                FunctionArguments::encode(pairs.iter().map(|(name, value)| (&name[..], &value[..]))).unwrap();
            let parsed = FunctionArguments::parse(&bytes).unwrap();
            for (name, value) in &pairs {
                prop_assert_eq!(parsed.get(name), Some(&value[..]));
            }
        }

        #[test]
        fn arbitrary_argument_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = FunctionArguments::parse(&bytes);
        }

        #[test]
        fn hexadecimal_digits_decode_to_their_bytes(bytes in any::<[u8; 16]>()) {
            let digits = encode_hex(&bytes);
            let encoded = FunctionArguments::encode([("k", &digits[..])]).unwrap();
            let mut out = [0; 16];
            FunctionArguments::parse(&encoded).unwrap().hex("k", &mut out).unwrap();
            prop_assert_eq!(out, bytes);
        }
    }
}
