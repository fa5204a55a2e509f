//! Access checks on files and directories.
//!
//! Does: owner, group and others, access control lists, the sticky bit, administrators.
//! Does not: check roles; `roles` decides first which requests a role may send.
//! Truth: POSIX.1-2017 4.5 and 4.3; docs/standards/mds/operations.md §5.3.

use std::sync::Arc;

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{Access, ErrorCode, FileKind, GroupName, Role, UserName};

use crate::error::{MdsError, Result};
use crate::records::Inode;

/// Permission bits that are stored.
pub const MODE_MASK: u16 = 0o7777;
/// Entries of a directory with this bit can be removed only by their owner and the directory's
/// owner.
pub const STICKY: u16 = 0o1000;
/// On a directory: new nodes in it get its group. On a file: stored, without effect on the server.
pub const SETGID: u16 = 0o2000;
/// Stored, without effect on the server.
pub const SETUID: u16 = 0o4000;
/// The group may execute the file: with it the set-group-id bit takes effect.
const GROUP_EXECUTE: u16 = 0o010;

/// The authenticated user of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Name of the account.
    pub user: UserName,
    /// Role, which limits the requests that it may send.
    pub role: Role,
    /// Groups of the user.
    pub groups: Arc<[GroupName]>,
    /// Session of the request.
    pub session: SessionId,
}

/// One of the three permissions; `Search` of a directory is `execute` of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessRight {
    Read = 4,
    Write = 2,
    Search = 1,
}

impl AccessRight {
    /// Returns the rights on a file that an access needs.
    pub(crate) fn of(access: Access) -> impl Iterator<Item = Self> {
        Self::to(access.reads(), access.writes()).chain(access.executes().then_some(Self::Search))
    }

    /// Returns the rights that an access for reading, writing or both needs.
    pub(crate) fn to(reads: bool, writes: bool) -> impl Iterator<Item = Self> {
        [reads.then_some(Self::Read), writes.then_some(Self::Write)].into_iter().flatten()
    }
}

impl Principal {
    /// Fails unless the user has a right on a node.
    pub(crate) fn needs(&self, right: AccessRight, inode: &Inode, subject: &str) -> Result<()> {
        self.needs_all([right], inode, subject)
    }

    /// Fails unless the user has all rights on a node. Of the groups in a list, one alone has to
    /// grant all of them.
    pub(crate) fn needs_all(
        &self,
        rights: impl IntoIterator<Item = AccessRight>,
        inode: &Inode,
        subject: &str,
    ) -> Result<()> {
        let wanted = rights.into_iter().fold(0, |bits, right| bits | right as u8);
        // The role check refuses read-only users already; this is a second line, if a request is
        // classified wrongly.
        let reads_only = self.role == Role::ReadOnly && wanted & AccessRight::Write as u8 != 0;
        if !reads_only && (self.is_admin() || self.is_granted(wanted, inode)) {
            Ok(())
        } else {
            Err(MdsError::refused(ErrorCode::Denied, subject))
        }
    }

    /// Whether mode or list grants the rights. The first matching class decides, even if a later
    /// one grants more; among groups any that grants all rights suffices.
    fn is_granted(&self, wanted: u8, inode: &Inode) -> bool {
        let class = |shift: u16| (inode.mode >> shift & 7) as u8;
        let has = |rights: u8| rights & wanted == wanted;
        if inode.owner == self.user {
            return has(class(6));
        }
        let of_group = inode.group.as_ref().is_some_and(|group| self.is_member(group));
        let Some(acl) = &inode.acl else {
            return has(class(if of_group { 3 } else { 0 }));
        };
        let masked = |rights: u8| has(rights & class(3));
        if let Some((_, rights)) = acl.users.iter().find(|(name, _)| *name == self.user) {
            return masked(*rights);
        }
        let named = acl.groups.iter().filter(|(name, _)| self.is_member(name)).map(|(_, rights)| *rights);
        let mut rights = named.chain(of_group.then_some(acl.group)).peekable();
        match rights.peek() {
            Some(_) => rights.any(masked),
            None => has(class(0)),
        }
    }

