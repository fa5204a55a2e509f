//! The objects that are known to be damaged.
//!
//! Does: keep them in memory and, by their ids, in the internal page of the root, so that a device knows them again after
//! a restart; note what changed, once, on the object, on what contains it, and for the audit log.
//! Does not: look for damage. Contract: an entry is made and unmade under the object's lock.
//! A store that refuses writes is no reason to keep silent: then the book is in memory alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_store::{ObjectStore, StoreError};

use super::{Damage, Examiner, known, store_contained, store_damage};
use crate::attributes::rows::INTERNAL;
use crate::catalog;
use crate::locks::Reach;

/// Most objects in the book; of more it says only that there are more. Their own attributes tell of each.
pub(crate) const OBJECTS_MAX: usize = 4000;
/// Most changes that wait to be told.
const NEWS_MAX: usize = 4096;
/// Ids of damaged objects, 16 bytes each, after one byte: 1 if there are more.
const DAMAGED_OBJECTS: AttributeId = AttributeId::new(INTERNAL, 0x21);

/// An object became damaged, or sound, or is damaged otherwise than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) id: ObjectId,
    pub(crate) damage: Damage,
}

/// What noting a finding came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It is what was known.
    Same,
    /// Something else than was known.
    Changed,
    /// The object is not there any more.
    Gone,
}

/// All of them.
pub(crate) struct Book {
    damaged: Mutex<BTreeMap<ObjectId, Damage>>,
    /// As many as there are in it, to be asked on the way of every command that changes something.
    count: AtomicUsize,
    more: AtomicBool,
    news: Mutex<VecDeque<News>>,
}

impl Book {
    pub(crate) fn new() -> Self {
        Self {
            damaged: Mutex::new(BTreeMap::new()),
            count: AtomicUsize::new(0),
            more: AtomicBool::new(false),
            news: Mutex::new(VecDeque::new()),
        }
    }

    /// As it was before the restart. What cannot be read is found anew.
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

    /// How many there are, at least; and whether there are more.
    pub(crate) fn count(&self) -> (u64, bool) {
        (self.count.load(Ordering::Relaxed) as u64, self.more.load(Ordering::Relaxed))
    }

    pub(crate) fn all(&self) -> Vec<(ObjectId, Damage)> {
        self.damaged.lock().iter().map(|(&id, damage)| (id, damage.clone())).collect()
    }

    /// Those that a command on this object may have changed: itself; or all that are with it, if it changes `members`.
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

    /// The oldest change that was not told yet.
    pub(crate) fn news(&self) -> Option<News> {
        self.news.lock().pop_front()
    }

    /// A pass over everything begins: what it finds is all there is.
    pub(crate) fn forget_more(&self) {
        self.more.store(false, Ordering::Relaxed);
    }

    /// Notes what was found of an object, as far as it is still so. What is found of a partition or the root is its own
    /// damage, not that of what it contains.
    pub(crate) fn settle(
        &self,
        examiner: Examiner<'_>,
        id: ObjectId,
        doubted: &Damage,
        now_ms: u64,
    ) -> Result<Settled, StoreError> {
        let store = examiner.store;
        let settled = {
            let _change = examiner.grasp(Reach::Change(id));
            let stat = match store.stat(id) {
                Err(StoreError::NotFound(_)) => None,
                Err(_) => Some(ObjectType::User),
                Ok(stat) => Some(stat.kind),
            };
            match stat {
                None => {
                    if self.note(store, id, None)? {
                        self.tell(News { id, damage: Damage::default() });
                        Settled::Gone
                    } else {
                        Settled::Same
                    }
                }
                Some(kind) => {
                    let sure = examiner.confirm(id, doubted);
                    let before = known(store, id).unwrap_or_default();
                    if before != sure {
                        tolerate(store_damage(store, id, kind, &sure, now_ms))?;
                    }
                    // What cannot be noted is told once, too.
                    let in_book = || self.damaged.lock().contains_key(&id);
                    if self.lists(id, &sure) && (before == sure || in_book()) {
                        return Ok(Settled::Same);
                    }
                    self.tell(News { id, damage: sure.clone() });
                    self.note(store, id, Some(sure))?;
                    Settled::Changed
                }
            }
        };
        if settled != Settled::Same && id.object != 0 {
            self.settle_containers(examiner, id.partition, now_ms)?;
        }
        Ok(settled)
    }

    /// The summaries of a partition and of the root, by what is in the book.
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
            let _change = examiner.grasp(Reach::Change(id));
            match store_contained(examiner.store, id, kind, damaged, now_ms) {
                // Removed with all that was in it.
                Err(StoreError::NotFound(_)) => {}
                other => tolerate(other)?,
            }
        }
        Ok(())
    }

    /// Does the book say so already, or has it no room to?
    fn lists(&self, id: ObjectId, damage: &Damage) -> bool {
        let damaged = self.damaged.lock();
        match damaged.get(&id) {
            Some(known) => known == damage,
            None => damage.is_none() || damaged.len() >= OBJECTS_MAX,
        }
    }

    /// Makes or unmakes an entry; was there one?
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
        // Under the book's lock, so that the last one to write is the last one to know.
        tolerate(store.set_attribute(ObjectId::ROOT, DAMAGED_OBJECTS, &bytes))?;
        Ok(had)
    }

    fn tell(&self, news: News) {
        let mut all = self.news.lock();
        if all.len() < NEWS_MAX {
            all.push_back(news);
        }
    }
}

/// A store that refuses writes, or an object that cannot carry a note (its attributes may be as many as there can be), is
/// told elsewhere: nothing that cannot be noted keeps others from being looked at.
fn tolerate(result: Result<(), StoreError>) -> Result<(), StoreError> {
    match result {
        Err(StoreError::NotFound(id)) => Err(StoreError::NotFound(id)),
        Err(error) => {
            tracing::debug!(%error, "damage is told, and could not be noted in an attribute");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
