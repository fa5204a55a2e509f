//! List of objects known to be damaged.
//!
//! Does: keep the list in memory and, by object id, in the internal page of the root, so that it
//! survives a restart; record each change once: on the object, on its container, and for the audit
//! log.
//! Does not: search for damage.
//! Contract: an entry is added and removed under the object's lock. If the store refuses writes,
//! the list is kept in memory only.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_store::{ObjectStore, StoreError};

use super::{Damage, Examiner, known, store_contained, store_damage};
use crate::attributes::rows::INTERNAL;
use crate::catalog;
use crate::locks::LockScope;

/// Objects in the list. Beyond that it only records that there are more; their own attributes
/// describe each.
pub(crate) const OBJECTS_MAX: usize = 4000;
/// Changes queued for the audit log.
const NEWS_MAX: usize = 4096;
/// Ids of damaged objects, 16 bytes each, after one byte: 1 if there are more.
const DAMAGED_OBJECTS: AttributeId = AttributeId::new(INTERNAL, 0x21);

/// A change of the damage of an object; empty damage means that it is sound again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DamageChange {
    pub(crate) id: ObjectId,
    pub(crate) damage: Damage,
}

/// Result of recording a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordResult {
    /// Nothing changed.
    Same,
    /// The recorded damage changed.
    Changed,
    /// The object does not exist any more.
    Gone,
}

/// All damaged objects.
pub(crate) struct DamageList {
    damaged: Mutex<BTreeMap<ObjectId, Damage>>,
    /// Number of entries, checked on every changing command without the lock.
    count: AtomicUsize,
    more: AtomicBool,
    news: Mutex<VecDeque<DamageChange>>,
}

impl DamageList {
    pub(crate) fn new() -> Self {
        Self {
            damaged: Mutex::new(BTreeMap::new()),
            count: AtomicUsize::new(0),
            more: AtomicBool::new(false),
            news: Mutex::new(VecDeque::new()),
        }
    }

