//! The trait of an object store: bytes, attributes and lists of objects, with commit groups,
//! sharing and maps.
//!
//! The OSD device and the block units use it; the disk store and the memory store implement it.

use std::marker::PhantomData;

pub use sealstone_osd::AttributeId;
use sealstone_osd::{ObjectId, ObjectType};

use crate::digests::DigestStore;
use crate::disk::{DiskStore, GroupGuard, PreviousShutdown};
use crate::examine::ObjectExaminer;
use crate::memberships::Memberships;
use crate::{Damage, ObjectComparison, StoreError};

/// Unit of allocation and of checksums, in bytes.
pub const BLOCK: u64 = 4096;
/// Longest object, in bytes (sparse; the capacity limits how much is mapped).
pub const MAX_OBJECT_LENGTH: u64 = 1 << 50;
/// Longest single `write`, in bytes.
pub const MAX_TRANSFER: u64 = 1 << 30;
/// Longest attribute value, in bytes (the attribute list's length field is 16 bits, FFFFh is
/// reserved).
pub const MAX_ATTRIBUTE_LENGTH: usize = 0xFFFE;
/// Maximum of all attributes of one object together, in bytes; each counts 16 bytes more than its
/// value.
pub const MAX_ATTRIBUTES_PER_OBJECT: u64 = 4 << 20;
/// Maximum number of ids that one `list` returns; a larger `max` is reduced to this.
pub const MAX_LIST: usize = 1 << 16;

/// Result of [`ObjectStore::stat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectStat {
    /// The kind passed to `create`.
    pub kind: ObjectType,
    /// Logical length in bytes.
    pub length: u64,
    /// Bytes of its blocks, including shared ones; holes take none.
    pub used_bytes: u64,
}

/// Maximum number of extents that one `map` returns; a larger `max` is reduced to this.
pub const MAX_EXTENTS: usize = 1 << 16;

/// Maximum number of 1 MiB pieces with blocks that one `map` or `compare` visits: it limits the
/// work under the object's lock.
pub const MAP_PIECES_MAX: usize = 512;

/// One extent of an object in a [`map`](ObjectStore::map).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectExtent {
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes, not 0.
    pub length: u64,
    /// Whether it is a hole or data.
    pub kind: ExtentKind,
}

/// Content of an extent of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// No data: it reads as zeros and takes no space.
    Hole,
    /// Blocks with data.
    Data {
        /// Whether other objects refer to the same blocks: they become free only when no object
        /// refers to them.
        shared: bool,
    },
}

/// Appends the range between two offsets, merged with the last extent if it has the same kind.
pub(crate) fn push_extent(map: &mut Vec<ObjectExtent>, from: u64, to: u64, kind: ExtentKind) {
    match map.last_mut() {
        _ if from >= to => {}
        Some(last) if last.kind == kind && last.offset + last.length == from => last.length += to - from,
        _ => map.push(ObjectExtent { offset: from, length: to - from, kind }),
    }
}

/// Result of [`ObjectStore::space`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Capacity in bytes, a multiple of [`BLOCK`].
    pub total: u64,
    /// Bytes of all objects' blocks; blocks that several objects share are counted once.
    pub used: u64,
    /// Bytes that objects can still take now: the rest of the capacity, or less if the underlying
    /// medium has less.
    pub available: u64,
    /// Number of objects of any kind.
    pub objects: u64,
    /// The part of `available` that other programs can take, too; `None` if it is the store's own.
    pub shared: Option<SharedSpace>,
}

/// Space that a store may take of a file system with other users: several stores on one must not
/// each count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedSpace {
    /// Equal for all stores on one file system of a machine, until the machine restarts.
    pub id: [u8; 16],
    /// Bytes that data may take of the file system.
    pub free: u64,
    /// Bytes that objects may take without that.
    pub own: u64,
}

/// Keeps a commit group open: all operations during its life are in one group and in one record of
/// the write log, so that after a crash either all or none of them are present. It does not roll
/// back if a later operation fails.
///
/// Belongs to the thread that began it. Scopes nest. Hold it for one command, never across a
/// `flush`. Its changes survive the death of the process when [`end`](Self::end) has returned.
#[must_use = "the group may close as soon as the scope is dropped"]
pub struct GroupScope<'a> {
    inside: Option<(&'a DiskStore, GroupGuard<'a>)>,
    /// A scope is tied to its thread.
    _thread: PhantomData<*const ()>,
}

impl<'a> GroupScope<'a> {
    /// Returns a scope of a backend that has no groups.
    pub(crate) fn none() -> Self {
        Self { inside: None, _thread: PhantomData }
    }

