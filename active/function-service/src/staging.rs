//! Output that becomes visible only if the function succeeds.
//!
//! Does: keep writes, appends, attributes and memberships of a run in memory, show them to the run
//! itself, and apply them at a commit.
//! Does not: make several objects change in one step.
//! Contract: without a commit no byte, attribute or member of an object changes. An object that the
//! run created exists at once, because its number is known at once; it is empty until the commit,
//! and removed if the run fails. A crash of the device during a commit can apply a part of it.
//! Truth: docs/adr/0069-function-service.md.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sealstone_osd::capability::Range;
use sealstone_osd::{AttributeId, ObjectId, ObjectType, Permissions};
use sealstone_osd_device::{GrantError, GrantedList, GrantedObject};

/// Bytes that each staged extent, attribute and membership counts besides its value.
const ENTRY_BYTES: u64 = 64;

/// The staged output of one run.
pub(crate) struct StagedOutput {
    objects: Mutex<Vec<Arc<StagedObject>>>,
    budget: Arc<StagingBudget>,
}

/// Bytes that may still be staged.
struct StagingBudget(AtomicU64);

impl StagingBudget {
    fn take(&self, bytes: u64) -> Result<(), GrantError> {
        let take = |left: u64| left.checked_sub(bytes);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(drop).map_err(|_| GrantError::TooLarge)
    }
}

impl StagedOutput {
    /// Returns an empty stage for at most this many bytes.
    pub(crate) fn new(bytes_max: u64) -> Arc<Self> {
        let budget = Arc::new(StagingBudget(AtomicU64::new(bytes_max)));
        Arc::new(Self { objects: Mutex::default(), budget })
    }

    /// Returns a handle whose changes are staged.
    pub(crate) fn wrap(self: &Arc<Self>, base: Arc<dyn GrantedObject>) -> Arc<dyn GrantedObject> {
        self.add(base, false)
    }

    fn add(self: &Arc<Self>, base: Arc<dyn GrantedObject>, created: bool) -> Arc<dyn GrantedObject> {
        let object = Arc::new(StagedObject {
            base,
            stage: Arc::downgrade(self),
            budget: Arc::clone(&self.budget),
            created,
            changes: Mutex::default(),
        });
        self.objects.lock().push(Arc::clone(&object));
        object
    }

    /// Applies all changes.
    ///
    /// # Errors
    /// The first error; changes before it are applied.
    pub(crate) fn commit(&self) -> Result<(), GrantError> {
        let objects = self.objects.lock();
        // A member must exist when it joins, and a collection be empty when it is removed.
        objects.iter().try_for_each(|object| object.commit_members())?;
        let (collections, others): (Vec<_>, Vec<_>) =
            objects.iter().partition(|object| object.kind() == ObjectType::Collection);
        others.into_iter().chain(collections).try_for_each(|object| object.commit())
    }

    /// Removes the objects that the run created, after a failed run.
    pub(crate) fn discard(&self) {
        for object in self.objects.lock().iter().filter(|object| object.created) {
            // Without the right REMOVE the object stays, and is empty.
            let _ = match object.kind() {
                ObjectType::Collection => object.base.remove_collection(true),
                _ => object.base.remove(),
            };
        }
    }
}

/// Changes of one object.
#[derive(Default)]
struct StagedChanges {
    /// Bytes by offset; extents do not overlap.
    extents: BTreeMap<u64, Vec<u8>>,
    /// Length of the object when bytes were first appended.
    appended_from: Option<u64>,
    /// Whether that length is unknown, for lack of the right READ. Then offsets of appended bytes
    /// count from the first one.
    has_unknown_length: bool,
    attributes: BTreeMap<(u32, u32), Vec<u8>>,
    /// Objects that become members of this collection, or cease to be.
    members: BTreeMap<ObjectId, StagedMembership>,
    is_removed: bool,
    /// Whether the memberships of a removed collection end first.
    has_forced_removal: bool,
}

/// A change of a collection.
struct StagedMembership {
    object: Arc<dyn GrantedObject>,
    joins: bool,
}

