//! Members of collections in the disk store, as three kinds of index records.
//!
//! Does: keeps the record of a membership under its collection and under its member, and the number
//! of members; all records of an operation enter the open group together.
//! Contract: the records of a membership are changed under the locks of both objects. Locks of
//! several objects are taken in the order of the stripes, to prevent deadlock.
//! Source of truth: docs/design/store.md, "Memberships".

use parking_lot::RwLockWriteGuard;
use sealstone_osd::{ObjectId, ObjectType};

use super::index_space::{PageDemand, ReserveClass};
use super::record::{
    CorruptRecord, Key, RecordValue, all_collections, collection_key, member_key, membership_key, object_key,
    object_of, sub_of,
};
use super::{DiskStore, list_to_gap};
use crate::memberships::{MAX_MEMBERSHIPS, Memberships};
use crate::{MAX_LIST, StoreError};

/// Index changes that belong together.
type Changes = Vec<(Key, Option<RecordValue>)>;

/// Change of a member count by one.
#[derive(Clone, Copy)]
enum CountStep {
    Up,
    Down,
}

fn damaged(object: ObjectId) -> StoreError {
    StoreError::IndexDamaged { object }
}

/// Returns the slot in a membership's record.
fn slot_of(object: ObjectId, value: Result<RecordValue, CorruptRecord>) -> Result<u32, StoreError> {
    match value {
        Ok(RecordValue::Membership(slot)) => Ok(slot),
        Ok(_) | Err(CorruptRecord) => Err(damaged(object)),
    }
}

impl DiskStore {
    /// Locks several objects for change.
    fn lock_all(&self, ids: impl Iterator<Item = ObjectId>) -> Vec<RwLockWriteGuard<'_, ()>> {
        let mut stripes: Vec<usize> = ids.map(|id| self.lock_number(id)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().map(|stripe| self.locks[stripe].write()).collect()
    }

    /// Returns the number of members of a collection. The caller holds its lock.
    fn count(&self, collection: ObjectId) -> Result<u64, StoreError> {
        match self.index.get(&collection_key(collection))? {
            Some(Ok(RecordValue::Count(count))) => Ok(count),
            Some(Ok(_) | Err(CorruptRecord)) => Err(damaged(collection)),
            None if self.record(collection)?.kind == ObjectType::Collection => Err(damaged(collection)),
            None => Err(StoreError::NotFound(collection)),
        }
    }

    fn count_change(
        &self,
        collection: ObjectId,
        step: CountStep,
    ) -> Result<(Key, Option<RecordValue>), StoreError> {
        let count = self.count(collection)?;
        let count = match step {
            CountStep::Up => count.checked_add(1),
            CountStep::Down => count.checked_sub(1),
        };
        let count = count.ok_or_else(|| damaged(collection))?;
        Ok((collection_key(collection), Some(RecordValue::Count(count))))
    }

    /// Returns the member's record after it joined or left a collection.
    fn member_change(
        &self,
        member: ObjectId,
        step: CountStep,
    ) -> Result<(Key, Option<RecordValue>), StoreError> {
        let mut record = self.record(member)?;
        if record.kind != ObjectType::User {
            return Err(StoreError::NotFound(member));
        }
        record.memberships = match step {
            CountStep::Up if usize::from(record.memberships) >= MAX_MEMBERSHIPS => {
                return Err(StoreError::TooLarge {
                    what: "collections of one object",
                    limit: MAX_MEMBERSHIPS as u64,
                });
            }
            CountStep::Up => record.memberships + 1,
            CountStep::Down => record.memberships.checked_sub(1).ok_or_else(|| damaged(member))?,
        };
        Ok((object_key(member), Some(RecordValue::Object(record))))
    }

    fn slot(&self, collection: ObjectId, member: u64) -> Result<Option<u32>, StoreError> {
        let found = self.index.get(&member_key(collection, member))?;
        found.map(|value| slot_of(collection, value)).transpose()
    }

    /// Returns the memberships of an object that exists or whose record is damaged. The caller
    /// holds its lock.
    fn memberships_of(&self, member: ObjectId) -> Result<Vec<(u64, u32)>, StoreError> {
        let expected = match self.record(member) {
            Ok(record) if record.memberships == 0 && !self.salvage => return Ok(Vec::new()),
            Ok(record) => Some(usize::from(record.memberships)),
            Err(StoreError::IndexDamaged { .. }) => None,
            Err(error) => return Err(error),
        };
        let range = membership_key(member, 0)..=membership_key(member, u64::MAX);
        let found = self.index.scan(range, usize::MAX)?;
        if expected.is_some_and(|expected| expected != found.len()) {
            return Err(damaged(member));
        }
        found.into_iter().map(|(key, value)| Ok((sub_of(&key), slot_of(member, value)?))).collect()
    }

    /// Returns the number of collections that an object is in, as far as its record can be read.
    pub(crate) fn membership_count(&self, member: ObjectId) -> u64 {
        let _lock = self.lock(member).read();
        self.record(member).map_or(0, |record| u64::from(record.memberships))
    }