    /// Returns a scope that keeps a group of the disk store open.
    pub(crate) fn inside(store: &'a DiskStore, inside: GroupGuard<'a>) -> Self {
        Self { inside: Some((store, inside)), _thread: PhantomData }
    }

    /// Ends the scope; returns when its changes survive the death of the process. Does not wait if
    /// another scope of this thread encloses it.
    ///
    /// # Errors
    /// If that required a commit, and the commit failed.
    pub fn end(mut self) -> Result<(), StoreError> {
        self.leave()
    }

    fn leave(&mut self) -> Result<(), StoreError> {
        self.inside.take().map_or(Ok(()), |(store, inside)| store.end_scope(inside))
    }
}

impl Drop for GroupScope<'_> {
    fn drop(&mut self) {
        // A failure poisons the store: no later change and no flush succeeds.
        if let Err(error) = self.leave() {
            tracing::error!(%error, "ending a scope failed");
        }
    }
}

/// Bytes and attributes by object.
///
/// Operations on one object are atomic. An `Ok` makes the change visible to all later calls, and
/// the change survives the death of the process (within a scope, when that has ended). Only
/// [`flush`](Self::flush) makes it survive power loss. A failed operation changes nothing.
/// Every method but `create`, `list`, `flush`, `space` and `begin` fails with `NotFound` for an
/// unknown id.
pub trait ObjectStore: Memberships + DigestStore + ObjectExaminer {
    /// Opens a scope (see [`GroupScope`]). Cheap. May first close the current group, if that is
    /// due.
    fn begin(&self) -> GroupScope<'_>;

    /// Creates an empty object. Fails with `Exists` if the id is in use, by whatever kind.
    fn create(&self, id: ObjectId, kind: ObjectType) -> Result<(), StoreError>;

    /// Removes an object with its bytes, attributes and memberships. Never fails for lack of space;
    /// fails with `HasMembers` for a collection that has any.
    fn remove(&self, id: ObjectId) -> Result<(), StoreError>;

    /// Returns kind, length and used space.
    fn stat(&self, id: ObjectId) -> Result<ObjectStat, StoreError>;

    /// Reads from `offset`; returns the number of bytes read, short only at the object's end. Holes
    /// read as zeros. Fails with `Damaged` if any block of the range fails its checksum; `into`
    /// then has unspecified content.
    fn read(&self, id: ObjectId, offset: u64, into: &mut [u8]) -> Result<usize, StoreError>;

