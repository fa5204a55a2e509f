//! A store with injected failures, which reports changes.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sealstone_digest::{CoveredDigests, DigestValue, Profile};
use sealstone_osd::{AttributeId, ObjectId, ObjectType};
use sealstone_store::{
    CompletedDigests, Damage, DamageKind, DigestCheck, DigestStore, DigestedRead, ExaminationStep,
    GroupScope, KnownDigests, Memberships, MemoryStore, ObjectComparison, ObjectExamination, ObjectExaminer,
    ObjectExtent, ObjectStat, ObjectStore, Space, StoreError,
};

/// Called after each change with its number since the start.
pub(crate) type After = Box<dyn FnMut(u64) + Send>;

/// A memory store in which one change, or all of them, fail for lack of space.
pub(crate) struct Faulty {
    pub(crate) inner: MemoryStore,
    changes: AtomicU64,
    /// The first failing change, counted from 1, and the number of failures after it.
    fails: Mutex<(u64, u64)>,
    after: Mutex<Option<After>>,
    /// Objects from the first id to the second are lost.
    gap: Mutex<Option<(ObjectId, ObjectId)>>,
    /// Objects with damaged records.
    spoiled: Mutex<Vec<ObjectId>>,
    /// An object that cannot be examined.
    sick: Mutex<Option<ObjectId>>,
    /// Reads of attributes by page: the object and the page.
    scans: Mutex<Vec<(ObjectId, Option<u32>)>>,
}

impl Faulty {
    pub(crate) fn new() -> Self {
        Self {
            inner: MemoryStore::new(64 << 20),
            changes: AtomicU64::new(0),
            fails: Mutex::new((0, 0)),
            after: Mutex::new(None),
            gap: Mutex::new(None),
            spoiled: Mutex::default(),
            sick: Mutex::new(None),
            scans: Mutex::default(),
        }
    }

    /// Makes this object unexaminable; `None` ends that.
    pub(crate) fn sicken(&self, id: Option<ObjectId>) {
        *self.sick.lock() = id;
    }

    /// Returns how often a page of an object was read.
    pub(crate) fn scans_of(&self, id: ObjectId, page: u32) -> usize {
        self.scans.lock().iter().filter(|scan| **scan == (id, Some(page))).count()
    }

    fn look(&self, id: ObjectId) -> Result<(), StoreError> {
        match *self.sick.lock() {
            Some(sick) if sick == id => {
                Err(StoreError::Io { doing: "reading data", source: std::io::Error::other("never again") })
            }
            _ => Ok(()),
        }
    }

    /// Makes the `nth` change from now on fail, and `more` after it.
    pub(crate) fn fail(&self, nth: u64, more: u64) {
        *self.fails.lock() = (self.changes.load(Ordering::SeqCst) + nth, more);
    }

    /// Makes objects from `first` to `last` impossible to list.
    #[allow(dead_code, reason = "not every test file loses objects")]
    pub(crate) fn lose(&self, first: ObjectId, last: ObjectId) {
        *self.gap.lock() = Some((first, last));
    }

    /// Damages the records of these objects.
    #[allow(dead_code, reason = "not every test file damages records")]
    pub(crate) fn spoil(&self, ids: &[ObjectId]) {
        *self.spoiled.lock() = ids.to_vec();
    }

    /// Restores lost objects and damaged records.
    #[allow(dead_code, reason = "not every test file damages records")]
    pub(crate) fn restore(&self) {
        *self.gap.lock() = None;
        self.spoiled.lock().clear();
    }

    fn record(&self, id: ObjectId) -> Result<(), StoreError> {
        let is_lost = self.gap.lock().is_some_and(|(first, last)| (first..=last).contains(&id));
        match is_lost || self.spoiled.lock().contains(&id) {
            true => Err(StoreError::IndexDamaged { object: id }),
            false => Ok(()),
        }
    }

    /// Ends all failures of changes.
    pub(crate) fn heal(&self) {
        *self.fails.lock() = (0, 0);
    }

    /// Calls `after` after each change, with the number of changes since now.
    pub(crate) fn after(&self, mut after: impl FnMut(u64) + Send + 'static) {
        let from = self.changes.load(Ordering::SeqCst);
        *self.after.lock() = Some(Box::new(move |at| after(at - from)));
    }

    fn change(&self) -> Result<(), StoreError> {
        let number = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        let (first, more) = *self.fails.lock();
        if first != 0 && (first..=first.saturating_add(more)).contains(&number) {
            return Err(StoreError::NoSpace);
        }
        let taken = self.after.lock().take();
        if let Some(mut after) = taken {
            after(number);
            self.after.lock().get_or_insert(after);
        }
        Ok(())
    }
}

