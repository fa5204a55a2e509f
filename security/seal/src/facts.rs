//! What the gate asks the device about its objects, only when a check needs it.

use sealstone_osd::{AttributeId, ObjectId, ObjectType, SecurityMethod};

/// What the checks need to know about one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectFacts {
    /// What it is.
    pub kind: ObjectType,
    /// Its created time, milliseconds since 1970-01-01 UT; 0 for the root.
    pub created_ms: u64,
    /// Its policy access tag; 0 for the root.
    pub policy_access_tag: u32,
}

/// A device's answers. Called on the command path: answer from memory.
pub trait Facts {
    /// The least method the attributes ask for: of the root's default for the root, of the partition's default and
    /// the object's own minimum otherwise. For what does not exist: the default of new partitions.
    fn floor(&self, object: ObjectId) -> SecurityMethod;

    /// The frozen working keys of a partition (P+5, 5): bit n is key version n.
    fn frozen_keys(&self, partition: u64) -> u16;

    /// Is this audit value frozen?
    fn audit_frozen(&self, audit: &[u8; 20]) -> bool;

    /// An object; `None` if there is none. Asked only if the capability carries a created time or a tag, or if
    /// the command does not tell collection from user object.
    fn object(&self, id: ObjectId) -> Option<ObjectFacts>;

    /// Is it certain that there is no such object? Not if it cannot be read. Asked where a missing object and one with
    /// another tag are not the same.
    fn is_absent(&self, _: ObjectId) -> bool {
        false
    }

    /// Returns the logical length of a user object, 0 if it does not exist and `None` if it cannot be read. Called only
    /// for a capability with a range, where a command touches bytes that the length decides.
    fn length(&self, _: ObjectId) -> Option<u64> {
        None
    }

    /// Does the Attributes Access list number `access` of the partition (P+4) name the attribute?
    fn attribute_allowed(&self, partition: u64, access: u32, attribute: AttributeId) -> bool;
}