    /// Writes at `offset`, extending the object (with a hole) as needed. Empty `data` changes
    /// nothing.
    fn write(&self, id: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError>;

    /// Sets the length: truncates, or extends with a hole.
    fn resize(&self, id: ObjectId, length: u64) -> Result<(), StoreError>;

    /// Zeroes `length` bytes at `offset`, extending the object as needed; whole blocks become
    /// holes. A `length` of 0 changes nothing.
    fn clear(&self, id: ObjectId, offset: u64, length: u64) -> Result<(), StoreError>;

    /// Removes `length` bytes at `offset`; the tail moves down and the object gets shorter. Bytes
    /// beyond the end are ignored.
    fn punch(&self, id: ObjectId, offset: u64, length: u64) -> Result<(), StoreError>;

    /// Replaces length and bytes of `to`, which must exist, with those of `from` without copying:
    /// both share the blocks until one of them is written. Attributes and kinds do not change.
    /// Takes no space; a later write to a shared block takes as much as one to a hole. Sharing an
    /// object with itself changes nothing.
    fn share(&self, from: ObjectId, to: ObjectId) -> Result<(), StoreError>;

    /// Returns the map from `offset` on: extents without gaps, in order, neighbours of different
    /// kinds. There are at most `max` of them (and [`MAX_EXTENTS`]), and the map ends at the
    /// latest with the 1 MiB piece that is the last of [`MAP_PIECES_MAX`] with blocks. Continue at
    /// the end of the last extent, which may have the same kind as the next, until the result is
    /// empty: that is the object's end.
    fn map(&self, id: ObjectId, offset: u64, max: usize) -> Result<Vec<ObjectExtent>, StoreError>;

    /// Returns where `id` differs from `other`, from `offset` to the end of the longer one: extents
    /// of `id` that are neither the same blocks nor holes in both; beyond its own end `id` has a
    /// hole. In order, at most `max` of them (and [`MAX_EXTENTS`]). The result ends at the latest
    /// with the 1 MiB piece that is the last of [`MAP_PIECES_MAX`] with blocks in either object,
    /// and says where to continue. Reads no data, so equal bytes in different blocks count as
    /// different.
    fn compare(
        &self,
        id: ObjectId,
        other: ObjectId,
        offset: u64,
        max: usize,
    ) -> Result<ObjectComparison, StoreError>;

    /// Returns one attribute's value, `None` if it was never set.
    fn attribute(&self, id: ObjectId, attribute: AttributeId) -> Result<Option<Vec<u8>>, StoreError>;

    /// Sets an attribute; an empty value removes it.
    fn set_attribute(&self, id: ObjectId, attribute: AttributeId, value: &[u8]) -> Result<(), StoreError>;

    /// Returns all attributes, or those of one page, in order.
    fn attributes(&self, id: ObjectId, page: Option<u32>) -> Result<Vec<(AttributeId, Vec<u8>)>, StoreError>;

    /// Returns a number that grows with every change of an object's bytes or attributes while the
    /// store is open, and possibly without one.
    fn change_count(&self, id: ObjectId) -> u64;

    /// Returns up to `max` objects (at most [`MAX_LIST`]) with ids from `from` on, in order. Fewer
    /// than `max` are all. Fails with `ListGap` if it is unknown which ids in a range existed.
    fn list(&self, from: ObjectId, max: usize) -> Result<Vec<(ObjectId, ObjectType)>, StoreError>;

    /// Like `list`, for the objects that can still be found: ids that may be lost are omitted.
    fn list_known(&self, from: ObjectId, max: usize) -> Result<Vec<(ObjectId, ObjectType)>, StoreError> {
        let max = max.min(MAX_LIST);
        let (mut found, mut from) = (Vec::new(), from);
        loop {
            match self.list(from, max - found.len()) {
                Err(StoreError::ListGap { before, to, .. }) => {
                    found.extend(before);
                    let next = match to.object.checked_add(1) {
                        Some(object) => Some(ObjectId::new(to.partition, object)),
                        None => to.partition.checked_add(1).map(|partition| ObjectId::new(partition, 0)),
                    };
                    match next {
                        Some(next) if found.len() < max && next > from => from = next,
                        _ => return Ok(found),
                    }
                }
                rest => {
                    found.extend(rest?);
                    return Ok(found);
                }
            }
        }
    }

    /// Returns when everything acknowledged before the call is durable. Fails with `Poisoned` after
    /// an earlier failure.
    fn flush(&self) -> Result<(), StoreError>;

    /// Returns capacity and use.
    fn space(&self) -> Space;

    /// Returns how the store was closed the last time; a backend without persistence was never
    /// open.
    fn previous_shutdown(&self) -> PreviousShutdown {
        PreviousShutdown::Clean
    }

    /// Returns the known damage of one object, from opening and from every read since. Reads
    /// nothing; a backend without persistence knows none.
    fn known_damage(&self, _id: ObjectId) -> Vec<Damage> {
        Vec::new()
    }
}

/// Returns `offset + length` if an object may be that long.
pub(crate) fn end_of(offset: u64, length: u64) -> Result<u64, StoreError> {
    match offset.checked_add(length) {
        Some(end) if end <= MAX_OBJECT_LENGTH => Ok(end),
        _ => Err(StoreError::TooLarge { what: "object length", limit: MAX_OBJECT_LENGTH }),
    }
}

/// Refuses a transfer above [`MAX_TRANSFER`].
pub(crate) fn check_transfer(length: usize) -> Result<(), StoreError> {
    if length as u64 > MAX_TRANSFER {
        return Err(StoreError::TooLarge { what: "transfer", limit: MAX_TRANSFER });
    }
    Ok(())
}

/// Returns the bytes that an attribute counts towards [`MAX_ATTRIBUTES_PER_OBJECT`]; none if it
/// does not exist.
pub(crate) fn attribute_weight(length: usize) -> u64 {
    if length == 0 { 0 } else { length as u64 + 16 }
}

/// Returns an object's attribute weight after one attribute changes from `old` to `new` bytes, if
/// the limits permit it.
pub(crate) fn attribute_budget(total: u64, old: usize, new: usize) -> Result<u64, StoreError> {
    if new > MAX_ATTRIBUTE_LENGTH {
        return Err(StoreError::TooLarge { what: "attribute length", limit: MAX_ATTRIBUTE_LENGTH as u64 });
    }
    let after = total.saturating_sub(attribute_weight(old)) + attribute_weight(new);
    if after > total && after > MAX_ATTRIBUTES_PER_OBJECT {
        return Err(StoreError::TooLarge {
            what: "attributes of one object",
            limit: MAX_ATTRIBUTES_PER_OBJECT,
        });
    }
    Ok(after)
}
