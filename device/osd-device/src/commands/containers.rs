//! CREATE PARTITION, REMOVE PARTITION, FORMAT OSD, and the flush commands.
//!
//! Does: partitions with their keys and inherited attributes; durability on request.
//! Does not: check permissions.
//! Contract: the caller has locked the whole device, except for the flush commands.
//! Truth: docs/design/t10-osd.md 1.10, 3.5 (inheritance), 4.7 (keys of a partition).

use sealstone_osd::{AttributeId, ObjectId, ObjectType};

use super::data::{partition_of, user_object};
use super::duplicates::undo_or_later;
use super::{CommandResult, CommandRun, ObjectEffect};
use crate::attributes::rows::{PARTITION, page};
use crate::catalog::{self, UNLIMITED, successor};
use crate::device::OsdDevice;
use crate::duplicates::{self, Unfinished};
use crate::failure::{self, OsdFailure};

/// Objects removed per step of REMOVE PARTITION and FORMAT OSD.
const REMOVE_STEP: usize = 1024;

/// Ids that a search for a free one tests.
const FREE_IDS_MAX: usize = 4096;

/// CREATE PARTITION.
pub(crate) fn create_partition(run: &CommandRun<'_>, requested: u64) -> Result<CommandResult, OsdFailure> {
    let device = run.device;
    if requested != 0 && requested < ObjectId::FIRST_ASSIGNABLE {
        return Err(OsdFailure::Field(failure::PARTITION));
    }
    if device.catalog.partition_count() >= device.catalog.root().partitions {
        return Err(OsdFailure::Quota("partition count"));
    }
    let id = match requested {
        0 => free_id(device)?,
        _ => requested,
    };
    if device.catalog.is_taken(id) {
        return Err(OsdFailure::Field(failure::PARTITION));
    }
    if device.stranded.contains(id) {
        return Err(OsdFailure::PartitionBusy);
    }
    if has_remnants(device, id)? {
        return Err(OsdFailure::Field(failure::PARTITION));
    }
    let object = ObjectId::of_partition(id);
    // Keys first: a stored partition without keys would be unusable. Keys without a partition are
    // dropped at the next start.
    device.guard.add_partition(id, run.signed)?;
    let made = device.store.create(object, ObjectType::Partition).map_err(OsdFailure::from).and_then(|()| {
        inherit(run, object).and_then(|()| Ok(device.catalog.add(&*device.store, id).map(drop)?))
    });
    if let Err(failure) = made {
        // Nothing may remain of a partition that was not acknowledged.
        undo_or_later(device, id);
        return Err(failure);
    }
    Ok(CommandResult { effect: ObjectEffect::Created, ..CommandResult::of(object) })
}

/// Returns an id without a partition and without leftover objects.
pub(super) fn free_id(device: &OsdDevice) -> Result<u64, OsdFailure> {
    let none = OsdFailure::Quota("partition ids");
    let Some(first) = device.catalog.free_partition_id() else { return Err(none) };
    for id in (first..).take(FREE_IDS_MAX) {
        if !device.catalog.is_taken(id) && !has_remnants(device, id)? {
            return Ok(id);
        }
    }
    Err(none)
}

/// Whether there are records of a partition that is not in the catalog, or of its objects. Damage
/// or manual changes can cause that; a new partition with this id would expose the objects. FORMAT
/// OSD removes them.
pub(super) fn has_remnants(device: &OsdDevice, id: u64) -> Result<bool, OsdFailure> {
    let found = device.store.list(ObjectId::of_partition(id), 1)?;
    Ok(found.first().is_some_and(|(object, _)| object.partition == id))
}

/// Sets the attributes that a new partition inherits from the root.
fn inherit(run: &CommandRun<'_>, id: ObjectId) -> Result<(), OsdFailure> {
    let store = &*run.device.store;
    let root = run.device.catalog.root();
    let set = |page: u32, number: u32, value: &[u8]| {
        catalog::set(store, id, AttributeId::new(PARTITION + page, number), value)
    };
    set(page::TIMESTAMPS, 1, &catalog::time(run.device.catalog.birth(run.now_ms)))?;
    set(page::SECURITY, 1, &[root.partition_method as u8])?;
    let quotas =
        [(1, root.policy.max_length), (0x10001, root.policy.capacity), (0x10002, root.policy.objects)];
    for (number, quota) in quotas {
        if quota != UNLIMITED {
            set(page::QUOTAS, number, &quota.to_be_bytes())?;
        }
    }
    if root.policy.collections_per_object != u32::MAX {
        set(page::QUOTAS, 0x10081, &root.policy.collections_per_object.to_be_bytes())?;
    }
    Ok(())
}