    /// Whether the user is an administrator: no access check applies.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.role == Role::Admin
    }

    /// Whether the user is a member of the group.
    #[must_use]
    pub fn is_member(&self, group: &GroupName) -> bool {
        self.groups.contains(group)
    }

    /// Fails unless the user may add and remove entries of a directory.
    pub(crate) fn needs_entries(&self, directory: &Inode, subject: &str) -> Result<()> {
        self.needs_all([AccessRight::Write, AccessRight::Search], directory, subject)
    }

    /// Fails unless the user may remove this entry from its directory.
    pub(crate) fn needs_removal(&self, directory: &Inode, entry: &Inode, subject: &str) -> Result<()> {
        self.needs_entries(directory, subject)?;
        if directory.mode & STICKY == 0
            || entry.owner == self.user
            || directory.owner == self.user
            || self.is_admin()
        {
            Ok(())
        } else {
            Err(MdsError::refused(ErrorCode::NotPermitted, subject))
        }
    }

    /// Fails unless the user owns the node or is an administrator.
    pub(crate) fn needs_ownership(&self, inode: &Inode, subject: &str) -> Result<()> {
        if self.is_admin() || inode.owner == self.user {
            Ok(())
        } else {
            Err(MdsError::refused(ErrorCode::NotPermitted, subject))
        }
    }

    /// Fails unless the user may create a hard link to the node, as Linux decides with
    /// `fs.protected_hardlinks`. The node must belong to the user, or be a regular file that the
    /// user may read and write and that has no effective set-id bits.
    pub(crate) fn needs_link(&self, inode: &Inode, subject: &str) -> Result<()> {
        if self.is_admin() || inode.owner == self.user {
            return Ok(());
        }
        let runs_as_other =
            inode.mode & SETUID != 0 || inode.mode & (SETGID | GROUP_EXECUTE) == SETGID | GROUP_EXECUTE;
        let may_change = self.needs_all([AccessRight::Read, AccessRight::Write], inode, subject).is_ok();
        if inode.kind == FileKind::File && !runs_as_other && may_change {
            Ok(())
        } else {
            Err(MdsError::refused(ErrorCode::NotPermitted, subject))
        }
    }

    /// Fails unless the user is an administrator.
    pub(crate) fn needs_admin(&self) -> Result<()> {
        if self.is_admin() {
            Ok(())
        } else {
            Err(MdsError::refused(ErrorCode::Denied, "administrators only"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealstone_mds_protocol::Acl;

    fn principal(name: &str, admin: bool) -> Principal {
        let role = if admin { Role::Admin } else { Role::User };
        member(name, role, &[])
    }

    fn member(name: &str, role: Role, groups: &[&str]) -> Principal {
        let groups = groups.iter().map(|group| GroupName::new(*group).unwrap()).collect();
        Principal { user: UserName::new(name).unwrap(), role, groups, session: [0; 16] }
    }

    fn inode(owner: &str, mode: u16) -> Inode {
        let group = Some(GroupName::new("staff").unwrap());
        Inode::new(FileKind::Directory, mode, UserName::new(owner).unwrap(), group, 0)
    }

    #[test]
    fn mode_bits_grant_exactly_their_rights() {
        for mode in 0..=0o777 {
            let file = inode("alice", mode);
            let classes: [(&str, &[&str], u16); 5] = [
                ("alice", &[], 6),
                // The owner gets the owner bits only, even if the group bits grant more.
                ("alice", &["staff"], 6),
                ("bob", &["other", "staff"], 3),
                ("bob", &["other"], 0),
                // A user with the name of the group is not a member of it.
                ("staff", &[], 0),
            ];
            for (principal, groups, shift) in classes {
                for right in [AccessRight::Read, AccessRight::Write, AccessRight::Search] {
                    let expected = (mode >> shift) & right as u16 != 0;
                    let may = |role| member(principal, role, groups).needs(right, &file, "").is_ok();
                    assert_eq!(may(Role::User), expected, "{mode:o} {principal} {right:?}");
                    assert_eq!(may(Role::ReadOnly), expected && right != AccessRight::Write);
                    assert!(may(Role::Admin));
                }
            }
        }
    }

    #[test]
    fn acl_rights_are_limited_by_mask() {
        let list = "user::---,user:bob:rw-,user:carol:---,group::r--,group:dev:-w-,group:ops:--x,mask::rwx,other::r--";
        let with = |mode| Inode { acl: Some(Acl::parse(list).unwrap()), ..inode("alice", mode) };
        let rights = |user: &str, groups: &[&str], mode| {
            let may = |right| member(user, Role::User, groups).needs(right, &with(mode), "").is_ok();
            [AccessRight::Read, AccessRight::Write, AccessRight::Search].map(may)
        };
        let (yes, no) = (true, false);
        // Owner and others get what the mode grants.
        assert_eq!(rights("alice", &["dev"], 0o770), [yes, yes, yes]);
        assert_eq!(rights("dave", &[], 0o074), [yes, no, no]);
        // A named user gets that entry's rights, whatever groups have.
        assert_eq!(rights("bob", &["ops"], 0o070), [yes, yes, no]);
        assert_eq!(rights("carol", &["staff", "dev", "ops"], 0o077), [no, no, no]);
        // Any matching group can grant; a member of one does not count as others.
        assert_eq!(rights("dave", &["staff"], 0o077), [yes, no, no]);
        assert_eq!(rights("dave", &["dev", "ops"], 0o074), [no, yes, yes]);
        assert_eq!(rights("dave", &["dev", "staff"], 0o070), [yes, yes, no]);
        // One group has to grant all requested rights at once, as in the kernel.
        let together = [AccessRight::Write, AccessRight::Search];
        let may = |groups: &[&str]| member("dave", Role::User, groups).needs_all(together, &with(0o070), "");
        assert!(may(&["dev", "ops"]).is_err());
        assert!(
            member("bob", Role::User, &[])
                .needs_all([AccessRight::Read, AccessRight::Write], &with(0o070), "")
                .is_ok()
        );
        // The mask is the group bits of the mode.
        assert_eq!(rights("bob", &[], 0o040), [yes, no, no]);
        assert_eq!(rights("dave", &["dev", "ops"], 0o047), [no, no, no]);
    }

    #[test]
    fn group_bits_without_group_grant_nothing() {
        let file = Inode { group: None, ..inode("alice", 0o070) };
        assert!(member("bob", Role::User, &["staff"]).needs(AccessRight::Read, &file, "").is_err());
    }

    #[test]
    fn hard_link_to_foreign_file_needs_read_write() {
        let file = |mode, kind| Inode { kind, ..inode("alice", mode) };
        let links = |name: &str, file: &Inode| principal(name, name == "root").needs_link(file, "").is_ok();
        for (mode, kind, expected) in [
            (0o666, FileKind::File, true),
            (0o664, FileKind::File, false),
            (0o662, FileKind::File, false),
            (0o600, FileKind::File, false),
            (0o4666, FileKind::File, false),
            (0o2676, FileKind::File, false),
            // Without the group's execute bit the set-group-id bit has no effect.
            (0o2666, FileKind::File, true),
            (0o777, FileKind::Symlink, false),
            (0o666, FileKind::Fifo, false),
        ] {
            let file = file(mode, kind);
            assert_eq!(links("bob", &file), expected, "{mode:o} {kind:?}");
            assert!(links("alice", &file) && links("root", &file), "{mode:o} {kind:?}");
        }
    }

    #[test]
    fn sticky_directory_protects_entries_of_others() {
        let directory = inode("root", 0o1777);
        let entry = inode("alice", 0o777);
        assert!(principal("alice", false).needs_removal(&directory, &entry, "").is_ok());
        assert!(principal("root", false).needs_removal(&directory, &entry, "").is_ok());
        assert!(principal("bob", false).needs_removal(&directory, &entry, "").is_err());
        assert!(principal("bob", true).needs_removal(&directory, &entry, "").is_ok());
        assert!(principal("bob", false).needs_removal(&inode("root", 0o777), &entry, "").is_ok());
    }
}
