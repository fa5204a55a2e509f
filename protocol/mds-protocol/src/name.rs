//! Names of directory entries, paths, users and groups. Validated once, then trusted.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::printable::{is_printable, push_escaped};
use crate::wire::{Wire, WireError, WireReader, WireWriter};

/// Maximum length of a name in a directory.
pub const NAME_MAX: usize = 255;
/// Maximum length of a path.
pub const PATH_MAX: usize = 4096;
/// Maximum length of a user name.
pub const USER_MAX: usize = 64;
/// Maximum length of a group name.
pub const GROUP_MAX: usize = 64;

/// Escapes bytes for display: printable text stays, a backslash is doubled, every other byte
/// becomes `\xNN`. [`unshown`] is the inverse.
#[must_use]
pub fn shown(bytes: &[u8]) -> Cow<'_, str> {
    match core::str::from_utf8(bytes) {
        Ok(text) if text.chars().all(|c| c != '\\' && is_printable(c)) => Cow::Borrowed(text),
        _ => {
            let mut out = String::with_capacity(bytes.len() + 8);
            for chunk in bytes.utf8_chunks() {
                for c in chunk.valid().chars() {
                    match c {
                        '\\' => out.push_str("\\\\"),
                        c if is_printable(c) => out.push(c),
                        c => push_escaped(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes()),
                    }
                }
                push_escaped(&mut out, chunk.invalid());
            }
            Cow::Owned(out)
        }
    }
}

/// Returns the bytes that [`shown`] displays as this text; `None` if a backslash begins neither
/// `\\` nor `\xNN`. For text in which a user typed escapes on purpose: a name is never unescaped
/// otherwise.
#[must_use]
pub fn unshown(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'\\' {
            out.push(*first);
            continue;
        }
        match rest {
            [b'\\', after @ ..] => {
                out.push(b'\\');
                rest = after;
            }
            [b'x', high, low, after @ ..] => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                out.push(u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?);
                rest = after;
            }
            _ => return None,
        }
    }
    Some(out)
}

/// Name of a directory entry: 1 to 255 bytes, any but `/` and NUL, not `.` or `..`. It need not be
/// UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Vec<u8>);

impl Name {
    /// Validates a name.
    ///
    /// # Errors
    /// `TooLong`, `Malformed`.
    pub fn new(name: impl Into<Vec<u8>>) -> Result<Self, WireError> {
        let name = name.into();
        check_name(&name)?;
        Ok(Self(name))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the name for display: what is not printable text is escaped, reversibly.
    #[must_use]
    pub fn shown(&self) -> Cow<'_, str> {
        shown(&self.0)
    }
}

fn check_name(name: &[u8]) -> Result<(), WireError> {
    if name.len() > NAME_MAX {
        return Err(WireError::TooLong { limit: NAME_MAX });
    }
    match name {
        b"" | b"." | b".." => Err(WireError::Malformed("name")),
        _ if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(WireError::Malformed("name")),
        _ => Ok(()),
    }
}

/// An absolute path in normalized form: `/`, or names each preceded by one `/`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(Vec<u8>);

