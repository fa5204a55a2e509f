//! Policy access tags: they determine which credentials for an object its device accepts.
//!
//! Does: store the tag of every object, allocate new ones, list the objects whose devices have not
//! confirmed theirs.
//! Does not: set them on devices; the daemon does. Does not: store revocations; `revoke` does.
//! Contract: every credential for a file's object carries its tag, which is never 0 (0 is not
//! checked). A tag is stored before it is used, and none is allocated twice.
//! Truth: docs/design/security.md 3.5; docs/standards/mds/store.md §8.5.

use sealstone_mds_protocol::{DeviceId, ErrorCode, InodeId, ObjectRef, record};
use sealstone_osd::AttributeId;

use crate::error::{MdsError, Result};
use crate::keys;
use crate::records::{Inode, counter, load, save};
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

record! {
    /// An object whose tag its device has not confirmed.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct PendingTag {
        /// New tag of the object.
        pub tag: u32,
        /// Whether a credential that can create the object may be valid. Then the object is created
        /// first, if it is missing.
        pub creates: bool,
        /// Revocations that wait for it.
        pub waits: Vec<u64>,
    }
}

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

/// Gives objects new tags and adds them to the list for their devices, on behalf of a revocation if
/// given.
pub(crate) fn retag(
    tx: &mut dyn Transaction,
    objects: &[(ObjectRef, bool)],
    id: impl Into<Option<u64>>,
) -> Result<()> {
    let id = id.into();
    let first = draw(tx, objects.len())?;
    for (tag, (object, creates)) in (first..).zip(objects) {
        save(tx, &keys::tag(*object), &tag)?;
        let key = keys::retag(*object);
        let mut item =
            load::<PendingTag, _>(tx, &key)?.unwrap_or(PendingTag { tag, creates: false, waits: Vec::new() });
        item.tag = tag;
        item.creates |= creates;
        item.waits.extend(id);
        save(tx, &key, &item)?;
    }
    Ok(())
}

/// Gives the objects of a file new tags, which are sent to their devices as for a revocation.
pub(crate) fn retag_file(tx: &mut dyn Transaction, inode: InodeId, now_ms: u64) -> Result<()> {
    let file: Option<Inode> = load(tx, &keys::inode(inode))?;
    let objects = file.map_or_else(Vec::new, |file| objects_of(&file, now_ms));
    retag(tx, &objects, None)
}

/// Returns the objects of a file, and whether a credential that can create them may be valid.
pub(crate) fn objects_of(file: &Inode, now_ms: u64) -> Vec<(ObjectRef, bool)> {
    let creates = file.create_grants_until_ms >= now_ms;
    let objects = file.layout.iter().flat_map(|layout| layout.objects());
    objects.map(|object| (*object, creates)).collect()
}

/// Returns the devices with pending tags.
pub(crate) fn pending_devices<S: Snapshot + ?Sized>(view: &S) -> Result<Vec<DeviceId>> {
    let until = keys::after_prefix(&keys::retags());
    let (mut from, mut devices) = (keys::retags(), Vec::new());
    while let Some((key, _)) = view.scan(&from, &until, 1)?.first() {
        let Some(object) = keys::retag_object(key) else { break };
        devices.push(object.device);
        from = keys::after_prefix(&keys::retags_of(object.device));
    }
    Ok(devices)
}
