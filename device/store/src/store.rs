//! The seam between the object device and whatever keeps its bytes.

use std::marker::PhantomData;

pub use sealstone_osd::AttributeId;
use sealstone_osd::{ObjectId, ObjectType};

use crate::digests::Digests;
use crate::disk::{DiskStore, Inside, PreviousShutdown};
use crate::examine::Examine;
use crate::memberships::Memberships;
use crate::{Comparison, Damage, StoreError};

/// Unit of allocation and of checksums, in bytes.
pub const BLOCK: u64 = 4096;
/// Longest object, in bytes (sparse; how much is mapped is limited by the capacity).
pub const MAX_OBJECT_LENGTH: u64 = 1 << 50;
/// Longest single `write`, in bytes.
pub const MAX_TRANSFER: u64 = 1 << 30;
/// Longest attribute value, in bytes (the attribute list's length field is 16 bits, FFFFh is reserved).
pub const MAX_ATTRIBUTE_LENGTH: usize = 0xFFFE;
/// All attributes of one object together, in bytes; each counts 16 bytes more than its value.
pub const MAX_ATTRIBUTES_PER_OBJECT: u64 = 4 << 20;
/// Most ids that one `list` returns; a larger `max` is cut to this.
pub const MAX_LIST: usize = 1 << 16;

/// What [`ObjectStore::stat`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// What `create` was told.
    pub kind: ObjectType,
    /// Logical length in bytes.
    pub length: u64,
    /// Bytes of the blocks that it has, shared ones too; holes take none.
    pub used_bytes: u64,
}

/// Most stretches that one `map` returns; a larger `max` is cut to this.
pub const MAX_STRETCHES: usize = 1 << 16;

/// Most pieces of 1 MiB with blocks in them that one `map` or `compare` goes over: so much work is done under the object's lock.
pub const MAP_PIECES_MAX: usize = 512;

/// A part of an object, in a [`map`](ObjectStore::map).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes, not 0.
    pub length: u64,
    /// What is there.
    pub kind: StretchKind,
}

/// What is in a part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StretchKind {
    /// Nothing: it reads as zeros and takes no space.
    Hole,
    /// Blocks.
    Data {
        /// Other objects refer to the same blocks: they come free only when the last of them lets go.
        shared: bool,
    },
}

/// Appends what lies between two offsets, to the last stretch if it goes on with the same kind.
pub(crate) fn push_stretch(map: &mut Vec<Stretch>, from: u64, to: u64, kind: StretchKind) {
    match map.last_mut() {
        _ if from >= to => {}
        Some(last) if last.kind == kind && last.offset + last.length == from => last.length += to - from,
        _ => map.push(Stretch { offset: from, length: to - from, kind }),
    }
}

/// What [`ObjectStore::space`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Capacity in bytes, a multiple of [`BLOCK`].
    pub total: u64,
    /// Bytes that all objects' blocks take; blocks that several objects share are counted once.
    pub used: u64,
    /// Bytes that objects may still take now: what is left of the capacity, or less where the medium beneath has less.
    pub available: u64,
    /// How many objects of any kind there are.
    pub objects: u64,
    /// The part of `available` that other programs can take, too; `None` if nobody can.
    pub shared: Option<SharedSpace>,
}

/// What a store may take of a file system that others use, too: several stores on one must not count it each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedSpace {
    /// The same for all stores on one file system of a machine, until the machine restarts.
    pub id: [u8; 16],
    /// Bytes that data may take of the file system.
    pub free: u64,
    /// Bytes that objects may take without that.
    pub own: u64,
}

/// Keeps a transaction group open: all that is done while it lives lands in one group and in one record of the write log,
/// so that after a crash either all of it is there or none. It does not roll back when a later operation fails.
///
/// Belongs to the thread that began it. Scopes nest. Hold it for one command, never across a `flush`. What was done in it
/// survives the death of the process when [`end`](Self::end) returned.
#[must_use = "the group may close as soon as the scope is dropped"]
pub struct Scope<'a> {
    inside: Option<(&'a DiskStore, Inside<'a>)>,
    /// A scope is tied to its thread.
    _thread: PhantomData<*const ()>,
}

impl<'a> Scope<'a> {
    /// A scope of a backend that has no groups.
    pub(crate) fn none() -> Self {
        Self { inside: None, _thread: PhantomData }
    }

    /// A scope that keeps a group of the disk store open.
    pub(crate) fn inside(store: &'a DiskStore, inside: Inside<'a>) -> Self {
        Self { inside: Some((store, inside)), _thread: PhantomData }
    }

    /// Ends the scope; returns when all that was done in it survives the death of the process. Does not wait if another
    /// scope of this thread is around it.
    ///
    /// # Errors
    /// If it had to be committed for that, and that failed.
    pub fn end(mut self) -> Result<(), StoreError> {
        self.leave()
    }

    fn leave(&mut self) -> Result<(), StoreError> {
        self.inside.take().map_or(Ok(()), |(store, inside)| store.end_scope(inside))
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        // A failure poisons the store: no later change and no flush succeeds.
        if let Err(error) = self.leave() {
            tracing::error!(%error, "ending a scope failed");
        }
    }
}