/// REMOVE PARTITION.
pub(crate) fn remove_partition(
    run: &CommandRun<'_>,
    id: u64,
    with_contents: bool,
) -> Result<CommandResult, OsdFailure> {
    let device = run.device;
    let object = ObjectId::of_partition(id);
    let partition = partition_of(device, object)?;
    if partition.population() > 0 && !with_contents {
        return Err(OsdFailure::NotEmpty);
    }
    duplicates::check_childless(&*device.store, object)?;
    // The source of an unfinished replacement is needed until that is done.
    for other in device.catalog.unfinished_ids() {
        if duplicates::unfinished(&*device.store, other)? == Some(Unfinished::Replaced(id)) {
            return Err(OsdFailure::Sequence);
        }
    }
    let freed = i64::try_from(partition.used()).unwrap_or(i64::MAX);
    // Durable before anything is removed: once a crash can show it as removed, its id has no
    // factory keys.
    device.guard.keys.change(run.signed, |keys| {
        keys.retire_partition(id);
        Ok(())
    })?;
    device.spill_accesses()?;
    remove_all(device, ObjectId::new(id, 1), Some(id))?;
    {
        let scope = device.store.begin();
        duplicates::forget(&*device.store, object, partition.policy().lineage)?;
        device.store.remove(object)?;
        scope.end()?;
    }
    device.catalog.retire(run.now_ms);
    device.catalog.remove(id);
    device.cache.clear();
    // Keys last, when no crash can restore the partition, which would then have no keys.
    device.flush()?;
    device.guard.keys.forget(|keys| keys.remove_partition(id))?;
    Ok(CommandResult { capacity_change: -freed, effect: ObjectEffect::Removed, ..CommandResult::of(object) })
}

/// FORMAT OSD: removes all partitions. The root keeps its Policy/Security page.
pub(crate) fn format(run: &CommandRun<'_>, capacity: u64) -> Result<CommandResult, OsdFailure> {
    let device = run.device;
    let total = device.store.space().total;
    if capacity > total {
        return Err(OsdFailure::Field(run.length_field()));
    }
    device.guard.keys.change(run.signed, |keys| {
        keys.retire_all();
        Ok(())
    })?;
    let formatting = device.begin_format();
    let used = i64::try_from(device.store.space().used).unwrap_or(i64::MAX);
    // Objects are removed before their partition. Objects that a crash leaves without one would
    // appear in the next partition with that id.
    for id in device.catalog.partition_ids(0, usize::MAX) {
        remove_all(device, ObjectId::new(id, 1), Some(id))?;
    }
    remove_all(device, ObjectId::of_partition(ObjectId::FIRST_ASSIGNABLE), None)?;
    device.catalog.clear();
    device.stranded.clear();
    device.cache.clear();
    device.reset_root_attributes()?;
    let usable = if capacity == 0 { total } else { capacity };
    catalog::store_formatted_capacity(&*device.store, usable)?;
    device.catalog.reload_root(&*device.store)?;
    device.catalog.retire(run.now_ms);
    // As in REMOVE PARTITION. The root key and the keys of partition zero stay.
    device.flush()?;
    device.guard.keys.forget(sealstone_seal::KeyHierarchy::format)?;
    drop(formatting);
    Ok(CommandResult {
        capacity_change: -used,
        effect: ObjectEffect::Nothing,
        ..CommandResult::of(ObjectId::ROOT)
    })
}

/// Removes every object from `from` on, of one partition or of all. User objects are removed first,
/// which ends their memberships: then the collections are empty, and nothing ever refers to a
/// removed object.
pub(super) fn remove_all(
    device: &OsdDevice,
    from: ObjectId,
    partition: Option<u64>,
) -> Result<(), OsdFailure> {
    remove_kind(device, from, partition, |kind| kind == ObjectType::User)?;
    remove_kind(device, from, partition, |_| true)
}

fn remove_kind(
    device: &OsdDevice,
    mut from: ObjectId,
    partition: Option<u64>,
    wanted: impl Fn(ObjectType) -> bool,
) -> Result<(), OsdFailure> {
    loop {
        let found = device.store.list(from, REMOVE_STEP)?;
        let Some(&(last, _)) = found.last() else { return Ok(()) };
        for (id, kind) in found {
            if partition.is_some_and(|partition| id.partition != partition) {
                return Ok(());
            }
            if wanted(kind) {
                device.store.remove(id)?;
            }
        }
        let Some(next) = successor(last) else { return Ok(()) };
        from = next;
    }
}

/// FLUSH of one object. Its row flushes everything, whatever the requested scope.
pub(crate) fn flush(run: &CommandRun<'_>, id: ObjectId) -> Result<CommandResult, OsdFailure> {
    user_object(run.device, id)?;
    Ok(CommandResult::of(id))
}

/// FLUSH PARTITION and FLUSH OSD.
pub(crate) fn flush_container(run: &CommandRun<'_>, id: ObjectId) -> Result<CommandResult, OsdFailure> {
    if id != ObjectId::ROOT {
        partition_of(run.device, id)?;
    }
    Ok(CommandResult::of(id))
}
