//! CREATE SNAPSHOT, CREATE CLONE, DETACH CLONE, REFRESH SNAPSHOT OR CLONE, RESTORE PARTITION FROM
//! SNAPSHOT.
//!
//! Does: duplicate partitions object by object without copying data; at start, complete or undo
//! what a crash interrupted.
//! Does not: check permissions.
//! Contract: the caller has claimed the partitions (`partition_locks`), so the source does not
//! change meanwhile. An unfinished partition is hidden, and a visible one is complete. A restore or
//! refresh replaces bytes and attributes, never authority: tags, floors and created times of the
//! target stay.
//! Costs: O(objects, chunks, attributes) index records in groups of bounded size; no data is read
//! or written.
//! Truth: docs/standards/device.md, duplicates.

use std::cmp::Ordering;
use std::collections::VecDeque;

use sealstone_osd::cdb::Duplicate;
use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_store::{ObjectStore, StoreError};

use super::containers::{free_id, has_remnants, remove_all};
use super::data::partition_of;
use super::{CommandResult, CommandRun, ObjectEffect};
use crate::attributes::rows::{self, COLLECTION, PARTITION, POLICY_ACCESS_TAG, SEALSTONE, USER, page};
use crate::catalog::{self, successor};
use crate::device::OsdDevice;
use crate::duplicates::{self, CHILDREN_MAX, DEPTH_MAX, DuplicateKind, Lineage, Unfinished};
use crate::failure::{self, OsdFailure};
use crate::locks::{LockGuards, LockScope};
use crate::partition_locks::PartitionUse;

/// Objects listed per step.
const STEP: usize = 1024;
/// Objects duplicated between two checks of the command's authority.
const OBJECTS_PER_STEP: u64 = 64;
/// Byte of the CDB: DUPLICATION METHOD.
pub(super) const METHOD_FIELD: u16 = 14;
/// The only supported method: space efficient.
const SPACE_EFFICIENT: u8 = 0x01;

/// Page of the collection memberships of an object.
pub(super) const MEMBERSHIPS: u32 = USER + 4;
/// Page of a collection with its policy access tag.
const COLLECTION_TAG: u32 = COLLECTION + page::SECURITY;

/// Counts of a partition for the catalogue.
#[derive(Clone, Copy, Debug, Default)]
struct PartitionTotals {
    objects: u64,
    collections: u64,
    used: u64,
    next_object: u64,
}

impl PartitionTotals {
    fn count(&mut self, store: &dyn ObjectStore, id: ObjectId) -> Result<(), StoreError> {
        self.objects += 1;
        self.used = self.used.saturating_add(store.stat(id)?.used_bytes);
        self.next_object = id.object.saturating_add(1);
        Ok(())
    }
}

/// Returns the method for a requested code: the only one, for "default", "space efficient",
/// "faster" and "do not care".
pub(super) fn method(requested: u8) -> Result<u8, OsdFailure> {
    match requested {
        0x00 | SPACE_EFFICIENT | 0xFD | 0xFF => Ok(SPACE_EFFICIENT),
        _ => Err(OsdFailure::Field(METHOD_FIELD)),
    }
}

/// CREATE SNAPSHOT and CREATE CLONE.
pub(crate) fn create(
    run: &CommandRun<'_>,
    make: &Duplicate,
    kind: DuplicateKind,
) -> Result<CommandResult, OsdFailure> {
    let device = run.device;
    device.spill_accesses()?;
    let target = begin(run, make, kind)?;
    let made = fill(run, make.source, target.partition)
        .and_then(|totals| finish(run, make.source, target, kind, totals));
    if let Err(failure) = made {
        undo_or_later(device, target.partition);
        return Err(failure);
    }
    Ok(CommandResult { effect: ObjectEffect::Created, ..CommandResult::of(target) })
}

