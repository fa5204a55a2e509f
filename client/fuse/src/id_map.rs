//! Mapping between user and group names of the metadata server and numbers of this machine.
//!
//! Does: maps the session's user to the user who mounted, and other names by this machine's
//! `/etc/passwd` and `/etc/group`. A number without a name is `uid-N` or `gid-N` at the server,
//! which reserves such names.
//! Does not: query directory services of this machine; their users are shown as `uid-N`.
//! Contract: a number that was stored is shown as the same number. On a mount for many users, a
//! name without a local number, and a file without a group, is shown under a number that no local
//! user or group has, so that no local user owns it for the kernel.
//! Truth: docs/adr/0059-unknown-accounts-and-new-devices.md.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sealstone_mds_protocol::{Acl, GroupName, UserName};

/// The default number for users and groups without a local one. It is in the range that systemd
/// keeps free. The overflow number 65534 is unsuitable, because programs run under it.
pub const UNKNOWN_ID: u32 = 0xFFFE_FFFE;
/// No user or group can have this number: chown(2) and the kernel use it for "none".
const INVALID_ID: u32 = u32::MAX;
/// Time after which the files are read again.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// Maximum bytes of such a file; a larger one is ignored.
const FILE_MAX: u64 = 16 << 20;

/// The user of a mount.
#[derive(Clone, Debug)]
pub struct MountingUser {
    /// The account of the session.
    pub user: UserName,
    /// The local user who mounted.
    pub uid: u32,
    /// The group of that user.
    pub gid: u32,
    /// Whether other local users use the mount under their own names.
    pub others: bool,
    /// The number for users without a local one; [`UNKNOWN_ID`] unless configured.
    pub unknown_uid: u32,
    /// The number for groups without a local one, and on a mount for many users for files without a
    /// group.
    pub unknown_gid: u32,
}

/// Why a number cannot stand for unknown users or groups.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownIdError {
    /// It is root's, or not a valid number.
    #[error("{0} cannot be shown for unknown users or groups")]
    Reserved(u32),
    /// A local user or group has it, directly or in a range for containers.
    #[error(
        "{number} belongs to {name} in {file}; that user or group would own the files of unknown accounts"
    )]
    Used {
        /// The number.
        number: u32,
        /// The user or group that has it.
        name: String,
        /// The file that assigns it.
        file: &'static str,
    },
}

/// Names and numbers of users, or of groups.
#[derive(Debug, Default)]
struct Table {
    by_name: BTreeMap<String, u32>,
    by_number: BTreeMap<u32, String>,
}

impl Table {
    /// Parses lines `name:x:number:…`; other lines are skipped.
    fn parse(text: &str) -> Self {
        let mut table = Self::default();
        for line in text.lines() {
            let mut fields = line.split(':');
            let (Some(name), _, Some(Ok(number))) =
                (fields.next(), fields.next(), fields.next().map(str::parse::<u32>))
            else {
                continue;
            };
            table.by_name.entry(name.to_owned()).or_insert(number);
            table.by_number.entry(number).or_insert_with(|| name.to_owned());
        }
        table
    }

    fn read(path: &Path) -> Self {
        Self::parse(&String::from_utf8_lossy(&read_small(path)))
    }
}

/// Returns the bytes of a file; empty if it cannot be read or is too large.
fn read_small(path: &Path) -> Vec<u8> {
    let small = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() <= FILE_MAX);
    if small { std::fs::read(path).unwrap_or_default() } else { Vec::new() }
}

/// Returns the user whose range of numbers for containers includes `number`, from lines
/// `name:first:count`.
fn range_owner(text: &str, number: u32) -> Option<String> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let first: u64 = fields.next()?.parse().ok()?;
        let count: u64 = fields.next()?.trim().parse().ok()?;
        let range = first..first.saturating_add(count);
        range.contains(&u64::from(number)).then(|| name.to_owned())
    })
}

struct Tables {
    users: Table,
    groups: Table,
    read: Instant,
    /// Users and groups whose local names the server does not know.
    unnamed: (BTreeSet<u32>, BTreeSet<u32>),
}

/// The mapping between names and numbers.
pub struct IdMap {
    mounter: MountingUser,
    tables: Mutex<Tables>,
}

impl core::fmt::Debug for IdMap {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("People").field("mounter", &self.mounter).finish_non_exhaustive()
    }
}

impl IdMap {
    /// Reads this machine's files.
    #[must_use]
    pub fn new(mounter: MountingUser) -> Self {
        Self { mounter, tables: Mutex::new(Self::read()) }
    }

    fn read() -> Tables {
        Tables {
            users: Table::read(Path::new("/etc/passwd")),
            groups: Table::read(Path::new("/etc/group")),
            read: Instant::now(),
            unnamed: Default::default(),
        }
    }

