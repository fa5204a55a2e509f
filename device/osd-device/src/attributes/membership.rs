//! The Collections page of a user object: the linked collections that it is a member of.
//!
//! Does: apply the effect of setting one of its attributes.
//! Contract: attribute n names a collection if and only if the object is a member of it with slot
//! n. The caller has exclusive locks of the object and of its partition, so no collection is
//! created or removed meanwhile.
//! Truth: docs/design/t10-osd.md 3.5 (U+4); docs/standards/osd.md, "Collections".

use sealstone_osd::{AttributeId, ObjectId};
use sealstone_store::StoreError;

use crate::catalog::{self, be};
use crate::commands::collections::{self, CollectionKind};
use crate::commands::data::partition_of;
use crate::device::OsdDevice;
use crate::failure::OsdFailure;

/// Sets one attribute of the page: joins the collection in the new value, and leaves the one in the
/// old value.
pub(crate) fn set(
    device: &OsdDevice,
    member: ObjectId,
    id: AttributeId,
    value: &[u8],
) -> Result<(), OsdFailure> {
    let store = &*device.store;
    let at = |number: u64| ObjectId::new(member.partition, number);
    let old = catalog::get(store, member, id)?.map(|value| be(&value));
    let new = (!value.is_empty()).then(|| be(value));
    if old == new {
        return Ok(());
    }
    let partition = partition_of(device, member)?;
    if let Some(new) = new {
        match collections::kind(device, at(new)) {
            Ok(CollectionKind::Linked) => {}
            Ok(CollectionKind::Tracking | CollectionKind::Spontaneous)
            | Err(OsdFailure::Field(_) | OsdFailure::Store(StoreError::NotFound(_))) => {
                return Err(OsdFailure::Attribute(id));
            }
            Err(failure) => return Err(failure),
        }
        let quota = partition.policy().collections_per_object;
        if old.is_none() && quota != u32::MAX {
            let linked = store.memberships(member)?.iter().filter(|(_, slot)| *slot != 0).count();
            if linked as u64 >= u64::from(quota) {
                return Err(OsdFailure::Quota("collections per object"));
            }
        }
        match store.join(at(new), member.object, id.number) {
            Ok(true) => {}
            // Each collection may be named only once.
            Ok(false) => return Err(OsdFailure::Attribute(id)),
            Err(StoreError::TooLarge { .. }) => return Err(OsdFailure::Quota("collections per object")),
            Err(error) => return Err(error.into()),
        }
    }
    if let Err(error) = catalog::set(store, member, id, value) {
        if let Some(new) = new {
            store.leave(at(new), member.object)?;
        }
        return Err(error.into());
    }
    if let Some(old) = old {
        store.leave(at(old), member.object)?;
    }
    partition.note_change();
    Ok(())
}