    /// Takes the locks for removing an object, and returns the changes that end its memberships.
    /// Fails for a collection that has members.
    pub(crate) fn lock_for_removal(
        &self,
        id: ObjectId,
    ) -> Result<(Vec<RwLockWriteGuard<'_, ()>>, Changes), StoreError> {
        let at = |collection: u64| ObjectId::new(id.partition, collection);
        let mut known: Vec<u64> = Vec::new();
        let (locks, memberships) = loop {
            let locks = self.lock_all(known.iter().map(|&collection| at(collection)).chain([id]));
            let memberships = self.memberships_of(id)?;
            if memberships.iter().all(|(collection, _)| known.binary_search(collection).is_ok()) {
                break (locks, memberships);
            }
            // Memberships may change until all locks are held; so they are read once more.
            drop(locks);
            known = memberships.into_iter().map(|(collection, _)| collection).collect();
        };
        let mut changes = Changes::new();
        for (collection, _) in memberships {
            changes.push((membership_key(id, collection), None));
            changes.push((member_key(at(collection), id.object), None));
            changes.push(self.count_change(at(collection), CountStep::Down)?);
        }
        match self.index.get(&collection_key(id))? {
            Some(Ok(RecordValue::Count(0))) => changes.push((collection_key(id), None)),
            Some(Ok(RecordValue::Count(_))) => return Err(StoreError::HasMembers(id)),
            Some(Ok(_) | Err(CorruptRecord)) => return Err(damaged(id)),
            None => {}
        }
        Ok((locks, changes))
    }

    /// In a damaged index, trusts the members only if all of them are present.
    fn check_members(&self, collection: ObjectId, count: u64) -> Result<(), StoreError> {
        if !self.salvage {
            return Ok(());
        }
        let (mut from, mut found) = (0, 0_u64);
        loop {
            let range = member_key(collection, from)..=member_key(collection, u64::MAX);
            let part = self.index.scan(range, MAX_LIST)?;
            found += part.len() as u64;
            match part.last().and_then(|(key, _)| sub_of(key).checked_add(1)) {
                Some(next) if part.len() == MAX_LIST => from = next,
                _ if found == count => return Ok(()),
                _ => return Err(damaged(collection)),
            }
        }
    }
}

impl Memberships for DiskStore {
    fn join(&self, collection: ObjectId, member: u64, slot: u32) -> Result<bool, StoreError> {
        let _room = self.admit(PageDemand::membership(), ReserveClass::Addition)?;
        let object = ObjectId::new(collection.partition, member);
        let inside = self.groups.gate.enter();
        self.groups.check()?;
        let locks = self.lock_all([collection, object].into_iter());
        let count = self.count_change(collection, CountStep::Up)?;
        let record = self.record(object)?;
        if record.kind != ObjectType::User {
            return Err(StoreError::NotFound(object));
        }
        if self.slot(collection, member)?.is_some() {
            return Ok(false);
        }
        let changes = vec![
            (member_key(collection, member), Some(RecordValue::Membership(slot))),
            (membership_key(object, collection.object), Some(RecordValue::Membership(slot))),
            count,
            self.member_change(object, CountStep::Up)?,
        ];
        let ack = self.apply(changes, &[], &[], Vec::new());
        drop((locks, inside));
        self.acknowledge(ack).map(|()| true)
    }

    fn leave(&self, collection: ObjectId, member: u64) -> Result<Option<u32>, StoreError> {
        let _room = self.admit(PageDemand::membership(), ReserveClass::Removal)?;
        let object = ObjectId::new(collection.partition, member);
        let inside = self.groups.gate.enter();
        self.groups.check()?;
        let locks = self.lock_all([collection, object].into_iter());
        self.count(collection)?;
        let Some(slot) = self.slot(collection, member)? else { return Ok(None) };
        let changes = vec![
            (member_key(collection, member), None),
            (membership_key(object, collection.object), None),
            self.count_change(collection, CountStep::Down)?,
            self.member_change(object, CountStep::Down)?,
        ];
        let ack = self.apply(changes, &[], &[], Vec::new());
        drop((locks, inside));
        self.acknowledge(ack).map(|()| Some(slot))
    }

    fn membership(&self, collection: ObjectId, member: u64) -> Result<Option<u32>, StoreError> {
        let _lock = self.lock(collection).read();
        self.slot(collection, member)
    }

    fn members(&self, collection: ObjectId, from: u64, max: usize) -> Result<Vec<(u64, u32)>, StoreError> {
        let _lock = self.lock(collection).read();
        self.check_members(collection, self.count(collection)?)?;
        let range = member_key(collection, from)..=member_key(collection, u64::MAX);
        let found = self.index.scan(range, max.min(MAX_LIST))?;
        found.into_iter().map(|(key, value)| Ok((sub_of(&key), slot_of(collection, value)?))).collect()
    }

    fn member_count(&self, collection: ObjectId) -> Result<u64, StoreError> {
        let _lock = self.lock(collection).read();
        self.count(collection)
    }

    fn memberships(&self, member: ObjectId) -> Result<Vec<(u64, u32)>, StoreError> {
        let _lock = self.lock(member).read();
        self.record(member)?;
        self.memberships_of(member)
    }

    fn collections(&self, from: ObjectId, max: usize) -> Result<Vec<ObjectId>, StoreError> {
        let range = collection_key(from)..=all_collections().1;
        let (found, gap) = self.index.scan_to_gap(range.clone(), max.min(MAX_LIST))?;
        let found = found.into_iter().map(|(key, _)| (object_of(&key), ObjectType::Collection)).collect();
        Ok(list_to_gap(found, gap, &range)?.into_iter().map(|(id, _)| id).collect())
    }
}