    /// Loads the list after a restart. Unreadable entries are found again by scrubbing.
    pub(crate) fn load(store: &dyn ObjectStore) -> Self {
        let book = Self::new();
        let stored = store.attribute(ObjectId::ROOT, DAMAGED_OBJECTS).ok().flatten().unwrap_or_default();
        let Some((&more, ids)) = stored.split_first() else { return book };
        book.more.store(more != 0, Ordering::Relaxed);
        {
            let mut damaged = book.damaged.lock();
            for bytes in ids.chunks_exact(16).take(OBJECTS_MAX) {
                let id = ObjectId::new(catalog::be(&bytes[..8]), catalog::be(&bytes[8..]));
                if let Ok(damage) = known(store, id) {
                    damaged.insert(id, damage);
                }
            }
            book.count.store(damaged.len(), Ordering::Relaxed);
        }
        book
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Returns the number of entries, and whether there are more objects than that.
    pub(crate) fn count(&self) -> (u64, bool) {
        (self.count.load(Ordering::Relaxed) as u64, self.more.load(Ordering::Relaxed))
    }

    pub(crate) fn all(&self) -> Vec<(ObjectId, Damage)> {
        self.damaged.lock().iter().map(|(&id, damage)| (id, damage.clone())).collect()
    }

    /// Returns the damaged objects that a command on this object may have changed: the object
    /// itself, or all of its partition if the command changes `members`.
    pub(crate) fn touched_by(&self, object: ObjectId, members: bool) -> Vec<ObjectId> {
        let damaged = self.damaged.lock();
        let with = |id: &ObjectId| match (object.partition, object.object) {
            (0, 0) => true,
            (partition, 0) => id.partition == partition,
            (partition, _) if members => id.partition == partition,
            _ => *id == object,
        };
        damaged.keys().copied().filter(with).collect()
    }

    /// Takes the oldest queued change.
    pub(crate) fn news(&self) -> Option<DamageChange> {
        self.news.lock().pop_front()
    }

    /// Clears the mark of further objects at the start of a full pass, which finds them again.
    pub(crate) fn forget_more(&self) {
        self.more.store(false, Ordering::Relaxed);
    }

    /// Records the findings about an object, as far as they still hold. For a partition or the root
    /// these are its own damage, not that of its contents.
    pub(crate) fn settle(
        &self,
        examiner: Examiner<'_>,
        id: ObjectId,
        doubted: &Damage,
        now_ms: u64,
    ) -> Result<RecordResult, StoreError> {
        let store = examiner.store;
        let settled = {
            let _change = examiner.acquire(LockScope::Change(id));
            let stat = match store.stat(id) {
                Err(StoreError::NotFound(_)) => None,
                Err(_) => Some(ObjectType::User),
                Ok(stat) => Some(stat.kind),
            };
            match stat {
                None => {
                    if self.note(store, id, None)? {
                        self.queue_change(DamageChange { id, damage: Damage::default() });
                        RecordResult::Gone
                    } else {
                        RecordResult::Same
                    }
                }
                Some(kind) => {
                    let sure = examiner.confirm(id, doubted);
                    let before = known(store, id).unwrap_or_default();
                    if before != sure {
                        tolerate(store_damage(store, id, kind, &sure, now_ms))?;
                    }
                    // A finding that cannot be stored is still reported once.
                    let in_book = || self.damaged.lock().contains_key(&id);
                    if self.lists(id, &sure) && (before == sure || in_book()) {
                        return Ok(RecordResult::Same);
                    }
                    self.queue_change(DamageChange { id, damage: sure.clone() });
                    self.note(store, id, Some(sure))?;
                    RecordResult::Changed
                }
            }
        };
        if settled != RecordResult::Same && id.object != 0 {
            self.settle_containers(examiner, id.partition, now_ms)?;
        }
        Ok(settled)
    }

    /// Updates the summaries of a partition and of the root from the list.
    fn settle_containers(
        &self,
        examiner: Examiner<'_>,
        partition: u64,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        let (objects, partitions) = {
            let damaged = self.damaged.lock();
            let inside = damaged.keys().filter(|id| id.partition == partition && id.object != 0).count();
            let mut partitions: Vec<u64> = damaged.keys().map(|id| id.partition).collect();
            partitions.retain(|&partition| partition != 0);
            partitions.dedup();
            (inside as u64, partitions.len() as u64)
        };
        let containers = [
            (ObjectId::of_partition(partition), ObjectType::Partition, objects),
            (ObjectId::ROOT, ObjectType::Root, partitions),
        ];
        for (id, kind, damaged) in containers {
            let _change = examiner.acquire(LockScope::Change(id));
            match store_contained(examiner.store, id, kind, damaged, now_ms) {
                // Removed with its contents.
                Err(StoreError::NotFound(_)) => {}
                other => tolerate(other)?,
            }
        }
        Ok(())
    }

    /// Whether the list already contains this damage, or is full.
    fn lists(&self, id: ObjectId, damage: &Damage) -> bool {
        let damaged = self.damaged.lock();
        match damaged.get(&id) {
            Some(known) => known == damage,
            None => damage.is_none() || damaged.len() >= OBJECTS_MAX,
        }
    }

    /// Adds or removes an entry. Returns whether there was one.
    fn note(
        &self,
        store: &dyn ObjectStore,
        id: ObjectId,
        damage: Option<Damage>,
    ) -> Result<bool, StoreError> {
        let mut damaged = self.damaged.lock();
        let had = damaged.contains_key(&id);
        match damage.filter(|damage| !damage.is_none()) {
            Some(_) if !had && damaged.len() >= OBJECTS_MAX => self.more.store(true, Ordering::Relaxed),
            Some(damage) => drop(damaged.insert(id, damage)),
            None => drop(damaged.remove(&id)),
        }
        self.count.store(damaged.len(), Ordering::Relaxed);
        let more = self.more.load(Ordering::Relaxed);
        let mut bytes = vec![u8::from(more)];
        bytes.extend(damaged.keys().flat_map(|id| [id.partition, id.object]).flat_map(u64::to_be_bytes));
        if bytes == [0] {
            bytes.clear();
        }
        // Stored under the lock, so that the stored list matches the last change.
        tolerate(store.set_attribute(ObjectId::ROOT, DAMAGED_OBJECTS, &bytes))?;
        Ok(had)
    }

    fn queue_change(&self, news: DamageChange) {
        let mut all = self.news.lock();
        if all.len() < NEWS_MAX {
            all.push_back(news);
        }
    }
}

/// Ignores errors other than a missing object: a read-only store, or an object whose attributes are
/// full, must not stop the examination of others.
fn tolerate(result: Result<(), StoreError>) -> Result<(), StoreError> {
    match result {
        Err(StoreError::NotFound(id)) => Err(StoreError::NotFound(id)),
        Err(error) => {
            tracing::debug!(%error, "cannot record damage in an attribute");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
