//! Files and directories addressed by inode number: the types of the requests 0060 to 0078.
//!
//! Does: define and encode the types.
//! Does not: decide anything.
//! Contract: an inode number alone gives no access. The proof beside it shows that this user found
//! the node by a lookup in a directory.
//! Truth: docs/standards/mds/nodes.md §5.8.

use alloc::vec::Vec;

use crate::layout::Layout;
use crate::name::{GroupName, UserName};
use crate::records::{FileKind, Grant, InodeId, Stat};
use crate::wire::{Wire, WireError, WireReader, WireWriter, code, record};

/// Length of the proof beside an inode number.
pub const NODE_PROOF_BYTES: usize = 8;
/// Maximum length of a symbolic link's target.
pub const TARGET_MAX: usize = 4095;
/// Maximum number of hard links of a file.
pub const LINKS_MAX: u32 = 65_000;
/// Maximum number of symbolic links followed in one path.
pub const FOLLOW_MAX: usize = 40;
/// Maximum length of the name of an extended attribute.
pub const XATTR_NAME_MAX: usize = 255;
/// Maximum length of the value of an extended attribute; it must fit into a message and a record.
pub const XATTR_VALUE_MAX: usize = 60 * 1024;
/// Maximum number of extended attributes of a node.
pub const XATTRS_MAX: u16 = 128;
/// Maximum total length of a node's extended attributes, names and values.
pub const XATTR_BYTES_MAX: u32 = 256 * 1024;
/// Number of slots of a client: requests of it that may be in flight at once.
pub const SLOTS_MAX: u16 = 64;
/// Maximum number of recalls in one answer.
pub const RECALLS_MAX: usize = 1024;
/// Offset of a lock that means the end of the file, wherever it is.
pub const LOCK_TO_END: u64 = u64::MAX;

record! {
    /// An inode number with the proof that a directory led this user to it. The root needs no
    /// proof.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Node {
        pub inode: InodeId,
        /// The proof from a [`Stat`]; valid for its user only, as long as the node exists.
        pub proof: [u8; NODE_PROOF_BYTES],
    }
}

impl Node {
    /// The root directory.
    pub const ROOT: Self = Self { inode: InodeId(1), proof: [0; NODE_PROOF_BYTES] };
}

record! {
    /// A client: one mount or program. It chooses the number at random when it starts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct ClientId {
        pub number: u64,
    }
}

record! {
    /// Identifies an exactly-once request of a client. A request that reuses a slot has a higher
    /// sequence number; the server stores the last answer of each slot.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RequestId {
        /// The client that sent the request.
        pub client_id: ClientId,
        /// Slot, below [`SLOTS_MAX`].
        pub slot: u16,
        /// Sequence number; no two requests of a client have the same.
        pub sequence: u64,
    }
}

macro_rules! byte_string {
    ($(#[$meta:meta])* $name:ident, $what:literal, $min:literal, $max:expr, $plain:literal) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Vec<u8>);

        impl $name {
            /// Returns the bytes as this type if they are valid.
            ///
            /// # Errors
            /// `TooLong`, `Malformed`.
            pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, WireError> {
                let bytes = bytes.into();
                if bytes.len() > $max {
                    return Err(WireError::TooLong { limit: $max });
                }
                let short = $min && bytes.is_empty();
                if short || ($plain && bytes.contains(&0)) {
                    return Err(WireError::Malformed($what));
                }
                Ok(Self(bytes))
            }

            /// Returns the bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl Wire for $name {
            fn put(&self, out: &mut WireWriter) {
                out.lv16(&self.0);
            }
            fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
                Self::new(input.lv16($max)?)
            }
        }
    };
}

byte_string! {
    /// Target of a symbolic link: 1 to [`TARGET_MAX`] bytes, any but NUL, stored as received.
    LinkTarget, "target", true, TARGET_MAX, true
}
byte_string! {
    /// Name of an extended attribute: 1 to [`XATTR_NAME_MAX`] bytes, any but NUL. The part before
    /// the first dot is its namespace.
    XattrName, "attribute name", true, XATTR_NAME_MAX, true
}
byte_string! {
    /// Value of an extended attribute: up to [`XATTR_VALUE_MAX`] bytes.
    XattrValue, "attribute value", false, XATTR_VALUE_MAX, false
}

/// Kind of a node to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// An empty file; it has no objects before Allocate.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink(LinkTarget),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device of this number (administrators).
    CharDevice(u32),
    /// A block device of this number (administrators).
    BlockDevice(u32),
}

impl NodeKind {
    /// Returns the file kind.
    #[must_use]
    pub const fn kind(&self) -> FileKind {
        match self {
            Self::File => FileKind::File,
            Self::Directory => FileKind::Directory,
            Self::Symlink(_) => FileKind::Symlink,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
            Self::CharDevice(_) => FileKind::CharDevice,
            Self::BlockDevice(_) => FileKind::BlockDevice,
        }
    }
}

