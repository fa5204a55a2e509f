//! Batches of name changes that a client made locally under a directory delegation: the types of
//! the requests DelegateDir (0079) and NameBatch (007A).
//!
//! Does: define and encode the changes.
//! Does not: check permissions.
//! Contract: a client sends its changes in the order in which it made them. Each names the inode
//! that it found, so that a change of another node is refused.
//! Truth: docs/standards/mds/leases.md §5.11; docs/adr/0050-directory-write-delegations.md.

use alloc::vec::Vec;

use crate::name::{GroupName, Name, UserName};
use crate::nodes::{NODE_PROOF_BYTES, NodeKind, NodeLease};
use crate::records::{FileKind, InodeId};
use crate::wire::{Wire, WireError, WireReader, WireWriter, record};

/// Maximum number of inode numbers reserved by one request.
pub const RESERVED_INODES_MAX: u16 = 1_024;
/// Maximum number of changes in one request.
pub const NAME_CHANGES_MAX: usize = 512;

record! {
    /// Reserved inode numbers in sequence.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct InodeRange {
        /// The first number.
        pub first: InodeId,
        /// The proofs of the numbers, in order, for the user of the request.
        pub proofs: Vec<[u8; NODE_PROOF_BYTES]>,
    }
}

record! {
    /// A directory delegation: the directory and the lease.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct DirLeaseId {
        /// Inode number of the directory.
        pub inode: InodeId,
        /// Epoch of the lease.
        pub epoch: u64,
        /// Number of the write lease.
        pub lease: u64,
    }
}

record! {
    /// Creation of a node.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CreateOp {
        pub directory: DirLeaseId,
        pub name: Name,
        /// Inode number: a reserved one, higher than those used before.
        pub inode: InodeId,
        /// Kind; not a directory or device.
        pub what: NodeKind,
        /// Permission bits.
        pub mode: u16,
        /// Permission bits to clear.
        pub umask: u16,
        /// Owner, if not the caller (administrators).
        pub owner: Option<UserName>,
        /// Group, as for MakeNode.
        pub group: Option<GroupName>,
        /// Time of the creation, milliseconds since 1970; not before the lease was granted, not
        /// after the server's clock.
        pub at_ms: u64,
        /// Whether the client has the file open for update.
        pub held: bool,
    }
}

record! {
    /// Removal of a name; not of a directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct UnlinkOp {
        pub directory: DirLeaseId,
        pub name: Name,
        /// The node that had the name.
        pub inode: InodeId,
        /// Time, as in [`CreateOp::at_ms`].
        pub at_ms: u64,
        /// Whether the client has closed the file and returned its lease.
        pub close: bool,
    }
}

record! {
    /// Rename of a node that is not a directory; may replace another one that is not a directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RenameOp {
        pub from_directory: DirLeaseId,
        pub from: Name,
        /// The node that had the name.
        pub inode: InodeId,
        pub to_directory: DirLeaseId,
        pub to: Name,
        /// The node that had the new name, if any.
        pub replaced: Option<InodeId>,
        /// Time, as in [`CreateOp::at_ms`].
        pub at_ms: u64,
        /// Whether the client has closed the replaced file and returned its lease.
        pub close: bool,
    }
}

/// A change of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameChange {
    /// Creation of a node.
    Create(CreateOp),
    /// A name was removed.
    Unlink(UnlinkOp),
    /// A node was renamed.
    Rename(RenameOp),
    /// Closes a file and returns its lease: CloseNode in the sequence of changes.
    Close(InodeId),
}

impl NameChange {
    /// Returns the directories that the change concerns.
    pub fn directories(&self) -> impl Iterator<Item = DirLeaseId> {
        let (first, second) = match self {
            Self::Create(made) => (Some(made.directory), None),
            Self::Unlink(removed) => (Some(removed.directory), None),
            Self::Rename(renamed) => (Some(renamed.from_directory), Some(renamed.to_directory)),
            Self::Close(_) => (None, None),
        };
        first.into_iter().chain(second.filter(|second| Some(*second) != first))
    }

    /// Returns the nodes that the change concerns, without directories.
    pub fn nodes(&self) -> impl Iterator<Item = InodeId> {
        let (first, second) = match self {
            Self::Create(made) => (made.inode, None),
            Self::Unlink(removed) => (removed.inode, None),
            Self::Rename(renamed) => (renamed.inode, renamed.replaced),
            Self::Close(inode) => (*inode, None),
        };
        core::iter::once(first).chain(second)
    }

    /// Returns the file that the client closed before the change removed its name.
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
                    return Err(WireError::Malformed("kind of a created node"));
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
    /// A write lease on a file that was created under a directory delegation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InodeLease {
        pub inode: InodeId,
        pub lease: NodeLease,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> DirLeaseId {
        DirLeaseId { inode: InodeId(4), epoch: 5, lease: 6 }
    }

    fn made(what: NodeKind) -> NameChange {
        NameChange::Create(CreateOp {
            directory: directory(),
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
    fn decode_refuses_creates_of_directories_and_devices() {
        for what in [NodeKind::Directory, NodeKind::CharDevice(1), NodeKind::BlockDevice(2)] {
            assert!(NameChange::get(&mut WireReader::new(&bytes(&made(what)))).is_err());
        }
        for what in [NodeKind::File, NodeKind::Fifo, NodeKind::Socket] {
            let change = made(what);
            assert_eq!(NameChange::get(&mut WireReader::new(&bytes(&change))), Ok(change));
        }
    }
}
