//! CREATE COLLECTION, CREATE USER TRACKING COLLECTION, REMOVE COLLECTION, FLUSH COLLECTION.
//!
//! Does: collections as objects, and their types. Does not: run commands on members (`members`,
//! `query`).
//! Contract: linked and tracking collections are objects of the store. Each partition has one
//! spontaneous collection, [`EVERYTHING`], which is never stored and contains every user object.
//! Truth: docs/design/t10-osd.md 1.10, 2; docs/standards/osd.md, "Collections".

use std::cell::Cell;

use sealstone_osd::cdb::CreateTracking;
use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_store::{ObjectStore, StoreError};

use super::data::partition_of;
use super::objects::free_id;
use super::walk::{self, Hold, Pool, Steps, Tally};
use super::{Done, Run, Touch};
use crate::attributes::rows::{COLLECTION, USER, page};
use crate::catalog;
use crate::device::Device;
use crate::failure::{self, Failure};
use crate::locks::Reach;
use crate::report::Refusal;

/// The spontaneous collection of every partition, with all its user objects. The first number that
/// the standard assigns to spontaneous collections.
pub(crate) const EVERYTHING: u64 = 0x1082;
/// COLLECTION TYPE in the Collection Information page.
pub(crate) const TYPE: AttributeId = AttributeId::new(COLLECTION + page::INFORMATION, 0xA);
/// SOURCE COLLECTION_OBJECT_ID and MATCHES COLLECTION_OBJECT_ID in the CDB.
pub(crate) const SECOND_COLLECTION: u16 = 40;
/// Retries of a forced removal when new members join meanwhile.
const ROUNDS_MAX: usize = 16;

/// COLLECTION TYPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// User objects join it through their Collections page.
    Linked = 0x00,
    /// A command adds the members, and may be tracked by it.
    Tracking = 0x01,
    /// The device defines the members.
    Spontaneous = 0xEF,
}

/// Whether this is the spontaneous collection, which is not stored.
pub(crate) const fn is_everything(id: ObjectId) -> bool {
    id.object == EVERYTHING && id.partition != 0
}

/// Returns the type of an existing object, including the spontaneous collection.
pub(crate) fn object_type(device: &Device, id: ObjectId) -> Result<ObjectType, StoreError> {
    if is_everything(id) && device.catalog.partition(id.partition).is_some() {
        return Ok(ObjectType::Collection);
    }
    device.store.stat(id).map(|stat| stat.kind)
}

/// Returns the type of an existing collection.
pub(crate) fn kind(device: &Device, id: ObjectId) -> Result<Kind, Failure> {
    partition_of(device, id)?;
    if is_everything(id) {
        return Ok(Kind::Spontaneous);
    }
    if device.store.stat(id)?.kind != ObjectType::Collection {
        return Err(Failure::Field(failure::OBJECT));
    }
    match catalog::get(&*device.store, id, TYPE)?.as_deref() {
        Some([0x01]) => Ok(Kind::Tracking),
        _ => Ok(Kind::Linked),
    }
}

/// Returns a second collection that the CDB names, in the same partition.
pub(crate) fn second(device: &Device, partition: u64, object: u64) -> Result<Pool, Failure> {
    Pool::of(device, ObjectId::new(partition, object)).map_err(|failure| match failure {
        Failure::Field(_) | Failure::Store(StoreError::NotFound(_)) => Failure::Field(SECOND_COLLECTION),
        other => other,
    })
}

/// CREATE COLLECTION.
pub(crate) fn create(run: &Run<'_>, requested: ObjectId) -> Result<Done, Failure> {
    let id = make(run.device, requested, Kind::Linked, run.now_ms)?;
    Ok(Done { touch: Touch::Created, subjects: vec![id], ..Done::of(id) })
}

/// Creates an empty collection. The caller has an exclusive lock of the partition, and of the id if
/// it is given.
fn make(device: &Device, requested: ObjectId, kind: Kind, now_ms: u64) -> Result<ObjectId, Failure> {
    let partition = partition_of(device, requested)?;
    if requested.object != 0 && requested.object < ObjectId::FIRST_ASSIGNABLE {
        return Err(Failure::Field(failure::OBJECT));
    }
    if partition.population() >= partition.policy().objects {
        return Err(Failure::Quota("object count"));
    }
    let id = if requested.object == 0 { free_id(device, &partition)? } else { requested };
    device.store.create(id, ObjectType::Collection)?;
    let created = catalog::time(device.catalog.birth(now_ms));
    let born = AttributeId::new(COLLECTION + page::TIMESTAMPS, 1);
    let made = catalog::set(&*device.store, id, born, &created)
        .and_then(|()| catalog::set(&*device.store, id, TYPE, &[kind as u8]));
    if let Err(error) = made {
        device.store.remove(id)?;
        return Err(error.into());
    }
    partition.collection_created(id.object);
    device.cache.forget(id);
    Ok(id)
}

