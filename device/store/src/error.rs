//! What can go wrong, by what the caller can do about it.

use std::io;

use sealstone_osd::{ObjectId, ObjectType};
use thiserror::Error;

/// Why an operation on an open store was refused or failed. An operation that fails changes nothing.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// `create`: the id is taken.
    #[error("object {0} exists")]
    Exists(ObjectId),
    /// There is no object of this id.
    #[error("object {0} not found")]
    NotFound(ObjectId),
    /// `remove`: the collection still has members; let them leave first.
    #[error("collection {0} has members")]
    HasMembers(ObjectId),
    /// The operation would use more than the capacity. Reads, removals and overwrites still work.
    #[error("no space left in the store")]
    NoSpace,
    /// A length, offset or count is above a limit of the store; nothing was changed.
    #[error("{what} is above the limit of {limit}")]
    TooLarge {
        /// What was too large, e.g. "object length".
        what: &'static str,
        /// The limit, in the unit of `what`.
        limit: u64,
    },
    /// The medium gave back other bytes than were written. Writing the whole range again repairs it.
    #[error("object {object}: {length} bytes at {offset} are damaged on the medium")]
    Damaged {
        /// The object.
        object: ObjectId,
        /// First byte of the damaged block.
        offset: u64,
        /// Length of the damaged piece in bytes, up to the end of the object.
        length: u64,
    },
    /// An index record fails its checksum; it, or a part of it, cannot be read.
    #[error("object {object}: its index record is damaged")]
    IndexDamaged {
        /// The object whose record is damaged.
        object: ObjectId,
    },
    /// `list`, `collections`: a page of the index is lost, and objects with ids from `from` to `to` may be on it. What comes
    /// before is in `before`; what comes after is listed from behind `to` on.
    #[error("objects from {from} to {to} may be lost and cannot be listed")]
    ListGap {
        /// What the list has before the gap.
        before: Vec<(ObjectId, ObjectType)>,
        /// The first id that may be lost.
        from: ObjectId,
        /// The last one.
        to: ObjectId,
    },
    /// A flush, a commit or the index failed before; nothing is written until the store is opened again. Reads
    /// go on. Or the index was found damaged at open: then the store is for reading only.
    #[error("the store refuses writes after a failure; open it again")]
    Poisoned,
    /// `flush` from inside a [`Scope`](crate::Scope) of the same thread: it would wait for itself.
    #[error("flush inside an open scope")]
    ScopeOpen,
    /// The medium failed. After a failed flush the store is also poisoned.
    #[error("medium: {doing}")]
    Io {
        /// What the store was doing.
        doing: &'static str,
        /// The medium's error.
        #[source]
        source: io::Error,
    },
    /// The index engine failed. The store is poisoned if this was a commit.
    #[error("index: {doing}")]
    Index {
        /// What the store was doing.
        doing: &'static str,
        /// The engine's error.
        #[source]
        source: Box<redb::Error>,
    },
}

/// Why a store could not be formatted or opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Nothing here: format it first.
    #[error("no store here")]
    NotFormatted,
    /// `format`: there is a store already, and overwriting it was not asked for.
    #[error("there is a store here already")]
    AlreadyFormatted,
    /// A format was interrupted. No data was ever acknowledged: format again.
    #[error("a format was interrupted; format again")]
    FormatIncomplete,
    /// Written by another version of the format.
    #[error(
        "store format version {found}; this program knows versions up to {supported}: use a newer program"
    )]
    Version {
        /// The version in the superblock.
        found: u32,
        /// The newest version that this program reads; older ones it upgrades.
        supported: u32,
    },
    /// The changes in the write log could not be committed.
    #[error("the write log could not be replayed")]
    Replay {
        /// Why.
        #[source]
        source: Box<StoreError>,
    },
    /// The superblock is not one of ours, or fails its checksum.
    #[error("the superblock is damaged: {0}")]
    Superblock(&'static str),
    /// The capacity asked for is outside the limits.
    #[error("capacity {bytes} bytes is outside {min}..={max}")]
    Capacity {
        /// Bytes asked for.
        bytes: u64,
        /// Smallest capacity in bytes.
        min: u64,
        /// Largest capacity in bytes.
        max: u64,
    },
    /// A file that belongs to the store is not there.
    #[error("file {name} of the store is missing")]
    Missing {
        /// Its name on the medium.
        name: String,
    },
    /// A segment file is shorter than the superblock says.
    #[error("file {name} of the store has {found} bytes, expected {expected}")]
    Truncated {
        /// Its name on the medium.
        name: String,
        /// Bytes found.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// The index belongs to another store (its uuid differs from the superblock's).
    #[error("the index belongs to another store")]
    Foreign,
    /// No record of the index can be read: no object can be found. The data files are untouched.
    #[error("the index is damaged at its root: no object can be found")]
    IndexLost,
    /// Another process has this store open, or the device is mounted.
    #[error("the store is in use by another process")]
    InUse,
    /// The path of a device leads to something that is neither a block device nor a regular file.
    #[error("neither a block device nor a regular file")]
    NotADevice,
    /// The device's sectors cannot hold a store's blocks.
    #[error("the device has sectors of {bytes} bytes; a store needs a power of two from 512 to 4096")]
    Sectors {
        /// Length of its logical sector in bytes.
        bytes: u32,
    },
    /// The device has no room for a store.
    #[error("the device has {bytes} bytes; a store needs {min}")]
    DeviceTooSmall {
        /// Its length in bytes.
        bytes: u64,
        /// The least length in bytes.
        min: u64,
    },
    /// The device is shorter than when it was formatted.
    #[error("the device has {found} bytes, and had {expected} when it was formatted")]
    DeviceShrunk {
        /// Its length in bytes.
        found: u64,
        /// Its length in its label.
        expected: u64,
    },
    /// The device to be formatted carries something, and overwriting it was not asked for.
    #[error("the device carries {what}")]
    Occupied {
        /// What it looks like, e.g. "a GPT partition table".
        what: &'static str,
    },
    /// The device's label or its table of regions is not sound.
    #[error("the device's label is damaged: {0}")]
    Label(&'static str),
    /// The device is labelled, but as another one than the folder's.
    #[error("the device belongs to another store: its label has another uuid")]
    OtherDevice,
    /// The medium failed.
    #[error("medium: {doing}")]
    Io {
        /// What the store was doing.
        doing: &'static str,
        /// The medium's error.
        #[source]
        source: io::Error,
    },
    /// The index engine failed.
    #[error("index: {doing}")]
    Index {
        /// What the store was doing.
        doing: &'static str,
        /// The engine's error.
        #[source]
        source: Box<redb::Error>,
    },
}
