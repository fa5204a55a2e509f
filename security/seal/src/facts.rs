//! The device's callbacks for checks: attributes of an object that the gate and the permit read,
//! only if a check needs them.

use sealstone_osd::{AttributeId, ObjectId, ObjectType, SecurityMethod};

/// The properties of one object that checks need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectFacts {
    /// The object's type.
    pub kind: ObjectType,
    /// Its created time, milliseconds since 1970-01-01 UT; 0 for the root.
    pub created_ms: u64,
    /// Its policy access tag; 0 for the root.
    pub policy_access_tag: u32,
}

/// The device's answers. Called on the command path: answer from memory.
pub trait DeviceFacts {
    /// Returns the minimum method by the attributes: the root's default for the root, otherwise the
    /// stronger of the partition's default and the object's own minimum. For objects that do not
    /// exist: the default of new partitions.
    fn floor(&self, object: ObjectId) -> SecurityMethod;

    /// Returns the frozen working keys of a partition (P+5, 5): bit n is key version n.
    fn frozen_keys(&self, partition: u64) -> u16;

    /// Whether this audit value is frozen.
    fn audit_frozen(&self, audit: &[u8; 20]) -> bool;

    /// Returns an object; `None` if it does not exist. Called only if the capability has a created
    /// time or a tag, or if the command does not distinguish collections from user objects.
    fn object(&self, id: ObjectId) -> Option<ObjectFacts>;

    /// Whether the object certainly does not exist; false if it cannot be read. Called where a
    /// missing object and one with another tag are treated differently.
    fn is_absent(&self, _: ObjectId) -> bool {
        false
    }

    /// Returns the logical length of a user object, 0 if it does not exist and `None` if it cannot
    /// be read. Called only for a capability with a range, where a command touches bytes that the
    /// length decides.
    fn length(&self, _: ObjectId) -> Option<u64> {
        None
    }

    /// Whether the Attributes Access list number `access` of the partition (P+4) contains the
    /// attribute.
    fn attribute_allowed(&self, partition: u64, access: u32, attribute: AttributeId) -> bool;
}
