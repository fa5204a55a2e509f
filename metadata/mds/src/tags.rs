//! Policy access tags: they determine which credentials for an object its device accepts.
//!
//! Does: store the tag of every object, allocate new ones.
//! Does not: set them on devices; `revoke` keeps the list of pending objects.
//! Contract: every credential for a file's object carries its tag, which is never 0 (0 is not
//! checked). A tag is stored before it is used, and none is allocated twice.
//! Truth: docs/design/security.md 3.5; docs/standards/mds/store.md §8.5.

use sealstone_mds_protocol::{ErrorCode, ObjectRef};
use sealstone_osd::AttributeId;

use crate::error::{MdsError, Result};
use crate::keys;
use crate::records::{counter, load, save};
use crate::store::{Snapshot, Transaction};

/// The tag of every object before its first revocation. Each file partition gives it to new
/// objects, and has it itself, because a CREATE is checked against the partition's tag.
pub const INITIAL_TAG: u32 = 1;

/// Partition Policy/Security page: the tag of the partition itself.
const OF_PARTITION: AttributeId = AttributeId::new(0x3000_0005, 0x4000_0001);
/// Attribute with the tag of new user objects.
const OF_NEW_OBJECTS: AttributeId = AttributeId::new(0x3000_0005, 0x4000_0002);
/// User object Policy/Security page: the tag of the object.
const OF_OBJECT: AttributeId = AttributeId::new(0x0000_0005, 0x4000_0001);

/// Returns the attributes of a new file partition.
#[must_use]
pub fn partition_attributes() -> Vec<(AttributeId, [u8; 4])> {
    vec![(OF_PARTITION, INITIAL_TAG.to_be_bytes()), (OF_NEW_OBJECTS, INITIAL_TAG.to_be_bytes())]
}

/// Returns the attribute that revokes credentials for an object.
#[must_use]
pub const fn object_attribute(tag: u32) -> (AttributeId, [u8; 4]) {
    (OF_OBJECT, tag.to_be_bytes())
}

/// Returns the tag of an object.
pub(crate) fn of<S: Snapshot + ?Sized>(view: &S, object: ObjectRef) -> Result<u32> {
    Ok(load(view, &keys::tag(object))?.unwrap_or(INITIAL_TAG))
}

/// Allocates `count` unused tags; returns the first.
pub(crate) fn draw(tx: &mut dyn Transaction, count: usize) -> Result<u32> {
    let key = keys::meta(counter::TAG);
    let first: u64 = load(tx, &key)?.unwrap_or(0).max(u64::from(INITIAL_TAG) + 1);
    let next = first.saturating_add(count as u64);
    if next > u64::from(u32::MAX) {
        return Err(MdsError::refused(ErrorCode::Limit, "policy access tags are used up"));
    }
    save(tx, &key, &next)?;
    Ok(first as u32)
}