impl FilePath {
    /// Validates and normalizes a path: repeated and trailing slashes are removed.
    ///
    /// # Errors
    /// `TooLong`, `Malformed` (relative, or with a name that [`Name`] refuses).
    pub fn new(path: impl AsRef<[u8]>) -> Result<Self, WireError> {
        let path = path.as_ref();
        if path.len() > PATH_MAX {
            return Err(WireError::TooLong { limit: PATH_MAX });
        }
        if !path.starts_with(b"/") {
            return Err(WireError::Malformed("path"));
        }
        let mut whole = Vec::with_capacity(path.len());
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            check_name(name)?;
            whole.push(b'/');
            whole.extend_from_slice(name);
        }
        if whole.is_empty() {
            whole.push(b'/');
        }
        Ok(Self(whole))
    }

    /// Returns `/`.
    #[must_use]
    pub fn root() -> Self {
        Self(Vec::from(b"/"))
    }

    /// Returns the path.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the path for display: what is not printable text is escaped, reversibly.
    #[must_use]
    pub fn shown(&self) -> Cow<'_, str> {
        shown(&self.0)
    }

    /// Whether this is `/`.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0 == b"/"
    }

    /// Returns the names from the root down.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = Name> {
        let names = self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.map(|name| Name(Vec::from(name)))
    }

    /// Returns the path without its last name, and that name; `None` for `/`.
    #[must_use]
    pub fn split_last(&self) -> Option<(Self, Name)> {
        let at = self.0.iter().rposition(|byte| *byte == b'/')?;
        let (parent, name) = (self.0.get(..at)?, self.0.get(at + 1..)?);
        if name.is_empty() {
            return None;
        }
        let parent = if parent.is_empty() { Self::root() } else { Self(Vec::from(parent)) };
        Some((parent, Name(Vec::from(name))))
    }

    /// Returns the path with a name appended.
    ///
    /// # Errors
    /// `TooLong`.
    pub fn join(&self, name: &Name) -> Result<Self, WireError> {
        let mut whole = if self.is_root() { Vec::new() } else { self.0.clone() };
        whole.push(b'/');
        whole.extend_from_slice(name.as_bytes());
        if whole.len() > PATH_MAX { Err(WireError::TooLong { limit: PATH_MAX }) } else { Ok(Self(whole)) }
    }
}

/// A user name: 1 to 64 of `a–z A–Z 0–9 . _ - @`, beginning with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserName(String);

impl UserName {
    /// Validates a user name.
    ///
    /// # Errors
    /// `TooLong`, `Malformed`.
    pub fn new(name: impl Into<String>) -> Result<Self, WireError> {
        let name = name.into();
        if name.len() > USER_MAX {
            return Err(WireError::TooLong { limit: USER_MAX });
        }
        let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        if first && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-@".contains(&b)) {
            Ok(Self(name))
        } else {
            Err(WireError::Malformed("user name"))
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A group name: the same characters and length as a [`UserName`]. Users and groups have separate
/// namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(String);

impl GroupName {
    /// Validates a group name.
    ///
    /// # Errors
    /// `TooLong`, `Malformed`.
    pub fn new(name: impl Into<String>) -> Result<Self, WireError> {
        match UserName::new(name) {
            Ok(UserName(name)) => Ok(Self(name)),
            Err(WireError::Malformed(_)) => Err(WireError::Malformed("group name")),
            Err(error) => Err(error),
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Each number has one form: no sign, no leading zeros.
fn number(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    let plain =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| plain)
}

impl UserName {
    /// Returns the number of a name of the form `uid-N`: a numeric user without an account. No
    /// account has such a name.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        number(&self.0, "uid-")
    }

    /// Returns the name for a number.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        Self(alloc::format!("uid-{number}"))
    }

    /// Whether the name stands for a number.
    #[must_use]
    pub fn is_number(&self) -> bool {
        self.number().is_some()
    }
}

impl GroupName {
    /// Returns the number of a name of the form `gid-N`: a numeric group without a name. No group
    /// has such a name.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        number(&self.0, "gid-")
    }

    /// Returns the name for a number.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        Self(alloc::format!("gid-{number}"))
    }

    /// Whether the name stands for a number.
    #[must_use]
    pub fn is_number(&self) -> bool {
        self.number().is_some()
    }
}

macro_rules! text_like {
    ($type:ty, $limit:expr, $new:expr) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl Wire for $type {
            fn put(&self, out: &mut WireWriter) {
                out.lv16(self.0.as_bytes());
            }
            fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
                $new(input.text($limit)?)
            }
        }
    };
}

