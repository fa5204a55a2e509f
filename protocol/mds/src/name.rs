//! Names: of directory entries, of files by path, of users. Checked once, then trusted.

use alloc::string::String;
use core::fmt;

use crate::wire::{Reader, Wire, WireError, Writer};

/// Bytes of one name in a directory at most.
pub const NAME_MAX: usize = 255;
/// Bytes of a path at most.
pub const PATH_MAX: usize = 4096;
/// Bytes of a user name at most.
pub const USER_MAX: usize = 64;
/// Bytes of a group name at most.
pub const GROUP_MAX: usize = 64;

/// One entry of a directory: 1 to 255 bytes of UTF-8 without `/` and NUL, not `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    /// `TooLong`, `Malformed`.
    pub fn new(name: impl Into<String>) -> Result<Self, WireError> {
        let name = name.into();
        check_name(&name)?;
        Ok(Self(name))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_name(name: &str) -> Result<(), WireError> {
    if name.len() > NAME_MAX {
        return Err(WireError::TooLong { limit: NAME_MAX });
    }
    match name {
        "" | "." | ".." => Err(WireError::Malformed("name")),
        _ if name.contains(['/', '\0']) => Err(WireError::Malformed("name")),
        _ => Ok(()),
    }
}

/// An absolute path: `/`, or names each preceded by one `/`. Kept in that one form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(String);

impl FilePath {
    /// Checks a path and brings it to its one form: repeated and trailing slashes go.
    ///
    /// # Errors
    /// `TooLong`, `Malformed` (relative, or with a name that [`Name`] refuses).
    pub fn new(path: &str) -> Result<Self, WireError> {
        if path.len() > PATH_MAX {
            return Err(WireError::TooLong { limit: PATH_MAX });
        }
        if !path.starts_with('/') {
            return Err(WireError::Malformed("path"));
        }
        let mut whole = String::with_capacity(path.len());
        for name in path.split('/').filter(|name| !name.is_empty()) {
            check_name(name)?;
            whole.push('/');
            whole.push_str(name);
        }
        if whole.is_empty() {
            whole.push('/');
        }
        Ok(Self(whole))
    }

    /// `/`.
    #[must_use]
    pub fn root() -> Self {
        Self(String::from("/"))
    }

    /// The path.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Is this `/`?
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0 == "/"
    }

    /// The names from the root down.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// The path without its last name, and that name; `None` for `/`.
    #[must_use]
    pub fn split_last(&self) -> Option<(Self, Name)> {
        let (parent, name) = self.0.rsplit_once('/')?;
        if name.is_empty() {
            return None;
        }
        let parent = if parent.is_empty() { Self::root() } else { Self(String::from(parent)) };
        Some((parent, Name(String::from(name))))
    }

    /// The path with one more name.
    ///
    /// # Errors
    /// `TooLong`.
    pub fn join(&self, name: &Name) -> Result<Self, WireError> {
        let mut whole = if self.is_root() { String::new() } else { self.0.clone() };
        whole.push('/');
        whole.push_str(name.as_str());
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

macro_rules! text_like {
    ($type:ty, $limit:expr, $new:expr) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl Wire for $type {
            fn put(&self, out: &mut Writer) {
                out.lv16(self.0.as_bytes());
            }
            fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
                $new(input.text($limit)?)
            }
        }
    };
}
text_like!(Name, NAME_MAX, Name::new);
text_like!(FilePath, PATH_MAX, FilePath::new);
text_like!(UserName, USER_MAX, UserName::new);
text_like!(GroupName, GROUP_MAX, GroupName::new);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use proptest::prelude::*;

    #[test]
    fn a_path_has_one_form() {
        assert_eq!(FilePath::new("//a///b/").unwrap().as_str(), "/a/b");
        assert_eq!(FilePath::new("///").unwrap(), FilePath::root());
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
        assert!(FilePath::new(&"/x".repeat(PATH_MAX / 2)).is_ok());
        assert!(FilePath::new(&format!("{}/", "/x".repeat(PATH_MAX / 2))).is_err());
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
            let path = FilePath::new(&names.iter().map(|n| format!("/{n}")).collect::<String>()).unwrap();
            let (parent, name) = path.split_last().unwrap();
            prop_assert_eq!(parent.join(&name).unwrap(), path.clone());
            prop_assert_eq!(path.names().count(), names.len());
        }

        #[test]
        fn any_text_is_a_path_in_its_one_form_or_refused(text in ".{0,64}") {
            if let Ok(path) = FilePath::new(&text) {
                prop_assert_eq!(FilePath::new(path.as_str()).unwrap(), path);
            }
        }
    }
}
