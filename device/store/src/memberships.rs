//! The trait for collections: which user objects are members of which collection.
//!
//! Does: keeps memberships in both directions, exactly, with as many members as there is space for.
//! Does not: know kinds of collections, or attributes; a slot is a number of the caller that is
//! returned with the membership.
//! Contract: both directions agree: `members` lists an object exactly if `memberships` of that
//! object lists the collection. Removing an object ends its memberships; a collection with members
//! cannot be removed.
//! Source of truth: docs/design/store.md, "Memberships".

use sealstone_osd::ObjectId;

use crate::StoreError;

/// Maximum number of collections that one object is a member of.
pub const MAX_MEMBERSHIPS: usize = 4096;

/// Members of collections. A collection and its members are in one partition.
///
/// As in [`ObjectStore`](crate::ObjectStore), operations are atomic, an `Ok` is visible to all
/// later calls, a `flush` makes it durable, and a failed operation changes nothing.
pub trait Memberships: Send + Sync {
    /// Makes a user object a member. Returns `false` and changes nothing, not even the slot, if it
    /// is one already. Fails with `NotFound` if the collection or the member does not exist or is
    /// of another kind, and with `TooLarge` beyond [`MAX_MEMBERSHIPS`].
    fn join(&self, collection: ObjectId, member: u64, slot: u32) -> Result<bool, StoreError>;

    /// Ends a membership and returns its slot; `None` if there was none. Fails with `NotFound` if
    /// there is no such collection.
    fn leave(&self, collection: ObjectId, member: u64) -> Result<Option<u32>, StoreError>;

    /// Returns the slot of a membership; `None` if there is none, also if there is no such
    /// collection or object.
    fn membership(&self, collection: ObjectId, member: u64) -> Result<Option<u32>, StoreError>;

    /// Returns up to `max` members (at most [`MAX_LIST`](crate::MAX_LIST)) with numbers from `from`
    /// on, ascending, with their slots. Fails with `NotFound` if there is no such collection.
    fn members(&self, collection: ObjectId, from: u64, max: usize) -> Result<Vec<(u64, u32)>, StoreError>;

    /// Returns the number of members of a collection. Fails with `NotFound` if there is no such
    /// collection.
    fn member_count(&self, collection: ObjectId) -> Result<u64, StoreError>;

    /// Returns the collections that an object is a member of, ascending, with the slots. Fails with
    /// `NotFound` if there is no such object.
    fn memberships(&self, member: ObjectId) -> Result<Vec<(u64, u32)>, StoreError>;

    /// Returns up to `max` collections (at most [`MAX_LIST`](crate::MAX_LIST)) with ids from `from`
    /// on, in order.
    fn collections(&self, from: ObjectId, max: usize) -> Result<Vec<ObjectId>, StoreError>;
}