macro_rules! bytes_like {
    ($type:ty, $limit:expr, $new:expr) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.shown())
            }
        }
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.shown())
            }
        }
        impl AsRef<[u8]> for $type {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        impl Wire for $type {
            fn put(&self, out: &mut WireWriter) {
                out.lv16(&self.0);
            }
            fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
                $new(input.lv16($limit)?)
            }
        }
    };
}
bytes_like!(Name, NAME_MAX, Name::new);
bytes_like!(FilePath, PATH_MAX, FilePath::new);
text_like!(UserName, USER_MAX, UserName::new);
text_like!(GroupName, GROUP_MAX, GroupName::new);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use proptest::prelude::*;

    #[test]
    fn path_is_normalized() {
        assert_eq!(FilePath::new("//a///b/").unwrap().as_bytes(), b"/a/b");
        assert_eq!(FilePath::new("///").unwrap(), FilePath::root());
    }

    #[test]
    fn numeric_user_name_is_unique() {
        for number in [0, 1, 1000, u32::MAX] {
            assert_eq!(UserName::of_number(number).number(), Some(number));
            assert_eq!(GroupName::of_number(number).number(), Some(number));
        }
        for name in ["uid-", "uid-01", "uid-4294967296", "gid-1", "auid-1", "uid-1a"] {
            assert_eq!(UserName::new(name).unwrap().number(), None, "{name}");
        }
    }

    #[test]
    fn printable_text_is_not_escaped() {
        assert_eq!(Name::new("Grüße, 世界").unwrap().shown(), "Grüße, 世界");
        assert_eq!(Name::new(b"a\xffb\\c\n".to_vec()).unwrap().shown(), r"a\xffb\\c\x0a");
        assert_eq!(Name::new("a\u{202e}b\u{200b}").unwrap().shown(), r"a\xe2\x80\xaeb\xe2\x80\x8b");
        assert_eq!((unshown(r"\"), unshown(r"\x4"), unshown(r"\q")), (None, None, None));
    }

    #[test]
    fn dot_names_and_separators_are_refused() {
        for bad in ["", ".", "..", "a/b", "a\0b"] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "a", "a/b", "/a/../b", "/./a", "/a\0"] {
            assert!(FilePath::new(bad).is_err(), "{bad:?}");
        }
        assert!(Name::new("x".repeat(NAME_MAX)).is_ok());
        assert!(Name::new("x".repeat(NAME_MAX + 1)).is_err());
        assert!(FilePath::new("/x".repeat(PATH_MAX / 2)).is_ok());
        assert!(FilePath::new(format!("{}/", "/x".repeat(PATH_MAX / 2))).is_err());
    }

    #[test]
    fn user_names_refuse_directory_service_syntax() {
        for bad in ["", "*)(uid=*", "a\0", "-a", ".a", "a b", "ä", "a,b"] {
            assert!(UserName::new(bad).is_err(), "{bad:?}");
            assert!(GroupName::new(bad).is_err(), "{bad:?}");
        }
        assert!(UserName::new("alice.b_c-d@e1").is_ok());
        assert_eq!(GroupName::new("x".repeat(GROUP_MAX + 1)), Err(WireError::TooLong { limit: GROUP_MAX }));
    }

    proptest! {
        #[test]
        fn splitting_and_joining_are_inverse(names in proptest::collection::vec("[a-z.]{3,9}", 1..8)) {
            let path = FilePath::new(names.iter().map(|n| format!("/{n}")).collect::<String>()).unwrap();
            let (parent, name) = path.split_last().unwrap();
            prop_assert_eq!(parent.join(&name).unwrap(), path.clone());
            prop_assert_eq!(path.names().count(), names.len());
        }

        #[test]
        fn arbitrary_paths_normalize_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(path) = FilePath::new([b"/", &bytes[..]].concat()) {
                prop_assert_eq!(FilePath::new(path.as_bytes()).unwrap(), path);
            }
        }

        #[test]
        fn escaped_names_round_trip(
            bytes in proptest::collection::vec(any::<u8>(), 1..255),
        ) {
            let plain = !bytes.contains(&b'/') && !bytes.contains(&0) && bytes != b"." && bytes != b"..";
            prop_assert_eq!(Name::new(bytes.clone()).is_ok(), plain);
            if let Ok(name) = Name::new(bytes.clone()) {
                let text = name.shown();
                prop_assert!(text.chars().all(is_printable));
                prop_assert_eq!(unshown(&text), Some(bytes));
            }
        }

        #[test]
        fn unescape_never_panics(text in ".{0,40}") {
            let _ = unshown(&text);
        }
    }
}
