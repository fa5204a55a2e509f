//! Encoding of message fields.
//!
//! Does: big-endian fixed-width numbers, bounded strings and lists, each validated on decode.
//! Does not: know messages; those of `message` and `login` are made of these fields.
//! Contract: `get` never panics and reserves no more memory than the received bytes need.
//! Truth: docs/standards/mds/wire.md §3.

use alloc::string::String;
use alloc::vec::Vec;

/// Why bytes could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The body ended inside a field.
    #[error("message ends inside a field")]
    Short,
    /// Bytes follow the last field of a message of a known schema.
    #[error("{0} bytes follow the last field")]
    Trailing(usize),
    /// A string, list or body is longer than its limit.
    #[error("field is longer than its limit of {limit}")]
    TooLong {
        /// The limit, in bytes or items.
        limit: usize,
    },
    /// A string is not UTF-8, or a value violates the rules of its type.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// A number is not a code of its enumeration.
    #[error("unknown {what} code {code:#x}")]
    UnknownCode {
        /// The enumeration.
        what: &'static str,
        /// The number read.
        code: u32,
    },
    /// The frame header is not a Sealstone header.
    #[error("not a Sealstone frame: {0}")]
    Frame(&'static str),
}

/// Decodes the fields of a body in order.
#[derive(Clone, Debug)]
pub struct WireReader<'a> {
    rest: &'a [u8],
}

impl<'a> WireReader<'a> {
    /// Returns a reader at the first byte of `body`.
    #[must_use]
    pub const fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// Returns the next `n` bytes.
    ///
    /// # Errors
    /// `Short` if fewer remain.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(head)
    }

    /// Returns the next `N` bytes as an array.
    ///
    /// # Errors
    /// `Short` if fewer remain.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    /// Reads a 2-byte length and that many bytes (`lv16`), at most `limit`.
    ///
    /// # Errors
    /// `TooLong`, `Short`.
    pub fn lv16(&mut self, limit: usize) -> Result<&'a [u8], WireError> {
        let length = usize::from(u16::get(self)?);
        if length > limit {
            return Err(WireError::TooLong { limit });
        }
        self.take(length)
    }

    /// Reads an `lv16` that must be UTF-8.
    ///
    /// # Errors
    /// `TooLong`, `Short`, `Malformed`.
    pub fn text(&mut self, limit: usize) -> Result<&'a str, WireError> {
        core::str::from_utf8(self.lv16(limit)?).map_err(|_| WireError::Malformed("text"))
    }

    /// Returns the number of unread bytes.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Checks that no bytes follow.
    ///
    /// # Errors
    /// `Trailing`.
    pub const fn finish(self) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(WireError::Trailing(n)),
        }
    }
}

/// Encodes fields. A field over its limit is recorded and reported by [`WireWriter::finish`].
///
/// The content may include keys, so it is wiped on drop.
#[derive(Default)]
pub struct WireWriter {
    bytes: zeroize::Zeroizing<Vec<u8>>,
    over: Option<usize>,
}

impl WireWriter {
    /// Returns an empty body.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends raw bytes.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends an `lv16`.
    pub fn lv16(&mut self, bytes: &[u8]) {
        match u16::try_from(bytes.len()) {
            Ok(length) => {
                length.put(self);
                self.raw(bytes);
            }
            Err(_) => self.over = Some(usize::from(u16::MAX)),
        }
    }

    /// Returns the number of bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the finished body.
    ///
    /// # Errors
    /// `TooLong` if a field, or the whole, passed its limit.
    pub fn finish(mut self, limit: usize) -> Result<Vec<u8>, WireError> {
        if let Some(limit) = self.over {
            return Err(WireError::TooLong { limit });
        }
        if self.bytes.len() > limit {
            return Err(WireError::TooLong { limit });
        }
        Ok(core::mem::take(&mut *self.bytes))
    }

    pub(crate) const fn overflow(&mut self, limit: usize) {
        self.over = Some(limit);
    }
}

/// A type with a defined encoding.
pub trait Wire: Sized {
    /// Appends the encoding.
    fn put(&self, out: &mut WireWriter);

    /// Decodes one value.
    ///
    /// # Errors
    /// Any [`WireError`]; the reader is then unusable.
    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError>;
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            fn put(&self, out: &mut WireWriter) {
                out.raw(&self.to_be_bytes());
            }
            fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
                Ok(Self::from_be_bytes(input.array()?))
            }
        }
    )*};
}
number!(u8, u16, u32, u64, i64);