/// An object with its staged changes.
struct StagedObject {
    base: Arc<dyn GrantedObject>,
    stage: std::sync::Weak<StagedOutput>,
    budget: Arc<StagingBudget>,
    created: bool,
    changes: Mutex<StagedChanges>,
}

impl StagedChanges {
    /// Returns the end of the last extent.
    fn end(&self) -> u64 {
        self.extents.last_key_value().map_or(0, |(offset, bytes)| offset + bytes.len() as u64)
    }

    /// Puts bytes over those that are staged.
    fn put(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        // The extent that begins before and reaches into the new one.
        if let Some((&start, bytes)) = self.extents.range_mut(..offset).next_back() {
            let length = offset - start;
            if start + bytes.len() as u64 > end {
                let from = usize::try_from(end - start).unwrap_or(usize::MAX);
                let rest = bytes.split_off(from);
                bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
                self.extents.insert(end, rest);
            } else {
                bytes.truncate(bytes.len().min(usize::try_from(length).unwrap_or(usize::MAX)));
            }
        }
        let covered: Vec<u64> = self.extents.range(offset..end).map(|(start, _)| *start).collect();
        for start in covered {
            let Some(mut bytes) = self.extents.remove(&start) else { continue };
            if start + bytes.len() as u64 > end {
                let rest = bytes.split_off(usize::try_from(end - start).unwrap_or(usize::MAX));
                self.extents.insert(end, rest);
            }
        }
        // A sequential writer extends its extent, so that a commit needs few operations.
        if let Some((&start, bytes)) = self.extents.range_mut(..offset).next_back()
            && start + bytes.len() as u64 == offset
            && self.appended_from != Some(offset)
        {
            bytes.extend_from_slice(data);
        } else {
            self.extents.insert(offset, data.to_vec());
        }
    }

    /// Copies staged bytes over those that were read from `offset` on.
    fn overlay(&self, offset: u64, into: &mut [u8]) {
        let end = offset + into.len() as u64;
        let first = self.extents.range(..=offset).next_back().map_or(offset, |(start, _)| *start);
        for (&start, bytes) in self.extents.range(first..end) {
            let from = start.max(offset);
            let until = (start + bytes.len() as u64).min(end);
            if from < until {
                let part = |base: u64| (from - base) as usize..(until - base) as usize;
                into[part(offset)].copy_from_slice(&bytes[part(start)]);
            }
        }
    }
}

impl StagedObject {
    fn require(&self, right: Permissions) -> Result<(), GrantError> {
        if self.base.rights().contains(right) { Ok(()) } else { Err(GrantError::AccessDenied) }
    }

    fn commit(&self) -> Result<(), GrantError> {
        let mut changes = self.changes.lock();
        let changes = std::mem::take(&mut *changes);
        let appended_from = changes.appended_from.unwrap_or(u64::MAX);
        for (offset, bytes) in &changes.extents {
            if *offset < appended_from {
                self.base.write(*offset, bytes)?;
            } else {
                self.base.append(bytes)?;
            }
        }
        for ((page, number), value) in &changes.attributes {
            self.base.set_attribute(AttributeId::new(*page, *number), value)?;
        }
        match (changes.is_removed, self.kind()) {
            (false, _) => Ok(()),
            (true, ObjectType::Collection) => self.base.remove_collection(changes.has_forced_removal),
            (true, _) => self.base.remove(),
        }
    }

    /// Applies the changes of the members of this collection.
    fn commit_members(&self) -> Result<(), GrantError> {
        for member in std::mem::take(&mut self.changes.lock().members).into_values() {
            match member.joins {
                true => self.base.add_member(&*member.object)?,
                // The run may have added it before.
                false => match self.base.remove_member(&*member.object) {
                    Err(GrantError::NotFound) => {}
                    done => done?,
                },
            }
        }
        Ok(())
    }