impl Wire for NodeKind {
    fn put(&self, out: &mut WireWriter) {
        self.kind().put(out);
        match self {
            Self::Symlink(target) => target.put(out),
            Self::CharDevice(number) | Self::BlockDevice(number) => number.put(out),
            Self::File | Self::Directory | Self::Fifo | Self::Socket => {}
        }
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(match FileKind::get(input)? {
            FileKind::File => Self::File,
            FileKind::Directory => Self::Directory,
            FileKind::Symlink => Self::Symlink(LinkTarget::get(input)?),
            FileKind::Fifo => Self::Fifo,
            FileKind::Socket => Self::Socket,
            FileKind::CharDevice => Self::CharDevice(u32::get(input)?),
            FileKind::BlockDevice => Self::BlockDevice(u32::get(input)?),
        })
    }
}

code! {
    /// How a rename treats an existing new name.
    pub enum RenameMode: u8 as "rename mode" {
        /// Replaces the node that has it.
        Replace = 1,
        /// Fails if the new name exists.
        NoReplace = 2,
        /// Exchanges the two nodes; both must exist.
        Exchange = 3,
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's clock; allowed with write access.
    Now,
    /// Nanoseconds since 1970; owners only.
    At(i64),
}

impl Wire for SetTime {
    fn put(&self, out: &mut WireWriter) {
        match self {
            Self::Now => 1u8.put(out),
            Self::At(ns) => {
                2u8.put(out);
                ns.put(out);
            }
        }
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::get(input)? {
            1 => Ok(Self::Now),
            2 => Ok(Self::At(i64::get(input)?)),
            code => Err(WireError::UnknownCode { what: "time", code: u32::from(code) }),
        }
    }
}

record! {
    /// The attributes that SetNode changes; `None` leaves one unchanged. All are changed, or none.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct NodeChange {
        /// Permission bits, 12 low bits as in POSIX.
        pub mode: Option<u16>,
        /// Name of the owner.
        pub owner: Option<UserName>,
        /// Group, or no group.
        pub group: Option<Option<GroupName>>,
        /// Size of a file in bytes. Truncated bytes are never readable again; added bytes read as
        /// zeros.
        pub size: Option<u64>,
        /// Time of the last read.
        pub atime: Option<SetTime>,
        /// Time of the last change of content.
        pub mtime: Option<SetTime>,
    }
}

record! {
    /// An open file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct OpenedNode {
        pub stat: Stat,
        /// Layout; `None` before the first Allocate: then the file is all zeros.
        pub layout: Option<Layout>,
        /// One credential per object of the layout, in its order.
        pub grants: Vec<Grant>,
        /// Whether all objects exist on their devices. Until then, credentials for update may
        /// create them, and a missing one of a sparse file reads as zeros; later a missing one is
        /// lost.
        pub made: bool,
        /// Whether the file was written in place: then missing bytes at the end of an object read
        /// as zeros.
        pub sparse: bool,
        /// The open state expires then without another request of the client, milliseconds since
        /// 1970 of the server's clock.
        pub held_until_ms: u64,
        /// A lease that was granted without a request.
        pub lease: Option<NodeLease>,
    }
}

code! {
    /// Kind of a lease: the data that the client may cache.
    pub enum LeaseKind: u8 as "lease kind" {
        /// Shared: attributes and bytes that were read stay valid.
        Read = 1,
        /// Exclusive: the client may also keep dirty data.
        Write = 2,
    }
}

record! {
    /// A lease on a node. It lasts until it is recalled and returned, also after the file is
    /// closed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct NodeLease {
        pub kind: LeaseKind,
        /// Its number, as in recalls. No two leases of a server have the same.
        pub number: u64,
        /// Epoch of the client. The lease is valid only while the answers to Recalls have this
        /// epoch.
        pub epoch: u64,
    }
}

record! {
    /// A lease to return.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Recall {
        pub inode: InodeId,
        /// Number of the lease. A client that does not know it yet returns it when the answer with
        /// the lease arrives.
        pub number: u64,
    }
}

code! {
    /// How an extended attribute is set.
    pub enum XattrMode: u8 as "attribute mode" {
        /// Creates or replaces it.
        Set = 1,
        /// Fails if it exists.
        Create = 2,
        /// Fails if it does not exist.
        Replace = 3,
    }
}

code! {
    /// Kind of a lock.
    pub enum LockKind: u8 as "lock kind" {
        /// A shared lock.
        Read = 1,
        /// An exclusive lock.
        Write = 2,
        /// Removes the owner's locks in the range.
        Unlock = 3,
    }
}

record! {
    /// An advisory lock.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Lock {
        pub kind: LockKind,
        /// Whether it is on the whole file, independent of ranges, as flock(2) does; start and end
        /// are then 0 and [`LOCK_TO_END`].
        pub whole: bool,
        /// First byte.
        pub start: u64,
        /// End of the range, exclusive; [`LOCK_TO_END`] includes bytes appended later.
        pub end: u64,
        /// Lock owner within the client.
        pub owner: u64,
        /// Process id of the owner, for callers that test the lock.
        pub pid: u32,
    }
}
