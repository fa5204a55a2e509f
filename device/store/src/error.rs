//! Errors of the store: of operations on an open store, and of formatting or opening one. One
//! variant for each thing that a caller can do about it.

use std::io;

use sealstone_osd::{ObjectId, ObjectType};
use thiserror::Error;

/// Why an operation on an open store was refused or failed. A failed operation changes nothing.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// `create`: the id is in use.
    #[error("object {0} exists")]
    Exists(ObjectId),
    /// No object has this id.
    #[error("object {0} not found")]
    NotFound(ObjectId),
    /// `remove`: the collection still has members; remove them from it first.
    #[error("collection {0} has members")]
    HasMembers(ObjectId),
    /// The operation would use more than the capacity. Reads, removals and overwrites still work.
    #[error("no space left in the store")]
    NoSpace,
    /// A length, offset or count is above a limit of the store; nothing was changed.
    #[error("{what} is above the limit of {limit}")]
    TooLarge {
        /// The quantity that is too large, e.g. "object length".
        what: &'static str,
        /// The limit, in the unit of `what`.
        limit: u64,
    },
    /// The medium returned other bytes than were written. Writing the whole range again repairs it.
    #[error("object {object}: {length} bytes at {offset} are damaged on the medium")]
    Damaged {
        /// The object.
        object: ObjectId,
        /// First byte of the damaged block.
        offset: u64,
        /// Length of the damaged range in bytes, up to the end of the object.
        length: u64,
    },
    /// An index record fails its checksum: it cannot be read, or only in part.
    #[error("object {object}: its index record is damaged")]
    IndexDamaged {
        /// The object whose record is damaged.
        object: ObjectId,
    },
    /// `list`, `collections`: a page of the index is lost, and objects with ids from `from` to `to`
    /// may be on it. `before` has the list up to there; to list the rest, continue after `to`.
    #[error("objects from {from} to {to} may be lost and cannot be listed")]
    ListGap {
        /// The part of the list before the gap.
        before: Vec<(ObjectId, ObjectType)>,
        /// First id that may be lost.
        from: ObjectId,
        /// Last id that may be lost.
        to: ObjectId,
    },
    /// A flush, a commit or the index failed before, or the index was found damaged at open.
    /// Nothing is written until the store is opened again; reads still work.
    #[error("the store refuses writes after a failure; open it again")]
    Poisoned,
    /// `flush` inside a [`GroupScope`](crate::GroupScope) of the same thread: it would wait for
    /// itself.
    #[error("flush inside an open scope")]
    ScopeOpen,
    /// The medium failed. After a failed flush the store is also poisoned.
    #[error("medium: {doing}")]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The medium's error.
        #[source]
        source: io::Error,
    },
    /// The index engine failed. The store is poisoned if this was a commit.
    #[error("index: {doing}")]
    Index {
        /// The operation that failed.
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
    /// No store was found: format one first.
    #[error("no store in this folder")]
    NotFormatted,
    /// `format`: a store exists already, and `overwrite` was not set.
    #[error("a store exists here already")]
    AlreadyFormatted,
    /// A format was interrupted. No write was ever acknowledged: format again.
    #[error("a format was interrupted; format again")]
    FormatIncomplete,
    /// Written by another version of the format.
    #[error(
        "store format version {found}; this program knows versions up to {supported}: use a newer program"
    )]
    Version {
        /// The version in the superblock.
        found: u32,
        /// The newest version that this program reads; it upgrades older ones.
        supported: u32,
    },
    /// The changes in the write log could not be committed.
    #[error("the write log could not be replayed")]
    Replay {
        /// The cause.
        #[source]
        source: Box<StoreError>,
    },
    /// The superblock is not one of ours, or fails its checksum.
    #[error("the superblock is damaged: {0}")]
    Superblock(&'static str),
    /// The requested capacity is outside the limits.
    #[error("capacity {bytes} bytes is outside {min}..={max}")]
    Capacity {
        /// Requested bytes.
        bytes: u64,
        /// Smallest capacity in bytes.
        min: u64,
        /// Largest capacity in bytes.
        max: u64,
    },
    /// A file of the store is missing.
    #[error("file {name} of the store is missing")]
    Missing {
        /// File name on the medium.
        name: String,
    },
    /// A segment file is shorter than the superblock says.
    #[error("file {name} of the store has {found} bytes, expected {expected}")]
    Truncated {
        /// File name on the medium.
        name: String,
        /// Bytes found.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// The index belongs to another store (its uuid differs from the superblock's).
    #[error("the index belongs to another store")]
    Foreign,
    /// No record of the index can be read, so that no object can be found. The data files are
    /// unchanged.
    #[error("the index is damaged at its root: no object can be found")]
    IndexLost,
    /// Another process has this store open, or the device is mounted.
    #[error("the store is in use by another process")]
    InUse,
    /// The path of a device leads to neither a block device nor a regular file.
    #[error("neither a block device nor a regular file")]
    NotADevice,
    /// The device's sectors cannot hold a store's blocks.
    #[error("the device has sectors of {bytes} bytes; a store needs a power of two from 512 to 4096")]
    Sectors {
        /// Length of its logical sector in bytes.
        bytes: u32,
    },
    /// The device is too small for a store.
    #[error("the device has {bytes} bytes; a store needs {min}")]
    DeviceTooSmall {
        /// Its length in bytes.
        bytes: u64,
        /// Minimum length in bytes.
        min: u64,
    },
    /// The device is shorter than when it was formatted.
    #[error("the device has {found} bytes, and had {expected} when it was formatted")]
    DeviceShrunk {
        /// Its length in bytes.
        found: u64,
        /// Length in bytes in its label.
        expected: u64,
    },
    /// The device to be formatted has other content, and `overwrite` was not set.
    #[error("the device already contains {what}")]
    Occupied {
        /// Its apparent content, e.g. "a GPT partition table".
        what: &'static str,
    },
    /// The device's label or its table of regions is corrupt.
    #[error("the device's label is damaged: {0}")]
    Label(&'static str),
    /// The device's label does not match the folder.
    #[error("the device belongs to another store: its label has another uuid")]
    OtherDevice,
    /// The medium failed.
    #[error("medium: {doing}")]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The medium's error.
        #[source]
        source: io::Error,
    },
    /// The index engine failed.
    #[error("index: {doing}")]
    Index {
        /// The operation that failed.
        doing: &'static str,
        /// The engine's error.
        #[source]
        source: Box<redb::Error>,
    },
}
