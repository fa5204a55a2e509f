//! POSIX access control lists of files and directories.
//!
//! Does: define the entries of a list; convert a list to and from text and mode bits.
//! Does not: decide access; the server does.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::name::{GroupName, UserName};
use crate::wire::{Wire, WireError, WireReader, WireWriter};

/// Maximum number of named users and groups of a list.
pub const ACL_NAMES_MAX: usize = 64;
/// Maximum length of a list as text.
pub const ACL_TEXT_MAX: usize = 8 * 1024;
/// The extended attribute with the list of a node.
pub const ACL_ACCESS: &str = "system.posix_acl_access";
/// The extended attribute of a directory with the list for new nodes in it.
pub const ACL_DEFAULT: &str = "system.posix_acl_default";

/// Read 4, write 2, execute or search 1.
const RIGHTS: [(u8, char); 3] = [(4, 'r'), (2, 'w'), (1, 'x')];

/// An access control list. Permissions are 3 bits, as in a mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// Permissions of the owner.
    pub owner: u8,
    /// Permissions of named users.
    pub users: Vec<(UserName, u8)>,
    /// Permissions of the group.
    pub group: u8,
    /// Permissions of named groups.
    pub groups: Vec<(GroupName, u8)>,
    /// Upper limit for the group and all named entries; present if any is named.
    pub mask: Option<u8>,
    /// Permissions of others.
    pub other: u8,
}

impl Acl {
    /// Whether the list has more than a mode can express.
    #[must_use]
    pub const fn is_extended(&self) -> bool {
        self.mask.is_some() || !self.users.is_empty() || !self.groups.is_empty()
    }

    /// Returns the nine mode bits of a node with this list: the group bits are the mask.
    #[must_use]
    pub fn mode(&self) -> u16 {
        let group = self.mask.unwrap_or(self.group);
        u16::from(self.owner & 7) << 6 | u16::from(group & 7) << 3 | u16::from(self.other & 7)
    }

    /// Returns the list with owner, mask or group, and others set from these nine bits.
    #[must_use]
    pub fn with_mode(mut self, mode: u16) -> Self {
        let class = |shift: u16| (mode >> shift & 7) as u8;
        (self.owner, self.other) = (class(6), class(0));
        *self.mask.as_mut().unwrap_or(&mut self.group) = class(3);
        self
    }

    /// Sorts the names and validates the list.
    ///
    /// # Errors
    /// `TooLong` for more than [`ACL_NAMES_MAX`] names; `Malformed` for a repeated name, names
    /// without a mask, or invalid permissions.
    pub fn checked(mut self) -> Result<Self, WireError> {
        if self.users.len() + self.groups.len() > ACL_NAMES_MAX {
            return Err(WireError::TooLong { limit: ACL_NAMES_MAX });
        }
        self.users.sort();
        self.groups.sort();
        let twice = self.users.windows(2).any(|pair| pair[0].0 == pair[1].0)
            || self.groups.windows(2).any(|pair| pair[0].0 == pair[1].0);
        let unmasked = self.mask.is_none() && self.is_extended();
        let rights = [self.owner, self.group, self.other, self.mask.unwrap_or(0)];
        let named = self.users.iter().map(|user| user.1).chain(self.groups.iter().map(|group| group.1));
        if twice || unmasked || rights.into_iter().chain(named).any(|rights| rights > 7) {
            return Err(WireError::Malformed("access control list"));
        }
        Ok(self)
    }

    /// Parses the long text form, entries separated by commas:
    /// `user::rw-,user:ann:r--,group::r--,mask::r--,other::---`.
    ///
    /// # Errors
    /// As [`Acl::checked`]; `Malformed` for other text, and for a repeated or missing entry.
    pub fn parse(text: &str) -> Result<Self, WireError> {
        const MALFORMED: WireError = WireError::Malformed("access control list");
        if text.len() > ACL_TEXT_MAX {
            return Err(WireError::TooLong { limit: ACL_TEXT_MAX });
        }
        let mut acl = Self::default();
        let (mut owner, mut group, mut other) = (None, None, None);
        for entry in text.split(',') {
            let mut fields = entry.split(':');
            let (Some(kind), Some(name), Some(rights), None) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                return Err(MALFORMED);
            };
            let rights = rights_of(rights).ok_or(MALFORMED)?;
            let once = |place: &mut Option<u8>| match place.replace(rights) {
                None => Ok(()),
                Some(_) => Err(MALFORMED),
            };
            match (kind, name) {
                ("user", "") => once(&mut owner)?,
                ("group", "") => once(&mut group)?,
                ("mask", "") => once(&mut acl.mask)?,
                ("other", "") => once(&mut other)?,
                ("user", name) => acl.users.push((UserName::new(name)?, rights)),
                ("group", name) => acl.groups.push((GroupName::new(name)?, rights)),
                _ => return Err(MALFORMED),
            }
        }
        acl.owner = owner.ok_or(MALFORMED)?;
        acl.group = group.ok_or(MALFORMED)?;
        acl.other = other.ok_or(MALFORMED)?;
        acl.checked()
    }
}

