//! CREATE COLLECTION, CREATE USER TRACKING COLLECTION, REMOVE COLLECTION, FLUSH COLLECTION; what a collection is.
//!
//! Does: collections as objects; which kinds there are. Does not: go through members for others (`members`, `query`).
//! Contract: linked and tracking collections are objects of the store; each partition has one spontaneous collection,
//! [`EVERYTHING`], which is never stored and has every user object as its member.
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

/// The spontaneous collection of every partition: all of its user objects. First of the numbers that the standard
/// gives to spontaneous collections.
pub(crate) const EVERYTHING: u64 = 0x1082;
/// COLLECTION TYPE in the Collection Information page.
pub(crate) const TYPE: AttributeId = AttributeId::new(COLLECTION + page::INFORMATION, 0xA);
/// SOURCE COLLECTION_OBJECT_ID and MATCHES COLLECTION_OBJECT_ID in the CDB.
pub(crate) const SECOND_COLLECTION: u16 = 40;
/// How often a forced removal begins again because somebody joined meanwhile.
const ROUNDS_MAX: usize = 16;

/// COLLECTION TYPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// User objects join it through their Collections page.
    Linked = 0x00,
    /// Members were put in by a command, which it may also track.
    Tracking = 0x01,
    /// The device decides who is a member.
    Spontaneous = 0xEF,
}

/// Is it the collection that no store has?
pub(crate) const fn is_everything(id: ObjectId) -> bool {
    id.object == EVERYTHING && id.partition != 0
}

/// The type of an object that is there: of those that the store has, and of the one that it has not.
pub(crate) fn object_type(device: &Device, id: ObjectId) -> Result<ObjectType, StoreError> {
    if is_everything(id) && device.catalog.partition(id.partition).is_some() {
        return Ok(ObjectType::Collection);
    }
    device.store.stat(id).map(|stat| stat.kind)
}

/// The kind of a collection that is there.
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

/// A second collection that the CDB names, of the same partition.
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

/// Makes an empty collection. The caller holds the partition alone, and the id if it has one.
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

/// CREATE USER TRACKING COLLECTION, first part: the collection, empty.
pub(crate) fn create_tracking(run: &Run<'_>, create: &CreateTracking) -> Result<ObjectId, Refusal> {
    let device = run.device;
    let _grasp = run.steps.reach(Reach::Populate(create.object));
    run.steps.authority()?;
    if create.source != 0 {
        second(device, create.object.partition, create.source)?;
    } else if create.immediate {
        // Nothing to track.
        return Err(Failure::Field(SECOND_COLLECTION).into());
    }
    let scope = device.store.begin();
    let made = make(device, create.object, Kind::Tracking, run.now_ms)?;
    scope.end()?;
    Ok(made)
}

/// Second part: the members of the source become members too.
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

/// Takes back a collection whose making failed. What cannot be taken back is told by the store.
pub(crate) fn unmake(steps: &Steps<'_>, id: ObjectId) -> Result<(), Refusal> {
    let device = steps.device;
    disband(steps, id)?;
    let _grasp = steps.reach(Reach::Populate(id));
    device.store.remove(id).map_err(Failure::from)?;
    device.cache.forget(id);
    partition_of(device, id)?.collection_removed();
    Ok(())
}

/// REMOVE COLLECTION. Its members stay, and stop being members when they are asked for it.
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

/// Ends one membership, and takes the attribute away that named it. The caller holds the member alone.
pub(crate) fn end_membership(device: &Device, collection: ObjectId, member: ObjectId) -> Result<(), Failure> {
    let store: &dyn ObjectStore = &*device.store;
    let slot = store.leave(collection, member.object)?;
    if let Some(number) = slot.filter(|&slot| slot != 0) {
        catalog::set(store, member, AttributeId::new(USER + page::COLLECTIONS, number), &[])?;
    }
    Ok(())
}

/// FLUSH COLLECTION. Its row makes everything durable, whatever the scope: more is always right.
pub(crate) fn flush(run: &Run<'_>, id: ObjectId) -> Result<Done, Failure> {
    kind(run.device, id)?;
    Ok(Done::of(id))
}