    /// Stages a membership of an object in this collection.
    fn stage_member(&self, member: &dyn GrantedObject, joins: bool) -> Result<(), GrantError> {
        let member = staged(member)?;
        let fits = self.kind() == ObjectType::Collection && member.kind() == ObjectType::User;
        if !fits || self.object().partition != member.object().partition {
            return Err(GrantError::Invalid);
        }
        self.require(Permissions::SET_ATTR)?;
        member.require(Permissions::SET_ATTR)?;
        drop(member.present()?);
        let mut changes = self.present()?;
        self.budget.take(ENTRY_BYTES)?;
        let change = StagedMembership { object: Arc::clone(&member.base), joins };
        changes.members.insert(member.object(), change);
        Ok(())
    }

    /// Returns the changes of an object that the run has not removed.
    fn present(&self) -> Result<parking_lot::MutexGuard<'_, StagedChanges>, GrantError> {
        let changes = self.changes.lock();
        if changes.is_removed { Err(GrantError::NotFound) } else { Ok(changes) }
    }
}

/// Returns the staged object behind a handle; all handles of a run are staged, or none.
fn staged(object: &dyn GrantedObject) -> Result<&StagedObject, GrantError> {
    (object as &dyn Any).downcast_ref().ok_or(GrantError::Invalid)
}

impl GrantedObject for StagedObject {
    fn object(&self) -> ObjectId {
        self.base.object()
    }

    fn kind(&self) -> ObjectType {
        self.base.kind()
    }

    fn rights(&self) -> Permissions {
        self.base.rights()
    }