impl ObjectStore for Faulty {
    fn begin(&self) -> GroupScope<'_> {
        self.inner.begin()
    }
    fn create(&self, id: ObjectId, kind: ObjectType) -> Result<(), StoreError> {
        self.change()?;
        self.inner.create(id, kind)
    }
    fn remove(&self, id: ObjectId) -> Result<(), StoreError> {
        self.change()?;
        self.inner.remove(id)
    }
    fn stat(&self, id: ObjectId) -> Result<ObjectStat, StoreError> {
        self.record(id)?;
        self.inner.stat(id)
    }
    fn read(&self, id: ObjectId, offset: u64, into: &mut [u8]) -> Result<usize, StoreError> {
        self.inner.read(id, offset, into)
    }
    fn write(&self, id: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.change()?;
        self.inner.write(id, offset, data)
    }
    fn resize(&self, id: ObjectId, length: u64) -> Result<(), StoreError> {
        self.change()?;
        self.inner.resize(id, length)
    }
    fn clear(&self, id: ObjectId, offset: u64, length: u64) -> Result<(), StoreError> {
        self.change()?;
        self.inner.clear(id, offset, length)
    }
    fn punch(&self, id: ObjectId, offset: u64, length: u64) -> Result<(), StoreError> {
        self.change()?;
        self.inner.punch(id, offset, length)
    }
    fn share(&self, from: ObjectId, to: ObjectId) -> Result<(), StoreError> {
        self.change()?;
        self.inner.share(from, to)
    }
    fn map(&self, id: ObjectId, offset: u64, max: usize) -> Result<Vec<ObjectExtent>, StoreError> {
        self.inner.map(id, offset, max)
    }
    fn compare(
        &self,
        from: ObjectId,
        to: ObjectId,
        offset: u64,
        max: usize,
    ) -> Result<ObjectComparison, StoreError> {
        self.inner.compare(from, to, offset, max)
    }
    fn attribute(&self, id: ObjectId, attribute: AttributeId) -> Result<Option<Vec<u8>>, StoreError> {
        self.record(id)?;
        self.inner.attribute(id, attribute)
    }
    fn set_attribute(&self, id: ObjectId, attribute: AttributeId, value: &[u8]) -> Result<(), StoreError> {
        self.change()?;
        self.inner.set_attribute(id, attribute, value)
    }
    fn attributes(&self, id: ObjectId, page: Option<u32>) -> Result<Vec<(AttributeId, Vec<u8>)>, StoreError> {
        self.record(id)?;
        self.scans.lock().push((id, page));
        self.inner.attributes(id, page)
    }
    fn change_count(&self, id: ObjectId) -> u64 {
        self.inner.change_count(id)
    }
    fn list(&self, from: ObjectId, max: usize) -> Result<Vec<(ObjectId, ObjectType)>, StoreError> {
        let mut found = self.inner.list(from, max)?;
        match *self.gap.lock() {
            Some((first, to))
                if from <= to
                    && (found.len() < max || found.last().is_some_and(|(last, _)| *last >= first)) =>
            {
                found.retain(|(id, _)| *id < first);
                Err(StoreError::ListGap { before: found, from: first.max(from), to })
            }
            _ => Ok(found),
        }
    }
    fn flush(&self) -> Result<(), StoreError> {
        self.inner.flush()
    }
    fn space(&self) -> Space {
        self.inner.space()
    }
}

impl Memberships for Faulty {
    fn join(&self, collection: ObjectId, member: u64, slot: u32) -> Result<bool, StoreError> {
        self.change()?;
        self.inner.join(collection, member, slot)
    }
    fn leave(&self, collection: ObjectId, member: u64) -> Result<Option<u32>, StoreError> {
        self.change()?;
        self.inner.leave(collection, member)
    }
    fn membership(&self, collection: ObjectId, member: u64) -> Result<Option<u32>, StoreError> {
        self.inner.membership(collection, member)
    }
    fn members(&self, collection: ObjectId, from: u64, max: usize) -> Result<Vec<(u64, u32)>, StoreError> {
        self.inner.members(collection, from, max)
    }
    fn member_count(&self, collection: ObjectId) -> Result<u64, StoreError> {
        self.inner.member_count(collection)
    }
    fn memberships(&self, member: ObjectId) -> Result<Vec<(u64, u32)>, StoreError> {
        self.inner.memberships(member)
    }
    fn collections(&self, from: ObjectId, max: usize) -> Result<Vec<ObjectId>, StoreError> {
        self.inner.collections(from, max)
    }
}

impl DigestStore for Faulty {
    fn profile(&self, partition: u64) -> Option<Profile> {
        self.inner.profile(partition)
    }
    fn set_profile(&self, partition: u64, profile: Option<Profile>) -> Result<(), StoreError> {
        self.change()?;
        self.inner.set_profile(partition, profile)
    }
    fn digests(&self, id: ObjectId, offset: u64, length: u64) -> Result<KnownDigests, StoreError> {
        self.inner.digests(id, offset, length)
    }
    fn read_digested(
        &self,
        id: ObjectId,
        offset: u64,
        into: &mut [u8],
        checked: DigestCheck,
    ) -> Result<DigestedRead, StoreError> {
        self.inner.read_digested(id, offset, into, checked)
    }
    fn write_digested(
        &self,
        id: ObjectId,
        offset: u64,
        data: &[u8],
        covered: &CoveredDigests,
    ) -> Result<(), StoreError> {
        self.change()?;
        self.inner.write_digested(id, offset, data, covered)
    }
    fn page_digest(&self, id: ObjectId, page: u32) -> Result<Option<DigestValue>, StoreError> {
        self.inner.page_digest(id, page)
    }
}

impl ObjectExaminer for Faulty {
    fn examine(&self, examination: &mut ObjectExamination) -> Result<ExaminationStep, StoreError> {
        self.look(examination.id())?;
        self.inner.examine(examination)
    }
    fn examine_bytes(&self, id: ObjectId, offset: u64, length: u64) -> Result<Vec<Damage>, StoreError> {
        self.look(id)?;
        self.inner.examine_bytes(id, offset, length)
    }
    fn examine_records(&self, id: ObjectId) -> Result<Vec<DamageKind>, StoreError> {
        self.look(id)?;
        self.inner.examine_records(id)
    }
    fn complete_digests(&self, id: ObjectId, offset: u64) -> Result<CompletedDigests, StoreError> {
        self.inner.complete_digests(id, offset)
    }
}
