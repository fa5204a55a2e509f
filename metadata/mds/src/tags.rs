//! Policy access tags: which credentials for an object its device still accepts.
//!
//! Does: know the tag of every object, draw new ones. Does not: tell devices; `revoke` keeps the list of whom to tell.
//! Contract: every credential for a file's object carries its tag, which is never 0 (0 is not checked). A tag is stored
//! before it is used, and none is drawn twice.
//! Truth: docs/design/security.md 3.5; docs/standards/mds/store.md §8.5.

use sealstone_mds_protocol::{ErrorCode, ObjectRef};
use sealstone_osd::AttributeId;

use crate::error::{MdsError, Result};
use crate::keys;
use crate::records::{counter, load, save};
use crate::store::{Snapshot, Transaction};

/// The tag of every object until its first revocation: each file partition gives it to new objects, and has it itself,
/// since a CREATE is measured by the partition's.
pub const INITIAL_TAG: u32 = 1;

/// Partition Policy/Security page: the tag of the partition itself.
const OF_PARTITION: AttributeId = AttributeId::new(0x3000_0005, 0x4000_0001);
/// The tag that new user objects get.
const OF_NEW_OBJECTS: AttributeId = AttributeId::new(0x3000_0005, 0x4000_0002);
/// User object Policy/Security page: the tag.
const OF_OBJECT: AttributeId = AttributeId::new(0x0000_0005, 0x4000_0001);

/// What a file partition gets when it is made.
#[must_use]
pub fn partition_attributes() -> Vec<(AttributeId, [u8; 4])> {
    vec![(OF_PARTITION, INITIAL_TAG.to_be_bytes()), (OF_NEW_OBJECTS, INITIAL_TAG.to_be_bytes())]
}

/// What an object gets when its credentials are revoked.
#[must_use]
pub const fn object_attribute(tag: u32) -> (AttributeId, [u8; 4]) {
    (OF_OBJECT, tag.to_be_bytes())
}

/// The tag of an object.
pub(crate) fn of<S: Snapshot + ?Sized>(view: &S, object: ObjectRef) -> Result<u32> {
    Ok(load(view, &keys::tag(object))?.unwrap_or(INITIAL_TAG))
}

/// Draws `count` tags that were never used; gives the first.
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
