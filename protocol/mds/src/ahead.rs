//! Names that a holder changes before the server hears of it: the nouns of the requests 0079 and 007A.
//!
//! Does: say what was done, where, and under which lease. Does not: decide whether it may be.
//! Contract: the changes of a holder are sent in the order in which they were made; each names what it found, so that one that
//! would be about something else is refused.
//! Truth: docs/standards/mds/leases.md §5.11; docs/adr/0050-directory-write-delegations.md.

use alloc::vec::Vec;

use crate::name::{GroupName, Name, UserName};
use crate::nodes::{NODE_PROOF_BYTES, NodeKind, NodeLease};
use crate::records::{FileKind, InodeId};
use crate::wire::{Wire, WireError, WireReader, WireWriter, record};

/// Numbers of nodes that are reserved by one request at most.
pub const RESERVED_INODES_MAX: u16 = 1_024;
/// Changes of names in one request at most.
pub const NAME_CHANGES_MAX: usize = 512;

record! {
    /// Numbers that nobody else gives to a node, one after the other.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct InodeRange {
        /// The first of them.
        pub first: InodeId,
        /// The proofs of all of them, in their order, good for the user who asked.
        pub proofs: Vec<[u8; NODE_PROOF_BYTES]>,
    }
}

record! {
    /// A directory in which its holder is ahead.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct DirLeaseId {
        /// Its number.
        pub inode: InodeId,
        /// The era of the lease.
        pub epoch: u64,
        /// The lease to write under which the change was made.
        pub lease: u64,
    }
}

record! {
    /// A node was made.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CreateOp {
        /// In which directory.
        pub directory: DirLeaseId,
        /// Its name.
        pub name: Name,
        /// Its number, one of those that were reserved, and higher than those before it.
        pub inode: InodeId,
        /// What: no directory, and no device.
        pub what: NodeKind,
        /// Permission bits.
        pub mode: u16,
        /// Permission bits that it shall not have.
        pub umask: u16,
        /// Whose it is, if not the asker's (administrators).
        pub owner: Option<UserName>,
        /// Its group, as for MakeNode.
        pub group: Option<GroupName>,
        /// When, milliseconds since 1970; not before the lease was given, and not after the server's clock.
        pub at_ms: u64,
        /// A file is held open for update.
        pub held: bool,
    }
}

record! {
    /// A name was taken away, of anything but a directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct UnlinkOp {
        /// In which directory.
        pub directory: DirLeaseId,
        /// The name.
        pub name: Name,
        /// What it led to.
        pub inode: InodeId,
        /// When, as above.
        pub at_ms: u64,
        /// The holder has let go of it, and of its lease.
        pub close: bool,
    }
}

record! {
    /// Something that is no directory was given another place; what no directory had it is gone.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RenameOp {
        /// From which directory.
        pub from_directory: DirLeaseId,
        /// The old name.
        pub from: Name,
        /// What it led to.
        pub inode: InodeId,
        /// To which directory.
        pub to_directory: DirLeaseId,
        /// The new name.
        pub to: Name,
        /// What had it, if anything.
        pub replaced: Option<InodeId>,
        /// When, as above.
        pub at_ms: u64,
        /// The holder has let go of what had it, and of its lease.
        pub close: bool,
    }
}

/// What was done to names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameChange {
    /// A node was made.
    Create(CreateOp),
    /// A name was taken away.
    Unlink(UnlinkOp),
    /// A name was changed.
    Rename(RenameOp),
    /// A file that was held open is let go of, and of its lease: CloseNode among the changes, so that it comes after them.
    Close(InodeId),
}

impl NameChange {
    /// The directories that it is about.
    pub fn directories(&self) -> impl Iterator<Item = DirLeaseId> {
        let (first, second) = match self {
            Self::Create(made) => (Some(made.directory), None),
            Self::Unlink(removed) => (Some(removed.directory), None),
            Self::Rename(renamed) => (Some(renamed.from_directory), Some(renamed.to_directory)),
            Self::Close(_) => (None, None),
        };
        first.into_iter().chain(second.filter(|second| Some(*second) != first))
    }

    /// The nodes that it is about, directories aside.
    pub fn nodes(&self) -> impl Iterator<Item = InodeId> {
        let (first, second) = match self {
            Self::Create(made) => (made.inode, None),
            Self::Unlink(removed) => (removed.inode, None),
            Self::Rename(renamed) => (renamed.inode, renamed.replaced),
            Self::Close(inode) => (*inode, None),
        };
        core::iter::once(first).chain(second)
    }

    /// What the holder let go of before he took its name away.
    #[must_use]
    pub const fn closed_inode(&self) -> Option<InodeId> {
        match self {
            Self::Unlink(UnlinkOp { inode, close: true, .. }) => Some(*inode),
            Self::Rename(RenameOp { replaced, close: true, .. }) => *replaced,
            _ => None,
        }
    }
}

impl Wire for NameChange {
    fn put(&self, out: &mut WireWriter) {
        match self {
            Self::Create(made) => {
                1u8.put(out);
                made.put(out);
            }
            Self::Unlink(removed) => {
                2u8.put(out);
                removed.put(out);
            }
            Self::Rename(renamed) => {
                3u8.put(out);
                renamed.put(out);
            }
            Self::Close(inode) => {
                4u8.put(out);
                inode.put(out);
            }
        }
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(match u8::get(input)? {
            1 => {
                let made = CreateOp::get(input)?;
                let refused = [FileKind::Directory, FileKind::CharDevice, FileKind::BlockDevice];
                if refused.contains(&made.what.kind()) {
                    return Err(WireError::Malformed("a node that is not made ahead"));
                }
                Self::Create(made)
            }
            2 => Self::Unlink(UnlinkOp::get(input)?),
            3 => Self::Rename(RenameOp::get(input)?),
            4 => Self::Close(InodeId::get(input)?),
            code => return Err(WireError::UnknownCode { what: "change of names", code: u32::from(code) }),
        })
    }
}

record! {
    /// A lease on a file that was made ahead.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InodeLease {
        /// Which file.
        pub inode: InodeId,
        /// To write.
        pub lease: NodeLease,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there() -> DirLeaseId {
        DirLeaseId { inode: InodeId(4), epoch: 5, lease: 6 }
    }

    fn made(what: NodeKind) -> NameChange {
        NameChange::Create(CreateOp {
            directory: there(),
            name: Name::new("x").unwrap(),
            inode: InodeId(9),
            what,
            mode: 0o644,
            umask: 0o22,
            owner: None,
            group: None,
            at_ms: 7,
            held: true,
        })
    }

    fn bytes(change: &NameChange) -> Vec<u8> {
        let mut out = WireWriter::new();
        change.put(&mut out);
        out.finish(usize::from(u16::MAX)).unwrap()
    }

    #[test]
    fn directories_and_devices_are_not_made_ahead() {
        for what in [NodeKind::Directory, NodeKind::CharDevice(1), NodeKind::BlockDevice(2)] {
            assert!(NameChange::get(&mut WireReader::new(&bytes(&made(what)))).is_err());
        }
        for what in [NodeKind::File, NodeKind::Fifo, NodeKind::Socket] {
            let change = made(what);
            assert_eq!(NameChange::get(&mut WireReader::new(&bytes(&change))), Ok(change));
        }
    }
}