    /// Checks that no local user or group has the numbers for unknown accounts.
    ///
    /// # Errors
    /// [`UnknownIdError`].
    pub fn check_unknown_ids(&self) -> Result<(), UnknownIdError> {
        let read = |file: &'static str| String::from_utf8_lossy(&read_small(Path::new(file))).into_owned();
        let MountingUser { unknown_uid, unknown_gid, .. } = self.mounter;
        let tables = self.tables.lock();
        for (number, names, of_names, file) in [
            (unknown_uid, &tables.users, "/etc/passwd", "/etc/subuid"),
            (unknown_gid, &tables.groups, "/etc/group", "/etc/subgid"),
        ] {
            if number == 0 || number == INVALID_ID {
                return Err(UnknownIdError::Reserved(number));
            }
            let used = |name: &str, file| UnknownIdError::Used { number, name: name.to_owned(), file };
            if let Some(name) = names.by_number.get(&number) {
                return Err(used(name, of_names));
            }
            if let Some(name) = range_owner(&read(file), number) {
                return Err(used(&name, file));
            }
        }
        Ok(())
    }

    /// Whether this is the number for unknown users.
    #[must_use]
    pub const fn is_unknown_uid(&self, uid: u32) -> bool {
        uid == self.mounter.unknown_uid
    }

    /// Whether this is the number for unknown groups.
    #[must_use]
    pub const fn is_unknown_gid(&self, gid: u32) -> bool {
        gid == self.mounter.unknown_gid
    }

    fn with<T>(&self, what: impl FnOnce(&Tables) -> T) -> T {
        let mut tables = self.tables.lock();
        if tables.read.elapsed() > READ_AGAIN {
            *tables = Self::read();
        }
        what(&tables)
    }

    /// Returns the user of the mount.
    #[must_use]
    pub const fn mounter(&self) -> &MountingUser {
        &self.mounter
    }

    /// Returns the number to show for a user.
    #[must_use]
    pub fn uid(&self, name: &UserName) -> u32 {
        self.known_uid(name).unwrap_or(self.mounter.unknown_uid)
    }

    /// Returns the local number of a user, if there is one.
    #[must_use]
    pub fn known_uid(&self, name: &UserName) -> Option<u32> {
        if *name == self.mounter.user {
            return Some(self.mounter.uid);
        }
        name.number().or_else(|| self.with(|tables| tables.users.by_name.get(name.as_str()).copied()))
    }

    /// Returns the number to show for a group. Without a group it is the mounter's on a mount for
    /// one user, and the unknown one otherwise.
    #[must_use]
    pub fn gid(&self, name: Option<&GroupName>) -> u32 {
        let known = match name {
            Some(name) => self.known_gid(name),
            None if self.mounter.others => None,
            None => Some(self.mounter.gid),
        };
        known.unwrap_or(self.mounter.unknown_gid)
    }

    /// Returns the local number of a group, if there is one.
    #[must_use]
    pub fn known_gid(&self, name: &GroupName) -> Option<u32> {
        name.number().or_else(|| self.with(|tables| tables.groups.by_name.get(name.as_str()).copied()))
    }

    /// Returns the server's name of the user with this number.
    #[must_use]
    pub fn user(&self, uid: u32) -> UserName {
        if uid == self.mounter.uid {
            return self.mounter.user.clone();
        }
        let named = self.with(|tables| {
            let known = !tables.unnamed.0.contains(&uid);
            tables.users.by_number.get(&uid).filter(|_| known).cloned()
        });
        let named = named.and_then(|name| UserName::new(name).ok()).filter(|name| self.uid(name) == uid);
        named.unwrap_or_else(|| UserName::of_number(uid))
    }

    /// Returns the server's name of the group with this number; none for the mounter's group on a
    /// mount for one user.
    #[must_use]
    pub fn group(&self, gid: u32) -> Option<GroupName> {
        let none = gid == self.mounter.gid && !self.mounter.others;
        if none { None } else { Some(self.named_group(gid)) }
    }

    /// As [`Self::group`], where a group has to be named.
    #[must_use]
    pub fn named_group(&self, gid: u32) -> GroupName {
        let named = self.with(|tables| {
            let known = !tables.unnamed.1.contains(&gid);
            tables.groups.by_number.get(&gid).filter(|_| known).cloned()
        });
        let named =
            named.and_then(|name| GroupName::new(name).ok()).filter(|name| self.gid(Some(name)) == gid);
        named.unwrap_or_else(|| GroupName::of_number(gid))
    }

    /// Uses numeric names for these from now on, since the server does not know a name. Returns
    /// false if that was so already.
    #[must_use]
    pub fn by_number(&self, uid: Option<u32>, gid: Option<u32>) -> bool {
        let named = |uid| uid != self.mounter.uid && !self.user(uid).is_number();
        let named_group = |gid| self.group(gid).is_some_and(|name| !name.is_number());
        self.record_unnamed(uid.filter(|uid| named(*uid)), gid.filter(|gid| named_group(*gid)))
    }

    fn record_unnamed(&self, uid: Option<u32>, gid: Option<u32>) -> bool {
        let mut tables = self.tables.lock();
        let user = uid.is_some_and(|uid| tables.unnamed.0.insert(uid));
        let group = gid.is_some_and(|gid| tables.unnamed.1.insert(gid));
        user || group
    }

