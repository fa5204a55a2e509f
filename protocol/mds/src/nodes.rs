//! Files and directories addressed by number: what a mount asks with.
//!
//! Does: the nouns of the requests 0060 to 0078. Does not: decide anything.
//! Contract: a node's number alone opens nothing: the proof that comes with it shows that its user was led to it.
//! Truth: docs/standards/mds/nodes.md §5.8.

use alloc::vec::Vec;

use crate::layout::Layout;
use crate::name::{GroupName, UserName};
use crate::records::{FileKind, Grant, InodeId, Stat};
use crate::wire::{Wire, WireError, WireReader, WireWriter, code, record};

/// Bytes of the proof beside a node's number.
pub const NODE_PROOF_BYTES: usize = 8;
/// Bytes of a symbolic link's target at most.
pub const TARGET_MAX: usize = 4095;
/// Names of one file at most.
pub const LINKS_MAX: u32 = 65_000;
/// Symbolic links followed on the way of one path at most.
pub const FOLLOW_MAX: usize = 40;
/// Bytes of the name of an extended attribute at most.
pub const XATTR_NAME_MAX: usize = 255;
/// Bytes of the value of an extended attribute at most: what a message and a record have room for.
pub const XATTR_VALUE_MAX: usize = 60 * 1024;
/// Extended attributes of one node at most.
pub const XATTRS_MAX: u16 = 128;
/// Bytes of all extended attributes of a node at most, names and values.
pub const XATTR_BYTES_MAX: u32 = 256 * 1024;
/// Changes of a holder that may be under way at once.
pub const SLOTS_MAX: u16 = 64;
/// Leases that one answer recalls at most.
pub const RECALLS_MAX: usize = 1024;
/// An offset in a lock that means "to the end, however far it moves".
pub const LOCK_TO_END: u64 = u64::MAX;

record! {
    /// A file or directory by number, with the proof that the server led this user to it. The root needs no proof.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Node {
        /// Its number.
        pub inode: InodeId,
        /// As it came with the number in a [`Stat`]; good for its user alone, for as long as the node lives.
        pub proof: [u8; NODE_PROOF_BYTES],
    }
}

impl Node {
    /// The root directory, where everybody begins.
    pub const ROOT: Self = Self { inode: InodeId(1), proof: [0; NODE_PROOF_BYTES] };
}

record! {
    /// Somebody who holds files open: one mount, one program. Chosen at random by the client, once in its life.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct ClientId {
        /// The number.
        pub number: u64,
    }
}

record! {
    /// One of the changes that a holder asks for. What takes a place has a higher number than what had it before, and
    /// what had it is over: a server remembers the last one of each place.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RequestId {
        /// Whose.
        pub client_id: ClientId,
        /// The slot, below [`SLOTS_MAX`].
        pub slot: u16,
        /// The sequence number; no two requests of a client have the same.
        pub sequence: u64,
    }
}

macro_rules! byte_string {
    ($(#[$meta:meta])* $name:ident, $what:literal, $min:literal, $max:expr, $plain:literal) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Vec<u8>);

        impl $name {
            /// Checks the bytes.
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

            /// The bytes.
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
    /// Where a symbolic link leads: 1 to [`TARGET_MAX`] bytes, any but NUL, kept as they came.
    LinkTarget, "target", true, TARGET_MAX, true
}
byte_string! {
    /// Name of an extended attribute: 1 to [`XATTR_NAME_MAX`] bytes, any but NUL; what is before the first dot is its
    /// namespace.
    XattrName, "attribute name", true, XATTR_NAME_MAX, true
}
byte_string! {
    /// Value of an extended attribute: up to [`XATTR_VALUE_MAX`] bytes.
    XattrValue, "attribute value", false, XATTR_VALUE_MAX, false
}

/// What is to be made.
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
    /// The kind that a stat of it shows.
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
    /// What a rename does about the new name.
    pub enum RenameMode: u8 as "rename mode" {
        /// Takes the place of what has it.
        Replace = 1,
        /// Refused if anything has it.
        NoReplace = 2,
        /// The two change places; both must be there.
        Exchange = 3,
    }
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's clock: whoever may write may set it.
    Now,
    /// Nanoseconds since 1970: owners only.
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
    /// What SetNode changes; what is none stays. All of it is done, or nothing.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct NodeChange {
        /// Permission bits, 12 low bits as in POSIX.
        pub mode: Option<u16>,
        /// Owner.
        pub owner: Option<UserName>,
        /// Group, or no group.
        pub group: Option<Option<GroupName>>,
        /// Size of a file, bytes. What is cut off never comes back; what is added reads as zeros.
        pub size: Option<u64>,
        /// Last read.
        pub atime: Option<SetTime>,
        /// Last change of content.
        pub mtime: Option<SetTime>,
    }
}

record! {
    /// A file that is held open.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct OpenedNode {
        /// What it is.
        pub stat: Stat,
        /// Where its bytes are; none before the first Allocate: then all of it is zeros.
        pub layout: Option<Layout>,
        /// One per object of the layout, in its order.
        pub grants: Vec<Grant>,
        /// Are all objects on their devices? Before that grants for update may make them, and one that is missing reads as
        /// zeros if the file is sparse; after it one that is missing is lost.
        pub made: bool,
        /// Were its bytes written in place? Then what is missing at the end of an object reads as zeros.
        pub sparse: bool,
        /// The hold ends then unless the holder is heard of, milliseconds since 1970 of the server's clock.
        pub held_until_ms: u64,
        /// A lease, given unasked.
        pub lease: Option<NodeLease>,
    }
}

code! {
    /// What a lease lets its holder believe.
    pub enum LeaseKind: u8 as "lease kind" {
        /// Nobody changes the file: what was read of it, and its attributes, are still so.
        Read = 1,
        /// Nobody reads or writes it: also what is written and not sent yet.
        Write = 2,
    }
}

record! {
    /// A lease on a file: it lasts until it is recalled and given back, also when the file is closed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct NodeLease {
        /// What for.
        pub kind: LeaseKind,
        /// Its number: a recall names it. No two leases of a server have the same.
        pub number: u64,
        /// The era of its holder; it is not believed in unless the answer to Recalls says that this is the era.
        pub epoch: u64,
    }
}

record! {
    /// A lease that is to be given back.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Recall {
        /// On which file.
        pub inode: InodeId,
        /// Which one. Who does not know it yet was overtaken, and gives it back when he is told of it.
        pub number: u64,
    }
}

code! {
    /// How an attribute is set.
    pub enum XattrMode: u8 as "attribute mode" {
        /// Whether it is there or not.
        Set = 1,
        /// It must not be there.
        Create = 2,
        /// It must be there.
        Replace = 3,
    }
}

code! {
    /// What kind of lock.
    pub enum LockKind: u8 as "lock kind" {
        /// Shared.
        Read = 1,
        /// Exclusive.
        Write = 2,
        /// None: what there is of the owner's in the range goes.
        Unlock = 3,
    }
}

record! {
    /// An advisory lock.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Lock {
        /// Shared, exclusive, none.
        pub kind: LockKind,
        /// On the whole file and apart from ranges, as flock does; start and end are then 0 and [`LOCK_TO_END`].
        pub whole: bool,
        /// First byte.
        pub start: u64,
        /// The byte after the last one; [`LOCK_TO_END`] for all that may come.
        pub end: u64,
        /// Who among the programs of the holder.
        pub owner: u64,
        /// Its process, to be told to those who ask.
        pub pid: u32,
    }
}