    fn range(&self) -> Range {
        self.base.range()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, GrantError> {
        let changes = self.present()?;
        let read = self.base.read(offset, into)?;
        let staged = usize::try_from(changes.end().saturating_sub(offset)).unwrap_or(usize::MAX);
        let length = read.max(staged.min(into.len()));
        into[read..length].fill(0);
        changes.overlay(offset, &mut into[..length]);
        Ok(length)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), GrantError> {
        self.require(Permissions::WRITE)?;
        offset.checked_add(data.len() as u64).ok_or(GrantError::TooLarge)?;
        if !self.range().permits(offset, data.len() as u64) {
            return Err(GrantError::AccessDenied);
        }
        let mut changes = self.present()?;
        // An offset cannot be related to bytes whose own offset is unknown.
        if changes.has_unknown_length {
            return Err(GrantError::Invalid);
        }
        if data.is_empty() {
            return Ok(());
        }
        // After an append the staged bytes have no gap, so that all of them can be appended.
        let end = changes.appended_from.map_or(offset, |base| changes.end().max(base).min(offset));
        let gap = offset - end;
        self.budget.take((data.len() as u64).saturating_add(gap).saturating_add(ENTRY_BYTES))?;
        if gap > 0 {
            changes.put(end, &vec![0; usize::try_from(gap).map_err(|_| GrantError::TooLarge)?]);
        }
        // The part that overwrites stored bytes, and the part that a commit appends.
        let stored = changes.appended_from.unwrap_or(u64::MAX).saturating_sub(offset);
        let (before, after) = data.split_at(data.len().min(usize::try_from(stored).unwrap_or(usize::MAX)));
        changes.put(offset, before);
        changes.put(offset + before.len() as u64, after);
        Ok(())
    }

    /// The returned offset is that of a run alone: bytes that others append meanwhile come first.
    /// Without the right READ it counts from the first byte that the run appended, and later writes
    /// are refused.
    fn append(&self, data: &[u8]) -> Result<u64, GrantError> {
        self.require(Permissions::APPEND)?;
        let mut changes = self.present()?;
        // An object that the run created was empty.
        let reads_length = self.rights().contains(Permissions::READ) && !self.created;
        let base = match changes.appended_from {
            Some(from) => from,
            None if reads_length => self.base.length()?.max(changes.end()),
            None => changes.end(),
        };
        let offset = changes.end().max(base);
        offset.checked_add(data.len() as u64).ok_or(GrantError::TooLarge)?;
        self.budget.take(data.len() as u64 + ENTRY_BYTES)?;
        changes.appended_from = Some(base);
        changes.has_unknown_length = !reads_length && !self.created;
        changes.put(offset, data);
        Ok(offset)
    }

    fn punch(&self, _: u64, _: u64) -> Result<u64, GrantError> {
        // It would move the bytes after it.
        Err(GrantError::Invalid)
    }

    /// The zeros are staged as bytes, so that they count as such.
    fn clear(&self, offset: u64, length: u64) -> Result<u64, GrantError> {
        self.require(Permissions::WRITE)?;
        offset.checked_add(length).ok_or(GrantError::Invalid)?;
        if !self.range().permits(offset, length) {
            return Err(GrantError::AccessDenied);
        }
        // Before memory is allocated for them.
        if length > self.budget.0.load(Ordering::Relaxed) {
            return Err(GrantError::TooLarge);
        }
        self.write(offset, &vec![0; usize::try_from(length).map_err(|_| GrantError::TooLarge)?])?;
        Ok(length)
    }

    fn length(&self) -> Result<u64, GrantError> {
        let changes = self.present()?;
        Ok(self.base.length()?.max(changes.end()))
    }

    fn attribute(&self, id: AttributeId) -> Result<Option<Vec<u8>>, GrantError> {
        let changes = self.present()?;
        match changes.attributes.get(&(id.page, id.number)) {
            Some(value) => {
                self.require(Permissions::GET_ATTR)?;
                Ok((!value.is_empty()).then(|| value.clone()))
            }
            None => self.base.attribute(id),
        }
    }

    fn set_attribute(&self, id: AttributeId, value: &[u8]) -> Result<(), GrantError> {
        self.require(Permissions::SET_ATTR)?;
        let mut changes = self.present()?;
        self.budget.take(value.len() as u64 + ENTRY_BYTES)?;
        changes.attributes.insert((id.page, id.number), value.to_vec());
        Ok(())
    }

    fn list(&self, from: u64, max: usize) -> Result<GrantedList, GrantError> {
        self.base.list(from, max)
    }

    fn create(&self) -> Result<Arc<dyn GrantedObject>, GrantError> {
        let stage = self.stage.upgrade().ok_or(GrantError::Io)?;
        self.budget.take(ENTRY_BYTES)?;
        Ok(stage.add(self.base.create()?, true))
    }

    fn remove(&self) -> Result<(), GrantError> {
        self.require(Permissions::REMOVE)?;
        self.present()?.is_removed = true;
        Ok(())
    }

    /// Bytes are durable after the commit only.
    fn flush(&self) -> Result<(), GrantError> {
        self.present().and_then(|_| self.require(Permissions::OBJ_MGMT))
    }

    fn create_collection(&self) -> Result<Arc<dyn GrantedObject>, GrantError> {
        let stage = self.stage.upgrade().ok_or(GrantError::Io)?;
        self.budget.take(ENTRY_BYTES)?;
        Ok(stage.add(self.base.create_collection()?, true))
    }

    /// Whether a collection is empty is known at the commit only.
    fn remove_collection(&self, force: bool) -> Result<(), GrantError> {
        if self.kind() != ObjectType::Collection {
            return Err(GrantError::Invalid);
        }
        self.require(Permissions::REMOVE)?;
        let mut changes = self.present()?;
        (changes.is_removed, changes.has_forced_removal) = (true, force);
        Ok(())
    }

    fn add_member(&self, member: &dyn GrantedObject) -> Result<(), GrantError> {
        self.stage_member(member, true)
    }

    fn remove_member(&self, member: &dyn GrantedObject) -> Result<(), GrantError> {
        // Without the rights to look, an object that is no member is not noticed.
        match self.is_member(member) {
            Ok(false) => Err(GrantError::NotFound),
            Ok(true) | Err(GrantError::AccessDenied) => self.stage_member(member, false),
            Err(error) => Err(error),
        }
    }

    fn is_member(&self, member: &dyn GrantedObject) -> Result<bool, GrantError> {
        let member = staged(member)?;
        let stored = self.base.is_member(&*member.base)?;
        drop(member.present()?);
        let changes = self.present()?;
        Ok(changes.members.get(&member.object()).map_or(stored, |change| change.joins))
    }
}

#[cfg(test)]
mod tests;
