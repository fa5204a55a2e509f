//! The seam for collections: which user objects are members of which collection.
//!
//! Does: keep membership both ways, exactly, with as many members as there is room for. Does not: know what kinds of
//! collections there are, or attributes; a slot is a number of the caller's that comes back with the membership.
//! Contract: one fact, seen from both ends: `members` names an object exactly if `memberships` of that object names
//! the collection. Removing an object ends its memberships; a collection with members is not removed.
//! Truth: docs/design/store.md, "Memberships".

use sealstone_osd::ObjectId;

use crate::StoreError;

/// Most collections that one object is a member of.
pub const MAX_MEMBERSHIPS: usize = 4096;

/// Members of collections. A collection and its members are in one partition.
///
/// As with all else: operations are atomic, an `Ok` is visible to all that come after, a `flush` makes it durable,
/// an operation that fails changes nothing.
pub trait Memberships: Send + Sync {
    /// Makes a user object a member; `false` if it is one already, then nothing changes, not even its slot.
    /// `NotFound` if the collection is not there or is none, or the member is not there or is no user object;
    /// `TooLarge` beyond [`MAX_MEMBERSHIPS`].
    fn join(&self, collection: ObjectId, member: u64, slot: u32) -> Result<bool, StoreError>;

    /// Ends a membership and gives its slot; `None` if there was none. `NotFound` if there is no such collection.
    fn leave(&self, collection: ObjectId, member: u64) -> Result<Option<u32>, StoreError>;

    /// The slot of a membership; `None` if there is none, also when there is no such collection or object.
    fn membership(&self, collection: ObjectId, member: u64) -> Result<Option<u32>, StoreError>;

    /// Up to `max` members (at most [`MAX_LIST`](crate::MAX_LIST)) with numbers from `from` on, ascending, and their
    /// slots. `NotFound` if there is no such collection.
    fn members(&self, collection: ObjectId, from: u64, max: usize) -> Result<Vec<(u64, u32)>, StoreError>;

    /// How many members a collection has. `NotFound` if there is no such collection.
    fn member_count(&self, collection: ObjectId) -> Result<u64, StoreError>;

    /// The collections that an object is a member of, ascending, and the slots. `NotFound` if there is no object.
    fn memberships(&self, member: ObjectId) -> Result<Vec<(u64, u32)>, StoreError>;

    /// Up to `max` collections (at most [`MAX_LIST`](crate::MAX_LIST)) with ids from `from` on, in order.
    fn collections(&self, from: ObjectId, max: usize) -> Result<Vec<ObjectId>, StoreError>;
}
