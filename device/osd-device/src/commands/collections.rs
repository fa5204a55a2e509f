//! CREATE COLLECTION, CREATE USER TRACKING COLLECTION, REMOVE COLLECTION, FLUSH COLLECTION.
//!
//! Does: collections as objects, and their types.
//! Does not: run commands on members (`members`, `query`).
//! Contract: linked and tracking collections are objects of the store. Each partition has one
//! spontaneous collection, [`EVERYTHING`], which is never stored and contains every user object.
//! Truth: docs/design/t10-osd.md 1.10, 2; docs/standards/osd.md, "Collections".

use std::cell::Cell;

use sealstone_osd::cdb::CreateTracking;
use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_store::{ObjectStore, StoreError};

use super::data::partition_of;
use super::objects::free_id;
use super::walk::{self, MemberSet, StepAccess, StepControl};
use super::{CommandResult, CommandRun, ObjectEffect};
use crate::attributes::rows::{COLLECTION, USER, page};
use crate::catalog;
use crate::device::OsdDevice;
use crate::failure::{self, OsdFailure};
use crate::locks::LockScope;
use crate::report::OsdRefusal;
use crate::running::WalkProgress;

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
pub(crate) enum CollectionKind {
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
pub(crate) fn object_type(device: &OsdDevice, id: ObjectId) -> Result<ObjectType, StoreError> {
    if is_everything(id) && device.catalog.partition(id.partition).is_some() {
        return Ok(ObjectType::Collection);
    }
    device.store.stat(id).map(|stat| stat.kind)
}

/// Returns the type of an existing collection.
pub(crate) fn kind(device: &OsdDevice, id: ObjectId) -> Result<CollectionKind, OsdFailure> {
    partition_of(device, id)?;
    if is_everything(id) {
        return Ok(CollectionKind::Spontaneous);
    }
    if device.store.stat(id)?.kind != ObjectType::Collection {
        return Err(OsdFailure::Field(failure::OBJECT));
    }
    match catalog::get(&*device.store, id, TYPE)?.as_deref() {
        Some([0x01]) => Ok(CollectionKind::Tracking),
        _ => Ok(CollectionKind::Linked),
    }
}

/// Returns a second collection that the CDB names, in the same partition.
pub(crate) fn second(device: &OsdDevice, partition: u64, object: u64) -> Result<MemberSet, OsdFailure> {
    MemberSet::of(device, ObjectId::new(partition, object)).map_err(|failure| match failure {
        OsdFailure::Field(_) | OsdFailure::Store(StoreError::NotFound(_)) => {
            OsdFailure::Field(SECOND_COLLECTION)
        }
        other => other,
    })
}

/// CREATE COLLECTION.
pub(crate) fn create(run: &CommandRun<'_>, requested: ObjectId) -> Result<CommandResult, OsdFailure> {
    let id = make(run.device, requested, CollectionKind::Linked, run.now_ms)?;
    Ok(CommandResult { effect: ObjectEffect::Created, subjects: vec![id], ..CommandResult::of(id) })
}

/// Creates an empty collection. The caller has an exclusive lock of the partition, and of the id if
/// it is given.
pub(crate) fn make(
    device: &OsdDevice,
    requested: ObjectId,
    kind: CollectionKind,
    now_ms: u64,
) -> Result<ObjectId, OsdFailure> {
    let partition = partition_of(device, requested)?;
    if requested.object != 0 && requested.object < ObjectId::FIRST_ASSIGNABLE {
        return Err(OsdFailure::Field(failure::OBJECT));
    }
    if partition.population() >= partition.policy().objects {
        return Err(OsdFailure::Quota("object count"));
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
pub(crate) fn create_tracking(run: &CommandRun<'_>, create: &CreateTracking) -> Result<ObjectId, OsdRefusal> {
    let device = run.device;
    let _guards = run.steps.acquire(LockScope::Populate(create.object));
    run.steps.authority()?;
    if create.source != 0 {
        second(device, create.object.partition, create.source)?;
    } else if create.immediate {
        // There is nothing to track.
        return Err(OsdFailure::Field(SECOND_COLLECTION).into());
    }
    let scope = device.store.begin();
    let made = make(device, create.object, CollectionKind::Tracking, run.now_ms)?;
    scope.end()?;
    Ok(made)
}

/// Second part: adds the members of the source.
pub(crate) fn fill_tracking(
    run: &CommandRun<'_>,
    source: MemberSet,
    id: ObjectId,
    progress: &Cell<WalkProgress>,
) -> Result<(), OsdRefusal> {
    let device = run.device;
    walk::walk(run.steps, source, StepAccess::Change, progress, |member| {
        device.store.join(id, member.object, 0).map_err(OsdFailure::from)?;
        Ok(true)
    })?;
    partition_of(device, id)?.note_change();
    Ok(())
}

/// Removes a collection whose creation failed. Returns the error if that fails too.
pub(crate) fn unmake(steps: &StepControl<'_>, id: ObjectId) -> Result<(), OsdRefusal> {
    let device = steps.device;
    disband(steps, id)?;
    let _guards = steps.acquire(LockScope::Populate(id));
    device.store.remove(id).map_err(OsdFailure::from)?;
    device.cache.forget(id);
    partition_of(device, id)?.collection_removed();
    Ok(())
}

/// REMOVE COLLECTION. The members stay; with `force` their memberships end first.
pub(crate) fn remove(run: &CommandRun<'_>, id: ObjectId, force: bool) -> Result<CommandResult, OsdRefusal> {
    remove_steps(run.steps, id, force)?;
    Ok(CommandResult { effect: ObjectEffect::Removed, ..CommandResult::of(id) })
}

/// Removes a collection step by step; each step acquires its locks and checks the authority.
pub(crate) fn remove_steps(steps: &StepControl<'_>, id: ObjectId, force: bool) -> Result<(), OsdRefusal> {
    let device = steps.device;
    if kind(device, id)? == CollectionKind::Spontaneous {
        return Err(OsdFailure::Field(failure::OBJECT).into());
    }
    for _ in 0..ROUNDS_MAX {
        if force {
            disband(steps, id)?;
        }
        let _guards = steps.acquire(LockScope::Populate(id));
        steps.authority()?;
        if device.running.is_active(id) {
            return Err(OsdFailure::Field(failure::OBJECT).into());
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
        return Ok(());
    }
    Err(OsdFailure::NotEmpty.into())
}

/// Ends all memberships in a collection.
fn disband(steps: &StepControl<'_>, id: ObjectId) -> Result<(), OsdRefusal> {
    let device = steps.device;
    let pool = MemberSet::of(device, id)?;
    walk::walk(steps, pool, StepAccess::Change, &Cell::default(), |member| {
        end_membership(device, id, member)?;
        Ok(true)
    })?;
    partition_of(device, id)?.note_change();
    Ok(())
}

/// Ends one membership, and removes the attribute that named it. The caller has an exclusive lock
/// of the member.
fn end_membership(device: &OsdDevice, collection: ObjectId, member: ObjectId) -> Result<(), OsdFailure> {
    let store: &dyn ObjectStore = &*device.store;
    let slot = store.leave(collection, member.object)?;
    if let Some(number) = slot.filter(|&slot| slot != 0) {
        catalog::set(store, member, AttributeId::new(USER + page::COLLECTIONS, number), &[])?;
    }
    Ok(())
}

/// FLUSH COLLECTION. Its row flushes everything, whatever the requested scope.
pub(crate) fn flush(run: &CommandRun<'_>, id: ObjectId) -> Result<CommandResult, OsdFailure> {
    kind(run.device, id)?;
    Ok(CommandResult::of(id))
}
