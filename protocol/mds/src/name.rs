//! Names: of directory entries, of files by path, of users. Checked once, then trusted.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::printable::{is_printable, push_escaped};
use crate::wire::{Wire, WireError, WireReader, WireWriter};

/// Bytes of one name in a directory at most.
pub const NAME_MAX: usize = 255;
/// Bytes of a path at most.
pub const PATH_MAX: usize = 4096;
/// Bytes of a user name at most.
pub const USER_MAX: usize = 64;
/// Bytes of a group name at most.
pub const GROUP_MAX: usize = 64;

/// Bytes as text for display: printable text is itself, a backslash is doubled, every other byte is `\xNN`.
/// [`unshown`] is the inverse.
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

/// Returns the bytes that [`shown`] displays as this text; `None` if a backslash begins neither `\\` nor `\xNN`. For
/// text in which a user typed escapes on purpose: a name is never unescaped otherwise.
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

/// One entry of a directory: 1 to 255 bytes, any but `/` and NUL, not `.` or `..`. Most names are UTF-8; none has to be.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Vec<u8>);

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    /// `TooLong`, `Malformed`.
    pub fn new(name: impl Into<Vec<u8>>) -> Result<Self, WireError> {
        let name = name.into();
        check_name(&name)?;
        Ok(Self(name))
    }

    /// The name.
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

/// An absolute path: `/`, or names each preceded by one `/`. Kept in that one form.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(Vec<u8>);

impl FilePath {
    /// Checks a path and brings it to its one form: repeated and trailing slashes go.
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

    /// `/`.
    #[must_use]
    pub fn root() -> Self {
        Self(Vec::from(b"/"))
    }

    /// The path.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the path for display: what is not printable text is escaped, reversibly.
    #[must_use]
    pub fn shown(&self) -> Cow<'_, str> {
        shown(&self.0)
    }

    /// Is this `/`?
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0 == b"/"
    }

    /// The names from the root down.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = Name> {
        let names = self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.map(|name| Name(Vec::from(name)))
    }

    /// The path without its last name, and that name; `None` for `/`.
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

    /// The path with one more name.
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

/// A user's name: 1 to 64 of `a–z A–Z 0–9 . _ - @`, beginning with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserName(String);

impl UserName {
    /// Checks a user name.
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

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A group's name: the same characters and length as a [`UserName`]. Users and groups are named apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(String);

impl GroupName {
    /// Checks a group name.
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

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One form for each number: no signs, no zeros before it.
fn number(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    let plain =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| plain)
}

impl UserName {
    /// The number that it stands for, if it is of the form `uid-N`: a user of some machine without a name here. No
    /// account has such a name.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        number(&self.0, "uid-")
    }

    /// The name that stands for a number.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        Self(alloc::format!("uid-{number}"))
    }

    /// Does it stand for a number?
    #[must_use]
    pub fn is_number(&self) -> bool {
        self.number().is_some()
    }
}

impl GroupName {
    /// The number that it stands for, if it is of the form `gid-N`: a group of some machine without a name here. No
    /// group has such a name.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        number(&self.0, "gid-")
    }

    /// The name that stands for a number.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        Self(alloc::format!("gid-{number}"))
    }

    /// Does it stand for a number?
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
    fn a_path_has_one_form() {
        assert_eq!(FilePath::new("//a///b/").unwrap().as_bytes(), b"/a/b");
        assert_eq!(FilePath::new("///").unwrap(), FilePath::root());
    }

    #[test]
    fn a_number_has_one_name() {
        for number in [0, 1, 1000, u32::MAX] {
            assert_eq!(UserName::of_number(number).number(), Some(number));
            assert_eq!(GroupName::of_number(number).number(), Some(number));
        }
        for name in ["uid-", "uid-01", "uid-4294967296", "gid-1", "auid-1", "uid-1a"] {
            assert_eq!(UserName::new(name).unwrap().number(), None, "{name}");
        }
    }

    #[test]
    fn plain_text_is_shown_as_it_is() {
        assert_eq!(Name::new("Grüße, 世界").unwrap().shown(), "Grüße, 世界");
        assert_eq!(Name::new(b"a\xffb\\c\n".to_vec()).unwrap().shown(), r"a\xffb\\c\x0a");
        assert_eq!(Name::new("a\u{202e}b\u{200b}").unwrap().shown(), r"a\xe2\x80\xaeb\xe2\x80\x8b");
        assert_eq!((unshown(r"\"), unshown(r"\x4"), unshown(r"\q")), (None, None, None));
    }

    #[test]
    fn names_that_climb_or_hide_are_refused() {
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
    fn user_names_hold_nothing_that_a_directory_service_would_read_as_syntax() {
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
        fn any_bytes_are_a_path_in_its_one_form_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(path) = FilePath::new([b"/", &bytes[..]].concat()) {
                prop_assert_eq!(FilePath::new(path.as_bytes()).unwrap(), path);
            }
        }

        #[test]
        fn every_byte_but_slash_and_nul_is_in_names_and_what_is_shown_leads_back(
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
        fn any_text_is_some_bytes_or_none(text in ".{0,40}") {
            let _ = unshown(&text);
        }
    }
}
