//! CREATE, CREATE AND WRITE, REMOVE: the user objects of a partition.
//!
//! Does: choose ids, maintain counts and quotas, set the first attributes of new objects.
//! Does not: check permissions.
//! Contract: the caller has an exclusive lock of the partition, and of the object if it has an id.
//! A CREATE that fails leaves none of its objects behind.
//! Truth: docs/design/t10-osd.md 1.10, 2; 4.10 (policy access tag of new objects); trap T24.

use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_store::{ObjectStore, StoreError};

use super::data::{TransferSpan, partition_of, user_object, write};
use super::{CommandResult, CommandRun, ObjectEffect};
use crate::attributes::rows::{POLICY_ACCESS_TAG, USER, page};
use crate::catalog::{self, Partition, UNLIMITED};
use crate::device::OsdDevice;
use crate::failure::{self, OsdFailure};

/// Ids listed per step of a search for a free one.
const SEARCH_STEP: usize = 4096;

/// CREATE: `count` objects, or one with the requested id.
pub(crate) fn create(
    run: &CommandRun<'_>,
    requested: ObjectId,
    count: u16,
) -> Result<CommandResult, OsdFailure> {
    let created = make(run.device, run.now_ms, requested, count)?;
    let last = created.last().copied().unwrap_or(requested);
    Ok(CommandResult { subjects: created, effect: ObjectEffect::Created, ..CommandResult::of(last) })
}

/// CREATE AND WRITE.
pub(crate) fn create_and_write(
    run: &CommandRun<'_>,
    requested: ObjectId,
    spans: &[TransferSpan],
) -> Result<CommandResult, OsdFailure> {
    let created = make(run.device, run.now_ms, requested, 1)?;
    let id = created.last().copied().unwrap_or(requested);
    match write(run, id, spans) {
        Ok(done) => Ok(CommandResult { effect: ObjectEffect::DataModified, subjects: created, ..done }),
        Err(failure) => {
            unmake(run.device, &created);
            Err(failure)
        }
    }
}

/// Runs REMOVE.
pub(crate) fn remove(run: &CommandRun<'_>, id: ObjectId) -> Result<CommandResult, OsdFailure> {
    let freed = remove_object(run.device, id)?;
    Ok(CommandResult { capacity_change: -freed, effect: ObjectEffect::Removed, ..CommandResult::of(id) })
}

/// Removes a user object and returns the bytes that it used. The caller has exclusive locks of its
/// partition and of the object.
pub(crate) fn remove_object(device: &OsdDevice, id: ObjectId) -> Result<i64, OsdFailure> {
    let stat = user_object(device, id)?;
    let partition = partition_of(device, id)?;
    let created_ms = device.facts(id)?.created_ms;
    device.store.remove(id)?;
    partition.object_removed(stat.used_bytes);
    device.catalog.retire(created_ms);
    device.cache.forget(id);
    let _ = device.cache.take(id);
    Ok(i64::try_from(stat.used_bytes).unwrap_or(i64::MAX))
}

/// Creates `count` objects, or one with the requested id. The caller has an exclusive lock of the
/// partition.
pub(crate) fn make(
    device: &OsdDevice,
    now_ms: u64,
    requested: ObjectId,
    count: u16,
) -> Result<Vec<ObjectId>, OsdFailure> {
    let partition = partition_of(device, requested)?;
    if requested.object != 0 && requested.object < ObjectId::FIRST_ASSIGNABLE {
        return Err(OsdFailure::Field(failure::OBJECT));
    }
    if partition.population().saturating_add(u64::from(count)) > partition.policy().objects {
        return Err(OsdFailure::Quota("object count"));
    }
    let mut created = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let made = match requested.object {
            0 => make_anywhere(device, now_ms, &partition),
            _ => make_one(device, now_ms, &partition, requested).map(|()| requested),
        };
        match made {
            Ok(id) => created.push(id),
            Err(failure) => {
                unmake(device, &created);
                return Err(failure);
            }
        }
    }
    Ok(created)
}

/// Creates an object with the first free id.
fn make_anywhere(device: &OsdDevice, now_ms: u64, partition: &Partition) -> Result<ObjectId, OsdFailure> {
    let free = free_id(device, partition)?;
    make_one(device, now_ms, partition, free)?;
    Ok(free)
}

/// Returns a free object id. The caller has an exclusive lock of the partition.
pub(super) fn free_id(device: &OsdDevice, partition: &Partition) -> Result<ObjectId, OsdFailure> {
    let store = &*device.store;
    let next = ObjectId::new(partition.id, partition.next_object());
    match store.stat(next) {
        Err(StoreError::NotFound(_)) => Ok(next),
        _ => search(store, partition.id),
    }
}

/// Returns the smallest free id by a search from the start. Needed only after the last id was used.
fn search(store: &dyn ObjectStore, partition: u64) -> Result<ObjectId, OsdFailure> {
    let mut expected = ObjectId::new(partition, ObjectId::FIRST_ASSIGNABLE);
    loop {
        let found = store.list(expected, SEARCH_STEP)?;
        for (id, _) in &found {
            if *id != expected {
                return Ok(expected);
            }
            expected.object = expected.object.checked_add(1).ok_or(OsdFailure::Quota("object ids"))?;
        }
        if found.len() < SEARCH_STEP {
            return Ok(expected);
        }
    }
}

fn make_one(device: &OsdDevice, now_ms: u64, partition: &Partition, id: ObjectId) -> Result<(), OsdFailure> {
    device.store.create(id, ObjectType::User)?;
    partition.object_created(id.object);
    match first_attributes(device, now_ms, partition, id) {
        Ok(()) => Ok(()),
        Err(failure) => {
            unmake(device, &[id]);
            Err(failure)
        }
    }
}

fn first_attributes(
    device: &OsdDevice,
    now_ms: u64,
    partition: &Partition,
    id: ObjectId,
) -> Result<(), OsdFailure> {
    let store = &*device.store;
    let policy = partition.policy();
    let set = |page: u32, number: u32, value: &[u8]| {
        catalog::set(store, id, AttributeId::new(USER + page, number), value)
    };
    set(page::TIMESTAMPS, 1, &catalog::time(device.catalog.birth(now_ms)))?;
    if policy.user_object_tag != 0 {
        set(page::SECURITY, POLICY_ACCESS_TAG, &policy.user_object_tag.to_be_bytes())?;
    }
    if policy.max_length != UNLIMITED {
        set(page::QUOTAS, 1, &policy.max_length.to_be_bytes())?;
    }
    Ok(())
}

/// Removes the objects of a failed command.
pub(super) fn unmake(device: &OsdDevice, created: &[ObjectId]) {
    for &id in created {
        let used = device.store.stat(id).map_or(0, |stat| stat.used_bytes);
        if device.store.remove(id).is_ok()
            && let Some(partition) = device.catalog.partition(id.partition)
        {
            partition.object_removed(used);
        }
        device.cache.forget(id);
    }
}