/// Checks the request, and creates a hidden partition.
fn begin(run: &CommandRun<'_>, make: &Duplicate, kind: DuplicateKind) -> Result<ObjectId, OsdFailure> {
    let device = run.device;
    let store = &*device.store;
    let method = method(make.method)?;
    let _whole = device.locks.acquire(LockScope::Whole);
    let parent = device.catalog.partition(make.source).ok_or(OsdFailure::Field(failure::OBJECT))?;
    let ancestry = parent.policy().lineage;
    if kind == DuplicateKind::Snapshot && ancestry.kind == DuplicateKind::Snapshot {
        return Err(OsdFailure::Field(failure::OBJECT));
    }
    if make.partition != 0 && make.partition < ObjectId::FIRST_ASSIGNABLE
        || device.catalog.is_taken(make.partition)
    {
        return Err(OsdFailure::Field(failure::PARTITION));
    }
    if device.catalog.partition_count() >= device.catalog.root().partitions {
        return Err(OsdFailure::Quota("partition count"));
    }
    let source = ObjectId::of_partition(make.source);
    if ancestry.depth >= DEPTH_MAX {
        return Err(OsdFailure::Quota("branch depth"));
    }
    if duplicates::children(store, source, kind)?.len() >= CHILDREN_MAX {
        return Err(OsdFailure::Quota("duplicates of one partition"));
    }
    let id = match make.partition {
        0 => free_id(device)?,
        requested if device.stranded.contains(requested) => return Err(OsdFailure::PartitionBusy),
        requested if has_remnants(device, requested)? => return Err(OsdFailure::Field(failure::PARTITION)),
        requested => requested,
    };
    let target = ObjectId::of_partition(id);
    let lineage = Lineage { kind, source: make.source, depth: ancestry.depth + 1 };
    // Keys first, as in CREATE PARTITION.
    device.guard.add_partition(id, run.signed)?;
    let made = {
        let scope = store.begin();
        store
            .create(target, ObjectType::Partition)
            .and_then(|()| duplicates::mark(store, id, Some(Unfinished::Made)))
            .and_then(|()| scope.end())
    };
    let made = made.map_err(OsdFailure::from).and_then(|()| {
        inherit(device, source, target, run.now_ms)?;
        lineage.write(store, target, method, run.now_ms)?;
        Ok(device.catalog.add(store, id).map(drop)?)
    });
    if let Err(failure) = made {
        undo_or_later(device, id);
        return Err(failure);
    }
    Ok(target)
}

/// Copies the partition attributes of the source, with quotas and floor but without keys. The
/// duplicate shares stored data, so it keeps the same digest profile.
fn inherit(device: &OsdDevice, source: ObjectId, target: ObjectId, now_ms: u64) -> Result<(), OsdFailure> {
    device.store.set_profile(target.partition, device.store.profile(source.partition))?;
    for (id, value) in device.store.attributes(source, None)? {
        let offset = id.page.wrapping_sub(PARTITION);
        let kept = match offset {
            page::TIMESTAMPS => id.number == rows::BYPASS,
            page::SECURITY => !(0x7FFF..=0x800F).contains(&id.number),
            page::ERROR_RECOVERY | rows::DUPLICATES => false,
            _ => id.page != rows::INTERNAL,
        };
        if kept {
            device.store.set_attribute(target, id, &value)?;
        }
    }
    let created = AttributeId::new(PARTITION + page::TIMESTAMPS, 1);
    let birth = device.catalog.birth(now_ms);
    Ok(catalog::set(&*device.store, target, created, &catalog::time(birth))?)
}

/// Fills a hidden partition with everything that the source has. The authority ends with the key of
/// the command: after SET KEY has answered, nothing more is duplicated.
fn fill(run: &CommandRun<'_>, source: u64, target: u64) -> Result<PartitionTotals, OsdFailure> {
    let device = run.device;
    let mut totals = PartitionTotals::default();
    let mut objects = ObjectCursor::new(&*device.store, source);
    let birth = device.catalog.birth(run.now_ms);
    let mut step = None;
    while let Some(from) = objects.next()? {
        if totals.objects % OBJECTS_PER_STEP == 0 {
            drop(step.take());
            step = Some(next_step(run, source)?);
        }
        let to = ObjectId::new(target, from.object);
        duplicate(&*device.store, from, to, birth)?;
        totals.count(&*device.store, to)?;
    }
    drop(step);
    let _step = next_step(run, source)?;
    duplicate_collections(device, source, target, birth, true, &mut totals)?;
    Ok(totals)
}