    /// As [`Self::by_number`], for a name in an access control list: of a user, or else of a group.
    #[must_use]
    pub fn listed_by_number(&self, acl: &Acl, name: &str) -> bool {
        let user = acl.users.iter().find(|(user, _)| user.as_str() == name);
        if let Some((user, _)) = user {
            return self.record_unnamed(self.known_uid(user).filter(|uid| *uid != self.mounter.uid), None);
        }
        let group = acl.groups.iter().find(|(group, _)| group.as_str() == name);
        self.record_unnamed(None, group.and_then(|(group, _)| self.known_gid(group)))
    }

    /// Returns owner and group of a node that this user creates; none for the session's own.
    #[must_use]
    pub fn new_node_owner(&self, uid: u32, gid: u32) -> (Option<UserName>, Option<GroupName>) {
        if !self.mounter.others {
            return (None, None);
        }
        let owner = Some(self.user(uid)).filter(|name| *name != self.mounter.user);
        (owner, self.group(gid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_map() -> IdMap {
        let mounter = MountingUser {
            user: UserName::new("alice").unwrap(),
            uid: 1000,
            gid: 1000,
            others: true,
            unknown_uid: UNKNOWN_ID,
            unknown_gid: UNKNOWN_ID,
        };
        let id_map = IdMap::new(mounter);
        *id_map.tables.lock() = Tables {
            users: Table::parse("root:x:0:0::/:/bin/sh\nalice:x:7:7::/:\nbob:x:1001:1001::/:\nbroken\n"),
            groups: Table::parse("root:x:0:\nwheel:x:10:bob\n"),
            read: Instant::now(),
            unnamed: Default::default(),
        };
        id_map
    }

    #[test]
    fn every_stored_number_round_trips() {
        let id_map = id_map();
        for uid in [0, 7, 1000, 1001, 4242, u32::MAX - 1] {
            assert_eq!(id_map.uid(&id_map.user(uid)), uid);
        }
        for gid in [0, 10, 1000, 4242] {
            assert_eq!(id_map.gid(id_map.group(gid).as_ref()), gid);
        }
    }

    #[test]
    fn session_user_is_mounter_and_others_are_unknown() {
        let id_map = id_map();
        assert_eq!(id_map.user(1000).as_str(), "alice");
        assert_eq!(id_map.user(7).as_str(), "uid-7", "another alice is not the session's");
        assert_eq!(id_map.uid(&UserName::new("carol").unwrap()), UNKNOWN_ID);
        assert_eq!(id_map.new_node_owner(1000, 1000), (None, Some(GroupName::of_number(1000))));
        assert_eq!(id_map.new_node_owner(1001, 10).0.unwrap().as_str(), "bob");
        assert!(id_map.by_number(Some(1001), Some(10)));
        assert_eq!(
            id_map.new_node_owner(1001, 10).0.unwrap().as_str(),
            "uid-1001",
            "the server knows no bob"
        );
        assert!(!id_map.by_number(Some(1001), Some(10)));
    }

    #[test]
    fn missing_group_is_unknown_on_shared_mount() {
        let mut id_map = id_map();
        assert_eq!(id_map.gid(None), UNKNOWN_ID);
        id_map.mounter.others = false;
        assert_eq!(id_map.gid(None), 1000, "one user: nobody else is let in");
        assert_eq!(id_map.group(1000), None);
    }

    #[test]
    fn unknown_number_of_a_local_user_is_refused() {
        let mut id_map = id_map();
        assert_eq!(id_map.check_unknown_ids(), Ok(()));
        for (uid, gid) in [(1001, UNKNOWN_ID), (UNKNOWN_ID, 10), (0, UNKNOWN_ID), (UNKNOWN_ID, INVALID_ID)] {
            (id_map.mounter.unknown_uid, id_map.mounter.unknown_gid) = (uid, gid);
            assert!(id_map.check_unknown_ids().is_err(), "{uid} {gid}");
        }
        let ranges = "bob:100000:65536\nbroken\ncarol:4294900000:65536\n";
        assert_eq!(range_owner(ranges, 165_535).as_deref(), Some("bob"));
        assert_eq!(range_owner(ranges, 165_536), None);
        assert_eq!(range_owner(ranges, UNKNOWN_ID).as_deref(), Some("carol"));
    }

    #[test]
    fn acl_uses_numbers_for_unknown_names() {
        let id_map = id_map();
        let list = |text: &str| Acl::parse(&format!("user::r--,{text}mask::r--,other::r--")).unwrap();
        // A user and a group with the same name, one of which the server may know.
        let both = list("user:root:r--,group::r--,group:root:r--,");
        assert!(id_map.listed_by_number(&both, "root"));
        assert_eq!((id_map.user(0).as_str(), id_map.named_group(0).as_str()), ("uid-0", "root"));
        let group = list("user:uid-0:r--,group::r--,group:root:r--,");
        assert!(id_map.listed_by_number(&group, "root"));
        assert_eq!(id_map.named_group(0).as_str(), "gid-0");
        assert!(
            !id_map.listed_by_number(&group, "root") && !id_map.listed_by_number(&group, "its last name")
        );
        let session = list("user:alice:r--,group::r--,");
        assert!(!id_map.listed_by_number(&session, "alice"), "he has an account");
    }
}