/// CREATE USER TRACKING COLLECTION, first part: creates the empty collection.
pub(crate) fn create_tracking(run: &Run<'_>, create: &CreateTracking) -> Result<ObjectId, Refusal> {
    let device = run.device;
    let _grasp = run.steps.reach(Reach::Populate(create.object));
    run.steps.authority()?;
    if create.source != 0 {
        second(device, create.object.partition, create.source)?;
    } else if create.immediate {
        // There is nothing to track.
        return Err(Failure::Field(SECOND_COLLECTION).into());
    }
    let scope = device.store.begin();
    let made = make(device, create.object, Kind::Tracking, run.now_ms)?;
    scope.end()?;
    Ok(made)
}

/// Second part: adds the members of the source.
pub(crate) fn fill_tracking(
    run: &Run<'_>,
    source: Pool,
    id: ObjectId,
    tally: &Cell<Tally>,
) -> Result<(), Refusal> {
    let device = run.device;
    walk::walk(run.steps, source, Hold::Change, tally, |member| {
        device.store.join(id, member.object, 0).map_err(Failure::from)?;
        Ok(true)
    })?;
    partition_of(device, id)?.note_change();
    Ok(())
}

/// Removes a collection whose creation failed. Returns the error if that fails too.
pub(crate) fn unmake(steps: &Steps<'_>, id: ObjectId) -> Result<(), Refusal> {
    let device = steps.device;
    disband(steps, id)?;
    let _grasp = steps.reach(Reach::Populate(id));
    device.store.remove(id).map_err(Failure::from)?;
    device.cache.forget(id);
    partition_of(device, id)?.collection_removed();
    Ok(())
}

/// REMOVE COLLECTION. The members stay; with `force` their memberships end first.
pub(crate) fn remove(run: &Run<'_>, id: ObjectId, force: bool) -> Result<Done, Refusal> {
    let device = run.device;
    if kind(device, id)? == Kind::Spontaneous {
        return Err(Failure::Field(failure::OBJECT).into());
    }
    for _ in 0..ROUNDS_MAX {
        if force {
            disband(run.steps, id)?;
        }
        let _grasp = run.steps.reach(Reach::Populate(id));
        run.steps.authority()?;
        if device.tracking.is_active(id) {
            return Err(Failure::Field(failure::OBJECT).into());
        }
        let created_ms = device.facts(id)?.created_ms;
        match device.store.remove(id) {
            Err(StoreError::HasMembers(_)) if force => continue,
            Err(StoreError::HasMembers(_)) => break,
            other => other?,
        }
        partition_of(device, id)?.collection_removed();
        device.catalog.retire(created_ms);
        device.cache.forget(id);
        let _ = device.cache.take(id);
        return Ok(Done { touch: Touch::Removed, ..Done::of(id) });
    }
    Err(Failure::NotEmpty.into())
}

/// Ends all memberships in a collection.
fn disband(steps: &Steps<'_>, id: ObjectId) -> Result<(), Refusal> {
    let device = steps.device;
    let pool = Pool::of(device, id)?;
    walk::walk(steps, pool, Hold::Change, &Cell::default(), |member| {
        end_membership(device, id, member)?;
        Ok(true)
    })?;
    partition_of(device, id)?.note_change();
    Ok(())
}

/// Ends one membership, and removes the attribute that named it. The caller has an exclusive lock
/// of the member.
pub(crate) fn end_membership(device: &Device, collection: ObjectId, member: ObjectId) -> Result<(), Failure> {
    let store: &dyn ObjectStore = &*device.store;
    let slot = store.leave(collection, member.object)?;
    if let Some(number) = slot.filter(|&slot| slot != 0) {
        catalog::set(store, member, AttributeId::new(USER + page::COLLECTIONS, number), &[])?;
    }
    Ok(())
}

/// FLUSH COLLECTION. Its row flushes everything, whatever the requested scope.
pub(crate) fn flush(run: &Run<'_>, id: ObjectId) -> Result<Done, Failure> {
    kind(run.device, id)?;
    Ok(Done::of(id))
}