/// Takes the lock that SET KEY waits for, and checks under it that the command may continue.
fn next_step<'r>(run: &CommandRun<'r>, source: u64) -> Result<LockGuards<'r>, OsdFailure> {
    let step = run.device.locks.acquire(LockScope::Look(ObjectId::of_partition(source)));
    run.steps.authority().map_err(|_| OsdFailure::KeysChanged)?;
    Ok(step)
}

/// Makes the collections of `target` those of `source`, with their members, which exist already.
/// Collections that `target` already has are empty.
fn duplicate_collections(
    device: &OsdDevice,
    source: u64,
    target: u64,
    birth_ms: u64,
    tags: bool,
    totals: &mut PartitionTotals,
) -> Result<(), OsdFailure> {
    let store = &*device.store;
    let mut first = 1;
    loop {
        let found = collections(store, source, first)?;
        let Some(next) = found.last().and_then(|last| last.object.checked_add(1)) else { return Ok(()) };
        for from in found {
            let to = ObjectId::new(target, from.object);
            duplicate_collection(store, from, to, birth_ms, tags)?;
            totals.collections += 1;
            totals.next_object = totals.next_object.max(to.object.saturating_add(1));
        }
        first = next;
    }
}

/// Empties the collections of a partition, and removes those that `stays` rejects.
fn clear_collections(
    device: &OsdDevice,
    partition: u64,
    stays: impl Fn(u64) -> Result<bool, StoreError>,
) -> Result<(), OsdFailure> {
    let store = &*device.store;
    let mut first = 1;
    loop {
        let found = collections(store, partition, first)?;
        let Some(next) = found.last().and_then(|last| last.object.checked_add(1)) else { return Ok(()) };
        for id in found {
            loop {
                let members = store.members(id, 0, STEP)?;
                if members.is_empty() {
                    break;
                }
                for (member, _) in members {
                    store.leave(id, member)?;
                }
            }
            if !stays(id.object)? {
                device.catalog.retire(device.facts(id)?.created_ms);
                store.remove(id)?;
            }
        }
        first = next;
    }
}

