//! Who may do what to a file or directory.
//!
//! Does: owner and others, the sticky bit, administrators. Does not: groups; there are none yet.
//! Truth: POSIX.1-2017 4.5 and 4.3 with an empty group class; docs/standards/mds.md §5.3.

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{ErrorCode, UserName};

use crate::error::{MdsError, Result};
use crate::records::Inode;

/// Permission bits that are kept.
pub const MODE_MASK: u16 = 0o7777;
/// Entries of a directory with this bit may be removed by their owner and the directory's owner only.
pub const STICKY: u16 = 0o1000;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Account.
    pub user: UserName,
    /// May do anything.
    pub admin: bool,
    /// Session it asks in.
    pub session: SessionId,
}

/// One of the three rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Read = 4,
    Write = 2,
    Pass = 1,
}

impl Principal {
    /// Needs a right to something.
    pub(crate) fn needs(&self, right: Right, inode: &Inode, subject: &str) -> Result<()> {
        let shift = if inode.owner == self.user { 6 } else { 0 };
        if self.admin || (inode.mode >> shift) & right as u16 != 0 {
            Ok(())
        } else {
            Err(MdsError::refused(ErrorCode::Denied, subject))
        }
    }

    /// Needs to add or remove entries of a directory.
    pub(crate) fn needs_entries(&self, directory: &Inode, subject: &str) -> Result<()> {
        self.needs(Right::Write, directory, subject)?;
        self.needs(Right::Pass, directory, subject)
    }

    /// Needs to take this entry away from its directory.
    pub(crate) fn needs_removal(&self, directory: &Inode, entry: &Inode, subject: &str) -> Result<()> {
        self.needs_entries(directory, subject)?;
        if directory.mode & STICKY == 0
            || entry.owner == self.user
            || directory.owner == self.user
            || self.admin
        {
            Ok(())
        } else {
            Err(MdsError::refused(ErrorCode::Denied, subject))
        }
    }

    /// Needs to own something.
    pub(crate) fn needs_ownership(&self, inode: &Inode, subject: &str) -> Result<()> {
        if self.admin || inode.owner == self.user {
            Ok(())
        } else {
            Err(MdsError::refused(ErrorCode::Denied, subject))
        }
    }

    /// Needs to be an administrator.
    pub(crate) fn needs_admin(&self) -> Result<()> {
        if self.admin { Ok(()) } else { Err(MdsError::refused(ErrorCode::Denied, "administrators only")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealstone_mds_protocol::{FileKind, InodeId};

    fn principal(name: &str, admin: bool) -> Principal {
        Principal { user: UserName::new(name).unwrap(), admin, session: [0; 16] }
    }

    fn inode(owner: &str, mode: u16) -> Inode {
        Inode {
            kind: FileKind::Directory,
            mode,
            owner: UserName::new(owner).unwrap(),
            size: 0,
            version: 0,
            mtime_ms: 0,
            ctime_ms: 0,
            created_ms: 0,
            parent: InodeId(1),
            layout: None,
            checksum: None,
            create_grants_until_ms: 0,
        }
    }

    #[test]
    fn every_mode_grants_exactly_what_its_bits_say() {
        for mode in 0..=0o777 {
            let file = inode("alice", mode);
            for (who, shift) in [("alice", 6), ("bob", 0)] {
                for right in [Right::Read, Right::Write, Right::Pass] {
                    let expected = (mode >> shift) & right as u16 != 0;
                    assert_eq!(
                        principal(who, false).needs(right, &file, "").is_ok(),
                        expected,
                        "{mode:o} {who} {right:?}"
                    );
                    assert!(principal(who, true).needs(right, &file, "").is_ok());
                }
            }
        }
    }

    #[test]
    fn in_a_sticky_directory_others_keep_their_hands_off() {
        let directory = inode("root", 0o1777);
        let entry = inode("alice", 0o777);
        assert!(principal("alice", false).needs_removal(&directory, &entry, "").is_ok());
        assert!(principal("root", false).needs_removal(&directory, &entry, "").is_ok());
        assert!(principal("bob", false).needs_removal(&directory, &entry, "").is_err());
        assert!(principal("bob", true).needs_removal(&directory, &entry, "").is_ok());
        assert!(principal("bob", false).needs_removal(&inode("root", 0o777), &entry, "").is_ok());
    }
}