impl Wire for bool {
    fn put(&self, out: &mut WireWriter) {
        u8::from(*self).put(out);
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::get(input)? {
            0 => Ok(false),
            1 => Ok(true),
            code => Err(WireError::UnknownCode { what: "flag", code: u32::from(code) }),
        }
    }
}

impl<const N: usize> Wire for [u8; N] {
    fn put(&self, out: &mut WireWriter) {
        out.raw(self);
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        input.array()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut WireWriter) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(if bool::get(input)? { Some(T::get(input)?) } else { None })
    }
}

/// Maximum number of items of a list in a message; longer lists are paged.
pub const LIST_MAX: usize = 1024;

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut WireWriter) {
        match u16::try_from(self.len()) {
            Ok(count) if self.len() <= LIST_MAX => {
                count.put(out);
                for item in self {
                    item.put(out);
                }
            }
            _ => out.overflow(LIST_MAX),
        }
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        let count = usize::from(u16::get(input)?);
        if count > LIST_MAX {
            return Err(WireError::TooLong { limit: LIST_MAX });
        }
        // Grows with the received bytes: a count alone reserves no memory.
        let mut items = Self::new();
        for _ in 0..count {
            items.push(T::get(input)?);
        }
        Ok(items)
    }
}

impl Wire for () {
    fn put(&self, _: &mut WireWriter) {}

    fn get(_: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(())
    }
}

/// A string of at most `MAX` bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<const MAX: usize>(String);

impl<const MAX: usize> Text<MAX> {
    /// Returns the text if its length is within the limit.
    ///
    /// # Errors
    /// `TooLong`.
    pub fn new(text: impl Into<String>) -> Result<Self, WireError> {
        let text = text.into();
        if text.len() > MAX { Err(WireError::TooLong { limit: MAX }) } else { Ok(Self(text)) }
    }

    /// Truncates at a character boundary: for diagnostics, never for names.
    #[must_use]
    pub fn truncated(text: &str) -> Self {
        Self(
            text.chars()
                .scan(0, |used, c| {
                    *used += c.len_utf8();
                    (*used <= MAX).then_some(c)
                })
                .collect(),
        )
    }

    /// Returns the string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<const MAX: usize> core::fmt::Display for Text<MAX> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

impl<const MAX: usize> Wire for Text<MAX> {
    fn put(&self, out: &mut WireWriter) {
        out.lv16(self.0.as_bytes());
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(Self(String::from(input.text(MAX)?)))
    }
}

/// Defines a struct whose encoding is its fields in order.
#[macro_export]
macro_rules! record {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[allow(missing_docs, reason = "docs/standards/mds describes each field")]
        pub struct $name { $($(#[$field_meta])* pub $field: $type),* }

        impl $crate::Wire for $name {
            fn put(&self, out: &mut $crate::WireWriter) {
                $($crate::Wire::put(&self.$field, out);)*
            }
            fn get(input: &mut $crate::WireReader<'_>) -> ::core::result::Result<Self, $crate::WireError> {
                Ok(Self { $($field: $crate::Wire::get(input)?),* })
            }
        }
    };
}
pub(crate) use record;

/// Defines a fieldless enumeration encoded in one or two bytes.
macro_rules! code {
    ($(#[$meta:meta])* pub enum $name:ident: $repr:ty as $what:literal {
        $($(#[$variant_meta:meta])* $variant:ident = $value:literal),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($repr)]
        pub enum $name { $($(#[$variant_meta])* $variant = $value),* }

        impl $name {
            /// Every variant, in order of its code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the number on the wire.
            #[must_use]
            pub const fn code(self) -> $repr {
                self as $repr
            }

            /// Returns the variant of a number.
            #[must_use]
            pub const fn from_code(code: $repr) -> Option<Self> {
                match code {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the name as documented.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),* }
            }
        }

        impl $crate::Wire for $name {
            fn put(&self, out: &mut $crate::WireWriter) {
                $crate::Wire::put(&self.code(), out);
            }
            fn get(input: &mut $crate::WireReader<'_>) -> Result<Self, $crate::WireError> {
                let code = <$repr as $crate::Wire>::get(input)?;
                Self::from_code(code).ok_or($crate::WireError::UnknownCode { what: $what, code: u32::from(code) })
            }
        }
    };
}
pub(crate) use code;