/// Bytes and attributes by object.
///
/// Operations on one object are atomic towards each other; an `Ok` makes the change visible to all that come
/// after, and it survives the death of the process; within a scope, when that has ended. Only [`flush`](Self::flush) makes
/// it survive power loss. An operation that fails changes nothing.
/// Every method but `create`, `list`, `flush`, `space` and `begin` gives `NotFound` for an unknown id.
pub trait ObjectStore: Memberships + Digests + Examine {
    /// Opens a scope (see [`Scope`]). Cheap. May first close the current group, if that is due.
    fn begin(&self) -> Scope<'_>;

    /// Makes an empty object. `Exists` if the id is taken, of whatever kind.
    fn create(&self, id: ObjectId, kind: ObjectType) -> Result<(), StoreError>;

    /// Removes an object with its bytes, attributes and memberships. Never fails for lack of space; `HasMembers` for
    /// a collection that has any.
    fn remove(&self, id: ObjectId) -> Result<(), StoreError>;

    /// Kind, length and space taken.
    fn stat(&self, id: ObjectId) -> Result<Stat, StoreError>;

    /// Reads from `offset`; gives the bytes read, short only at the object's end. Holes read as zeros.
    /// `Damaged` if any block it touches fails its checksum; `into` then holds unspecified bytes.
    fn read(&self, id: ObjectId, offset: u64, into: &mut [u8]) -> Result<usize, StoreError>;

    /// Writes at `offset`, extending the object (with a hole) as needed. Empty `data` changes nothing.
    fn write(&self, id: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError>;

    /// Sets the length: cuts, or extends with a hole.
    fn resize(&self, id: ObjectId, length: u64) -> Result<(), StoreError>;

    /// Makes `length` bytes at `offset` zero, extending the object as needed; whole blocks become holes.
    /// A `length` of 0 changes nothing.
    fn clear(&self, id: ObjectId, offset: u64, length: u64) -> Result<(), StoreError>;

    /// Takes `length` bytes at `offset` out; the tail moves down and the object gets shorter. What lies
    /// beyond the end is ignored.
    fn punch(&self, id: ObjectId, offset: u64, length: u64) -> Result<(), StoreError>;

    /// Gives `to`, which must exist, the length and bytes of `from` instead of its own, without copying: both share
    /// the blocks until one of them is written to. Attributes and kinds stay. Takes no space; a later write to a
    /// shared block takes as much as one to a hole. An object shared with itself does not change.
    fn share(&self, from: ObjectId, to: ObjectId) -> Result<(), StoreError>;

    /// What is where from `offset` on: stretches without gaps, in order, neighbours of different kinds; at most `max` of
    /// them (and [`MAX_STRETCHES`]), and no further than the end of the 1 MiB piece that is the last of
    /// [`MAP_PIECES_MAX`] with blocks. One asks again from the end of the last stretch, which may go on with the same
    /// kind, until there is none: that is the object's end.
    fn map(&self, id: ObjectId, offset: u64, max: usize) -> Result<Vec<Stretch>, StoreError>;

    /// Where `id` differs from `other`, from `offset` to the end of the longer one: stretches of `id` that are not the
    /// very same blocks there, nor holes in both; beyond its own end `id` has a hole. In order, at most `max` of them
    /// (and [`MAX_STRETCHES`]), and no further than the end of the 1 MiB piece that is the last of [`MAP_PIECES_MAX`] in
    /// which one of them has blocks; says where to go on. Reads no data, so that equal bytes in different blocks differ.
    fn compare(
        &self,
        id: ObjectId,
        other: ObjectId,
        offset: u64,
        max: usize,
    ) -> Result<Comparison, StoreError>;

    /// One attribute's value, `None` if it was never set.
    fn attribute(&self, id: ObjectId, attribute: AttributeId) -> Result<Option<Vec<u8>>, StoreError>;

    /// Sets an attribute; an empty value removes it.
    fn set_attribute(&self, id: ObjectId, attribute: AttributeId, value: &[u8]) -> Result<(), StoreError>;

    /// All attributes, or those of one page, in order.
    fn attributes(&self, id: ObjectId, page: Option<u32>) -> Result<Vec<(AttributeId, Vec<u8>)>, StoreError>;

    /// Up to `max` objects (at most [`MAX_LIST`]) with ids from `from` on, in order. `ListGap` if some of them may be lost
    /// without a trace: whoever gets fewer than `max` has all there are.
    fn list(&self, from: ObjectId, max: usize) -> Result<Vec<(ObjectId, ObjectType)>, StoreError>;

    /// As `list`, of the objects that can still be found: those that may be lost are left out.
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

    /// Returns when everything acknowledged before the call is durable. `Poisoned` after one failed.
    fn flush(&self) -> Result<(), StoreError>;

    /// Capacity and use.
    fn space(&self) -> Space;

    /// How the store was left when it was open before; a backend that keeps nothing was never open.
    fn previous_shutdown(&self) -> PreviousShutdown {
        PreviousShutdown::Clean
    }

    /// What is known to be damaged of one object, from opening and from every read since. Reads nothing; a backend that
    /// does not rot knows nothing.
    fn known_damage(&self, _id: ObjectId) -> Vec<Damage> {
        Vec::new()
    }
}

/// `offset + length` if an object may be that long.
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

/// Bytes that an attribute counts towards [`MAX_ATTRIBUTES_PER_OBJECT`]; none if it is not there.
pub(crate) fn attribute_weight(length: usize) -> u64 {
    if length == 0 { 0 } else { length as u64 + 16 }
}

/// An object's attribute weight after one changes from `old` to `new` bytes, if the limits allow it.
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