/// Whether the object exists and is a collection.
fn is_collection(store: &dyn ObjectStore, id: ObjectId) -> Result<bool, StoreError> {
    match store.stat(id) {
        Ok(stat) => Ok(stat.kind == ObjectType::Collection),
        Err(StoreError::NotFound(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns some collections of a partition, from a number on.
fn collections(store: &dyn ObjectStore, partition: u64, first: u64) -> Result<Vec<ObjectId>, StoreError> {
    let mut found = store.collections(ObjectId::new(partition, first), STEP)?;
    found.retain(|id| id.partition == partition && id.object != 0);
    Ok(found)
}

fn duplicate_collection(
    store: &dyn ObjectStore,
    from: ObjectId,
    to: ObjectId,
    birth_ms: u64,
    tags: bool,
) -> Result<(), StoreError> {
    let born = AttributeId::new(COLLECTION + page::TIMESTAMPS, 1);
    if is_collection(store, to)? {
        replace_attributes(store, from, to, |id| {
            id == born || [COLLECTION_TAG, rows::INTERNAL].contains(&id.page)
        })?;
    } else {
        let scope = store.begin();
        store.create(to, ObjectType::Collection)?;
        // An old tag must not reappear. In a new partition the tag is that of the source.
        let wanted = |id: AttributeId| id.page != rows::INTERNAL && (tags || id.page != COLLECTION_TAG);
        copy_attributes(store, from, to, wanted)?;
        catalog::set(store, to, born, &catalog::time(birth_ms))?;
        scope.end()?;
    }
    let mut first = 0;
    loop {
        let members = store.members(from, first, STEP)?;
        let Some(next) = members.last().and_then(|(last, _)| last.checked_add(1)) else { return Ok(()) };
        for (member, slot) in members {
            store.join(to, member, slot)?;
        }
        first = next;
    }
}

/// Creates an object that shares the bytes of another one and has its attributes, including tag and
/// floor.
pub(super) fn duplicate(
    store: &dyn ObjectStore,
    from: ObjectId,
    to: ObjectId,
    birth_ms: u64,
) -> Result<(), StoreError> {
    let scope = store.begin();
    store.create(to, ObjectType::User)?;
    store.share(from, to)?;
    copy_attributes(store, from, to, |id| !is_own(id))?;
    catalog::set(store, to, AttributeId::new(USER + page::TIMESTAMPS, 1), &catalog::time(birth_ms))?;
    scope.end()
}

/// Whether an attribute is specific to each object: created time, damage, internal state.
pub(super) fn is_own(id: AttributeId) -> bool {
    id == AttributeId::new(USER + page::TIMESTAMPS, 1)
        || [USER + page::ERROR_RECOVERY, rows::INTERNAL].contains(&id.page)
}

/// Whether an attribute controls access.
pub(super) fn is_authority(id: AttributeId) -> bool {
    [USER + page::SECURITY, USER + SEALSTONE].contains(&id.page)
}

/// Copies the attributes that `wanted` selects.
pub(super) fn copy_attributes(
    store: &dyn ObjectStore,
    from: ObjectId,
    to: ObjectId,
    wanted: impl Fn(AttributeId) -> bool,
) -> Result<(), StoreError> {
    for (id, value) in store.attributes(from, None)? {
        if wanted(id) {
            store.set_attribute(to, id, &value)?;
        }
    }
    Ok(())
}

/// Completes a new partition: links it to its source and makes it visible.
fn finish(
    run: &CommandRun<'_>,
    source: u64,
    target: ObjectId,
    kind: DuplicateKind,
    totals: PartitionTotals,
) -> Result<(), OsdFailure> {
    let device = run.device;
    let store = &*device.store;
    let _whole = device.locks.acquire(LockScope::Whole);
    run.steps.authority().map_err(|_| OsdFailure::KeysChanged)?;
    {
        let scope = store.begin();
        duplicates::adopt(store, ObjectId::of_partition(source), kind, target.partition)?;
        duplicates::mark(store, target.partition, None)?;
        scope.end()?;
    }
    publish(device, target.partition, totals)
}

fn publish(device: &OsdDevice, id: u64, totals: PartitionTotals) -> Result<(), OsdFailure> {
    device.catalog.reload_partition(&*device.store, id)?;
    if let Some(partition) = device.catalog.publish(id).or_else(|| device.catalog.partition(id)) {
        partition.recount(totals.objects, totals.collections, totals.used, totals.next_object);
    }
    device.cache.clear();
    Ok(())
}

/// Undoes a hidden partition. If that fails, it is retried later, at the latest at the next start.
pub(super) fn undo_or_later(device: &OsdDevice, id: u64) {
    if let Err(error) = undo(device, ObjectId::of_partition(id)) {
        tracing::error!(%error, partition = id, "cannot undo an interrupted partition; retrying later");
        device.stranded.add(id);
    }
}

/// Removes all traces of an unfinished partition.
fn undo(device: &OsdDevice, target: ObjectId) -> Result<(), OsdFailure> {
    clear_collections(device, target.partition, |_| Ok(false))?;
    remove_all(device, ObjectId::new(target.partition, 1), Some(target.partition))?;
    // The source may list it already.
    match Lineage::read(&*device.store, target) {
        Ok(lineage) => duplicates::forget(&*device.store, target, lineage)?,
        Err(StoreError::NotFound(_)) => {}
        Err(error) => return Err(error.into()),
    }
    match device.store.remove(target) {
        Ok(()) | Err(StoreError::NotFound(_)) => {}
        Err(error) => return Err(error.into()),
    }
    device.catalog.remove(target.partition);
    device.guard.keys.forget(|keys| keys.forget_partition(target.partition))
}

/// DETACH CLONE: makes the clone an original. Its source can then be removed.
pub(crate) fn detach(run: &CommandRun<'_>, detach: &Duplicate) -> Result<CommandResult, OsdFailure> {
    let device = run.device;
    let object = ObjectId::of_partition(detach.partition);
    let lineage = partition_of(device, object)?.policy().lineage;
    if lineage.kind != DuplicateKind::Clone {
        return Err(OsdFailure::Field(failure::PARTITION));
    }
    check_source(detach, lineage)?;
    duplicates::forget(&*device.store, object, lineage)?;
    duplicates::detach(&*device.store, object)?;
    device.catalog.reload_partition(&*device.store, object.partition)?;
    Ok(CommandResult::of(object))
}

/// Checks that the named source, if any, is the actual one.
fn check_source(named: &Duplicate, lineage: Lineage) -> Result<(), OsdFailure> {
    if named.source != 0 && named.source != lineage.source {
        return Err(OsdFailure::Field(failure::OBJECT));
    }
    Ok(())
}

/// REFRESH SNAPSHOT OR CLONE: replaces its contents by the current ones of its source.
pub(crate) fn refresh(run: &CommandRun<'_>, refresh: &Duplicate) -> Result<CommandResult, OsdFailure> {
    let lineage = partition_of(run.device, ObjectId::of_partition(refresh.partition))?.policy().lineage;
    if lineage.kind == DuplicateKind::Original {
        return Err(OsdFailure::Field(failure::PARTITION));
    }
    check_source(refresh, lineage)?;
    replace(run, refresh, lineage.source)
}

/// RESTORE PARTITION FROM SNAPSHOT: replaces the contents by those of a snapshot.
pub(crate) fn restore(run: &CommandRun<'_>, restore: &Duplicate) -> Result<CommandResult, OsdFailure> {
    partition_of(run.device, ObjectId::of_partition(restore.partition))?;
    let snapshot = run.device.catalog.partition(restore.source).ok_or(OsdFailure::Field(failure::OBJECT))?;
    let lineage = snapshot.policy().lineage;
    if lineage.kind != DuplicateKind::Snapshot || lineage.source != restore.partition {
        return Err(OsdFailure::Field(failure::OBJECT));
    }
    replace(run, restore, restore.source)
}

/// Replaces the contents of a partition, which is hidden meanwhile.
fn replace(run: &CommandRun<'_>, what: &Duplicate, source: u64) -> Result<CommandResult, OsdFailure> {
    let device = run.device;
    method(what.method)?;
    if run.claim != PartitionUse::Duplicate(source, Some(what.partition)) {
        // It was detached while the command waited.
        return Err(OsdFailure::PartitionBusy);
    }
    let object = ObjectId::of_partition(what.partition);
    let target = partition_of(device, object)?;
    let parent = device.catalog.partition(source).ok_or(OsdFailure::Field(failure::OBJECT))?;
    let quotas = target.policy();
    if parent.used() > quotas.capacity || parent.objects() > quotas.objects {
        return Err(OsdFailure::Quota("partition capacity or object count"));
    }
    device.spill_accesses()?;
    let before = target.used();
    {
        // The point of no return: from here on the device completes the replacement, also after a
        // crash. So the authority is checked once more, under the lock that SET KEY waits for.
        let _step = next_step(run, source)?;
        duplicates::mark(&*device.store, what.partition, Some(Unfinished::Replaced(source)))?;
        device.catalog.hide(what.partition);
    }
    let totals = replace_all(device, source, what.partition, run.now_ms).inspect_err(|error| {
        tracing::error!(%error, partition = what.partition, "cannot complete the replacement of a partition; retrying later");
        device.stranded.add(what.partition);
    })?;
    let change = i64::try_from(totals.used)
        .unwrap_or(i64::MAX)
        .saturating_sub(i64::try_from(before).unwrap_or(i64::MAX));
    Ok(CommandResult { capacity_change: change, ..CommandResult::of(object) })
}

/// Makes the contents of `target` those of `source`, and makes it visible. Idempotent, so it can be
/// repeated after a crash.
fn replace_all(
    device: &OsdDevice,
    source: u64,
    target: u64,
    now_ms: u64,
) -> Result<PartitionTotals, OsdFailure> {
    let store = &*device.store;
    // A missing source is not an empty one.
    if store.stat(ObjectId::of_partition(source))?.kind != ObjectType::Partition {
        return Err(OsdFailure::Field(failure::OBJECT));
    }
    // First, so that an id that becomes a user object's again is free.
    clear_collections(device, target, |id| is_collection(store, ObjectId::new(source, id)))?;
    let (mut theirs, mut ours) = (ObjectCursor::new(store, source), ObjectCursor::new(store, target));
    let mut totals = PartitionTotals::default();
    loop {
        let (from, to) = (theirs.peek()?, ours.peek()?);
        let order = match (from, to) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(from), Some(to)) => from.object.cmp(&to.object),
        };
        let id = ObjectId::new(target, from.filter(|_| order.is_le()).or(to).map_or(0, |id| id.object));
        if order.is_le() {
            let from = ObjectId::new(source, id.object);
            if order.is_lt() {
                create_from(device, from, id, now_ms)?
            } else {
                update_from(store, from, id)?
            }
            totals.count(store, id)?;
            theirs.next()?;
        } else {
            device.catalog.retire(device.facts(id)?.created_ms);
            store.remove(id)?;
        }
        if order.is_ge() {
            ours.next()?;
        }
    }
    duplicate_collections(device, source, target, device.catalog.birth(now_ms), false, &mut totals)?;
    {
        let scope = store.begin();
        duplicates::set_replaced(store, ObjectId::of_partition(target), now_ms)?;
        duplicates::mark(store, target, None)?;
        scope.end()?;
    }
    publish(device, target, totals)?;
    Ok(totals)
}

/// Creates an object that the target does not have. It is a new object, which no old capability
/// matches.
fn create_from(device: &OsdDevice, from: ObjectId, to: ObjectId, now_ms: u64) -> Result<(), OsdFailure> {
    let store = &*device.store;
    let scope = store.begin();
    store.create(to, ObjectType::User)?;
    let copied = copy_into(device, from, to, now_ms);
    if copied.is_err() {
        // A partial object would be taken for an existing one by the next attempt.
        store.remove(to)?;
    }
    scope.end()?;
    copied
}

fn copy_into(device: &OsdDevice, from: ObjectId, to: ObjectId, now_ms: u64) -> Result<(), OsdFailure> {
    let store = &*device.store;
    store.share(from, to)?;
    copy_attributes(store, from, to, |id| !is_own(id) && !is_authority(id))?;
    // A floor protects, so it is copied. The tag is that of new objects.
    copy_attributes(store, from, to, |id| id.page == USER + SEALSTONE)?;
    let tag = catalog::number(store, ObjectId::of_partition(to.partition), USER_OBJECT_TAG_OF_PARTITION, 0)?;
    if tag != 0 {
        let tag = u32::try_from(tag).unwrap_or(u32::MAX);
        let attribute = AttributeId::new(USER + page::SECURITY, POLICY_ACCESS_TAG);
        catalog::set(store, to, attribute, &tag.to_be_bytes())?;
    }
    let birth = device.catalog.birth(now_ms);
    Ok(catalog::set(store, to, AttributeId::new(USER + page::TIMESTAMPS, 1), &catalog::time(birth))?)
}

const USER_OBJECT_TAG_OF_PARTITION: AttributeId =
    AttributeId::new(PARTITION + page::SECURITY, rows::USER_OBJECT_TAG);

/// Updates an object that exists in both: bytes and attributes become those of the source; access
/// control does not change.
fn update_from(store: &dyn ObjectStore, from: ObjectId, to: ObjectId) -> Result<(), OsdFailure> {
    let scope = store.begin();
    if differ(store, from, to)? {
        store.share(from, to)?;
    }
    replace_attributes(store, from, to, |id| is_own(id) || is_authority(id))?;
    Ok(scope.end()?)
}

/// Whether two objects do not share all of their blocks.
fn differ(store: &dyn ObjectStore, one: ObjectId, other: ObjectId) -> Result<bool, StoreError> {
    let mut next = Some(0);
    while let Some(offset) = next {
        let found = store.compare(one, other, offset, 1)?;
        if !found.extents.is_empty() {
            return Ok(true);
        }
        next = found.next;
    }
    Ok(false)
}

/// Replaces the attributes by those of another object, except those that `stays` selects.
fn replace_attributes(
    store: &dyn ObjectStore,
    from: ObjectId,
    to: ObjectId,
    stays: impl Fn(AttributeId) -> bool,
) -> Result<(), StoreError> {
    let wanted: Vec<_> = store.attributes(from, None)?.into_iter().filter(|(id, _)| !stays(*id)).collect();
    let there: Vec<_> = store.attributes(to, None)?.into_iter().filter(|(id, _)| !stays(*id)).collect();
    for (id, _) in &there {
        if wanted.binary_search_by_key(id, |(id, _)| *id).is_err() {
            store.set_attribute(to, *id, &[])?;
        }
    }
    for (id, value) in wanted {
        let same = there.binary_search_by_key(&id, |(id, _)| *id).is_ok_and(|at| there[at].1 == value);
        if !same {
            store.set_attribute(to, id, &value)?;
        }
    }
    Ok(())
}

/// Iterator over the user objects of a partition, in steps.
struct ObjectCursor<'a> {
    store: &'a dyn ObjectStore,
    partition: u64,
    from: Option<ObjectId>,
    found: VecDeque<ObjectId>,
}

impl<'a> ObjectCursor<'a> {
    fn new(store: &'a dyn ObjectStore, partition: u64) -> Self {
        Self { store, partition, from: Some(ObjectId::new(partition, 1)), found: VecDeque::new() }
    }

    fn peek(&mut self) -> Result<Option<ObjectId>, StoreError> {
        while self.found.is_empty()
            && let Some(from) = self.from
        {
            let found = self.store.list(from, STEP)?;
            self.from = match found.last() {
                Some(&(last, _)) if found.len() == STEP && last.partition == self.partition => {
                    successor(last)
                }
                _ => None,
            };
            let inside = found
                .into_iter()
                .filter(|(id, kind)| id.partition == self.partition && *kind == ObjectType::User);
            self.found.extend(inside.map(|(id, _)| id));
        }
        Ok(self.found.front().copied())
    }

    fn next(&mut self) -> Result<Option<ObjectId>, StoreError> {
        let next = self.peek()?;
        self.found.pop_front();
        Ok(next)
    }
}

/// At start: completes or undoes what a crash interrupted. If that fails, the partition stays
/// hidden and [`finish_stranded`] retries.
pub(crate) fn finish_all(device: &OsdDevice) {
    for id in device.catalog.unfinished_ids() {
        if !finish_one(device, id) {
            device.stranded.add(id);
        }
    }
}

/// Retries one failed duplication, if it is due. Returns whether it tried.
pub(crate) fn finish_stranded(device: &OsdDevice) -> bool {
    let Some(id) = device.stranded.due(device.clock.machine_ms()) else { return false };
    let source = match duplicates::unfinished(&*device.store, id) {
        Ok(Some(Unfinished::Replaced(source))) => source,
        _ => id,
    };
    // The same locks as those of the command.
    let Ok(_contents) = device.partition_locks.acquire(PartitionUse::Duplicate(source, Some(id))) else {
        return false;
    };
    // FORMAT OSD may have intervened, and the id may belong to another partition.
    if !device.stranded.contains(id) {
        return false;
    }
    if device.catalog.partition(id).is_some() || finish_one(device, id) {
        device.stranded.remove(id);
    }
    true
}

fn finish_one(device: &OsdDevice, id: u64) -> bool {
    let now_ms = device.clock.machine_ms();
    let done = match duplicates::unfinished(&*device.store, id) {
        Ok(Some(Unfinished::Replaced(source))) => replace_all(device, source, id, now_ms).map(drop),
        Ok(Some(Unfinished::Made) | None) | Err(StoreError::NotFound(_)) => {
            undo(device, ObjectId::of_partition(id))
        }
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(()) => tracing::info!(partition = id, "interrupted duplication completed or undone"),
        Err(ref error) => {
            tracing::error!(%error, partition = id, "cannot complete or undo an interrupted duplication; retrying later");
        }
    }
    done.is_ok()
}