fn rights_of(text: &str) -> Option<u8> {
    let mut rights = 0;
    let mut letters = text.chars();
    for (bit, letter) in RIGHTS {
        match letters.next()? {
            '-' => {}
            found if found == letter => rights |= bit,
            _ => return None,
        }
    }
    letters.next().is_none().then_some(rights)
}

fn text_of(rights: u8) -> String {
    RIGHTS.iter().map(|(bit, letter)| if rights & bit != 0 { *letter } else { '-' }).collect()
}

impl fmt::Display for Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user::{}", text_of(self.owner))?;
        for (name, rights) in &self.users {
            write!(f, ",user:{name}:{}", text_of(*rights))?;
        }
        write!(f, ",group::{}", text_of(self.group))?;
        for (name, rights) in &self.groups {
            write!(f, ",group:{name}:{}", text_of(*rights))?;
        }
        if let Some(mask) = self.mask {
            write!(f, ",mask::{}", text_of(mask))?;
        }
        write!(f, ",other::{}", text_of(self.other))
    }
}

impl Wire for Acl {
    fn put(&self, out: &mut WireWriter) {
        out.lv16(self.to_string().as_bytes());
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Self::parse(input.text(ACL_TEXT_MAX)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str =
        "user::rwx,user:ann:r--,user:uid-7:rw-,group::r-x,group:staff:rwx,mask::rw-,other::---";

    #[test]
    fn acl_text_round_trips() {
        let acl = Acl::parse(TEXT).unwrap();
        assert_eq!(acl.to_string(), TEXT);
        assert_eq!((acl.owner, acl.group, acl.mask, acl.other), (7, 5, Some(6), 0));
        assert_eq!(acl.users, [(UserName::new("ann").unwrap(), 4), (UserName::of_number(7), 6)]);
        assert_eq!(acl.mode(), 0o760);
        assert_eq!(acl.with_mode(0o604).to_string().split(',').nth(5), Some("mask::---"));
        let plain = Acl::parse("other::r--,group::r--,user::rw-").unwrap();
        assert!(!plain.is_extended());
        assert_eq!((plain.mode(), plain.to_string().as_str()), (0o644, "user::rw-,group::r--,other::r--"));
    }

    #[test]
    fn incomplete_acl_is_refused() {
        for text in [
            "",
            "user::rw-",
            "user::rw-,group::r--,other::r--,",
            "user::rw-,user::rw-,group::r--,other::r--",
            "user::rw-,group::r--,other::rw",
            "user::rw-,group::r--,other::wr-",
            "user::rw-,group::r--,other::r--x",
            "user::rw-,group::r--,other:ann:r--",
            "user::rw-,group::r--,other::r--,root::r--",
            "user::rw-,group::r--,other::r--:",
            // Names need a mask and must not repeat.
            "user::rw-,user:ann:r--,group::r--,other::r--",
            "user::rw-,user:ann:r--,user:ann:rw-,group::r--,mask::r--,other::r--",
            "user::rw-,user:a b:r--,group::r--,mask::r--,other::r--",
        ] {
            assert!(Acl::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn acl_accepts_names_up_to_limit() {
        let list = |count: usize| Acl {
            users: (0..count).map(|number| (UserName::of_number(number as u32), 4)).collect(),
            mask: Some(7),
            ..Acl::default()
        };
        let most = list(ACL_NAMES_MAX).checked().unwrap();
        assert_eq!(Acl::parse(&most.to_string()), Ok(most));
        assert_eq!(list(ACL_NAMES_MAX + 1).checked(), Err(WireError::TooLong { limit: ACL_NAMES_MAX }));
        let long = "x".repeat(ACL_TEXT_MAX + 1);
        assert_eq!(Acl::parse(&long), Err(WireError::TooLong { limit: ACL_TEXT_MAX }));
    }

    proptest! {
        #[test]
        fn parsed_acl_round_trips(text in "((user|group|mask|other):[a-c]{0,1}:[r-][w-][x-],?){0,7}") {
            if let Ok(acl) = Acl::parse(text.trim_end_matches(',')) {
                prop_assert_eq!(Acl::parse(&acl.to_string()), Ok(acl));
            }
        }
    }
}
