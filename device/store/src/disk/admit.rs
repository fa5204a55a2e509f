//! Space reservation in the index: each operation declares its demand for index pages before it
//! begins.
//!
//! Does: if the known free pages do not suffice, inspects the file again, extends it, or commits
//! (the pages of the previous commit become free then); refuses with `NoSpace` only if all of that
//! fails.
//! Does not: undo anything.
//! Contract: the caller holds no object lock.

use std::ops::Range;

use sealstone_osd::ObjectId;

use super::DiskStore;
use super::chunk::CHUNK_BLOCKS;
use super::index_space::{AdmittedDemand, PageDemand, ReserveClass};
use super::record::{RecordTag, RecordValue, attribute_key};
use crate::store::ExtentKind;
use crate::{AttributeId, BLOCK, Memberships as _, ObjectExtent, ObjectStore, StoreError};

/// Size of a chunk record with a few extents and all digests, in bytes. A record of very many
/// extents has twice that and uses a part of the reserve.
const CHUNK_RECORD: usize = 3600;
/// Number of membership removals in a scope for which space is reserved when it begins.
const SCOPE_REMOVALS: u64 = 8;
/// Maximum number of inspections of the file for one operation; each one extends the file if it
/// can.
const LOOKS_MAX: usize = 4;

impl PageDemand {
    /// Returns the demand of an object's own record and of changes besides the chunks: an inline
    /// block that is added or removed, page digests, a digest sum.
    pub(crate) fn object() -> Self {
        Self::group().with_leaves(RecordTag::Object, 2, 48)
    }

    /// Returns the demand of the group number, which each commit writes.
    fn group() -> Self {
        Self::default().with_leaves(RecordTag::Store, 2, 16)
    }

    /// Returns the demand of a change of `length` bytes anywhere in an object.
    pub(crate) fn bytes(length: u64, inline_max: u64) -> Self {
        let chunks = length / (CHUNK_BLOCKS * BLOCK) + 2;
        // Most writes are small; the record then has few extents.
        let record = if length <= BLOCK { 256 } else { CHUNK_RECORD };
        let inline = if length <= inline_max { length as usize + 48 } else { 0 };
        Self::object()
            .with_leaves(RecordTag::Chunk, chunks + 2, record)
            .with_leaves(RecordTag::Sum, 2, 0)
            .with_leaves(RecordTag::Inline, 2, inline)
    }

    /// Returns the demand of an attribute of this length.
    pub(crate) fn attribute(length: usize) -> Self {
        Self::object().with_leaves(RecordTag::Attribute, 2, length + 48).with_leaves(RecordTag::Page, 2, 48)
    }

    /// Returns the demand of a partition's digest profile.
    pub(crate) fn profile() -> Self {
        Self::group().with_leaves(RecordTag::Profile, 2, 16)
    }

    /// Returns the demand of joining, leaving or creating a collection.
    pub(crate) fn membership() -> Self {
        Self::object()
            .with_leaves(RecordTag::Member, 2, 16)
            .with_leaves(RecordTag::Membership, 2, 16)
            .with_leaves(RecordTag::Collection, 2, 16)
    }

    /// Returns the demand of what a scope may do in a full store: remove an object, or rewrite one
    /// with some attributes. Additions leave this much free.
    pub(crate) fn scope() -> Self {
        let load = Self::removal(SCOPE_REMOVALS).with_leaves(RecordTag::Object, 2, 48).with_leaves(
            RecordTag::Chunk,
            4,
            CHUNK_RECORD,
        );
        load.with_leaves(RecordTag::Inline, 2, BLOCK as usize + 48)
            .with_leaves(RecordTag::Attribute, 4, 0)
            .with_leaves(RecordTag::Page, 4, 48)
    }

    /// Returns the demand of removing an object with this many memberships.
    pub(crate) fn removal(memberships: u64) -> Self {
        let all = [
            RecordTag::Object,
            RecordTag::Chunk,
            RecordTag::Attribute,
            RecordTag::Page,
            RecordTag::Sum,
            RecordTag::Inline,
            RecordTag::Collection,
        ];
        let load = all.into_iter().fold(Self::group(), |load, tag| load.with_leaves(tag, 2, 0));
        let each = 2 * memberships;
        load.with_leaves(RecordTag::Member, each, 0).with_leaves(RecordTag::Membership, each, 0).with_leaves(
            RecordTag::Collection,
            each,
            16,
        )
    }
}

impl DiskStore {
    /// Admits an operation, or fails with `NoSpace`.
    pub(crate) fn admit(
        &self,
        load: PageDemand,
        purpose: ReserveClass,
    ) -> Result<AdmittedDemand<'_>, StoreError> {
        self.commit_if_full();
        match self.index_space.admit(load, purpose, || self.index.open_load()) {
            Some(admitted) => Ok(admitted),
            None => self.admit_slowly(load, purpose),
        }
    }

    fn admit_slowly(
        &self,
        load: PageDemand,
        purpose: ReserveClass,
    ) -> Result<AdmittedDemand<'_>, StoreError> {
        self.groups.check()?;
        // The estimate of a large group is much higher than its real use. Commit it, which makes
        // the use exact, before extending the file for it.
        if self.index_space.is_large(self.index.open_load()) {
            self.commit_to_free_pages()?;
        }
        if let Some(admitted) = self.inspect_for_space(load, purpose)? {
            return Ok(admitted);
        }
        // Pages that a group frees become usable with its commit or the next one.
        if self.commit_to_free_pages()?
            && let Some(admitted) = self.inspect_for_space(load, purpose)?
        {
            return Ok(admitted);
        }
        tracing::debug!(?purpose, "no free pages in the index: the operation is refused");
        Err(StoreError::NoSpace)
    }

    /// Reserves pages for the open group, none of whose changes was counted before.
    pub(crate) fn reserve_for_open_group(&self) -> Result<(), StoreError> {
        let open = || self.index.open_load();
        let fits = self.index_space.admit(PageDemand::default(), ReserveClass::Removal, open).is_some()
            || self.inspect_for_space(PageDemand::default(), ReserveClass::Removal)?.is_some();
        if !fits {
            tracing::warn!("the index may lack free pages for the changes in the write log");
        }
        Ok(())
    }

    /// Inspects the index file again. One thread at a time does; threads that waited for it first
    /// retry.
    fn inspect_for_space(
        &self,
        load: PageDemand,
        purpose: ReserveClass,
    ) -> Result<Option<AdmittedDemand<'_>>, StoreError> {
        let open = || self.index.open_load();
        let _alone = self.renewing.lock();
        if let Some(admitted) = self.index_space.admit(load, purpose, open) {
            return Ok(Some(admitted));
        }
        let purpose = purpose.after_inspection();
        for _ in 0..LOOKS_MAX {
            // Before the lock: a reader of the layers may wait for the engine.
            let open_load = open();
            if !self.index_space.is_possible(&load, purpose, &open_load) {
                break;
            }
            let wanted = self.index_space.wanted_bytes(load, open_load);
            let suffices = |free_pages: &_| self.index_space.suffices(free_pages, &load, purpose, &open_load);
            // Additions do not use the reserved free space of the file system.
            let is_addition = purpose >= ReserveClass::Addition;
            let growth_max = self.medium_allowance().filter(|_| is_addition).unwrap_or(u64::MAX);
            match self.index.reinspect(
                wanted,
                growth_max,
                || self.index_space.is_touched(),
                suffices,
                |free_pages| self.index_space.set(free_pages),
            ) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.poison(true);
                    return Err(error);
                }
            }
            if let Some(admitted) = self.index_space.admit(load, purpose, open) {
                return Ok(Some(admitted));
            }
            // Other operations were admitted meanwhile, or the free pages are too fragmented. A
            // scope cannot commit, so extending the file is its only option.
        }
        Ok(None)
    }

    /// Admits the removal of an object. If there is no space to end all its memberships at once,
    /// most of them are ended before it, a few per group. A scope cannot do that, since it is a
    /// single group.
    pub(crate) fn admit_removal(&self, id: ObjectId) -> Result<AdmittedDemand<'_>, StoreError> {
        let count = self.membership_count(id);
        match self.admit(PageDemand::removal(count), ReserveClass::Removal) {
            Err(StoreError::NoSpace) if count > SCOPE_REMOVALS && !self.groups.gate.holds() => {}
            result => return result,
        }
        let memberships = self.memberships(id)?;
        let surplus = memberships.len().saturating_sub(SCOPE_REMOVALS as usize);
        for (collection, _) in &memberships[..surplus] {
            self.leave(ObjectId::new(id.partition, *collection), id.object)?;
        }
        self.admit(PageDemand::removal(SCOPE_REMOVALS), ReserveClass::Removal)
    }

    /// Called before a scope, in which nothing can be committed: reserves pages for some removals
    /// and overwrites, if there are not enough.
    pub(crate) fn reserve_for_scope(&self) {
        let load = PageDemand::scope();
        let open = || self.index.open_load();
        if !self.groups.gate.holds() && self.index_space.admit(load, ReserveClass::Overwrite, open).is_none()
        {
            // A failure is reported by the operations in the scope.
            let _ = self.admit_slowly(load, ReserveClass::Overwrite);
        }
    }

    /// Like [`admit`](Self::admit) for an addition. If that does not fit and the change overwrites
    /// existing data, admits it as an overwrite, which may count less.
    pub(crate) fn admit_change(
        &self,
        load: PageDemand,
        overwrite: impl FnOnce() -> Result<Option<PageDemand>, StoreError>,
    ) -> Result<AdmittedDemand<'_>, StoreError> {
        let admitted = self.admit(load, ReserveClass::Addition);
        if !matches!(admitted, Err(StoreError::NoSpace)) {
            return admitted;
        }
        match overwrite()? {
            Some(load) => self.admit(load, ReserveClass::Overwrite),
            None => admitted,
        }
    }

    /// Whether an object has data in all of these bytes.
    pub(crate) fn is_mapped(&self, id: ObjectId, bytes: &Range<u64>) -> Result<bool, StoreError> {
        let mut at = bytes.start;
        // Fails with `NotFound` if the object does not exist.
        if self.stat(id)?.length < bytes.end {
            return Ok(false);
        }
        while at < bytes.end {
            let map = self.map(id, at, 64)?;
            let data = |extent: &&ObjectExtent| matches!(extent.kind, ExtentKind::Data { .. });
            let Some(end) = map.iter().take_while(data).last().map(|last| last.offset + last.length) else {
                return Ok(false);
            };
            at = end;
        }
        Ok(true)
    }

    /// Returns the length of an attribute.
    pub(crate) fn attribute_length(
        &self,
        id: ObjectId,
        attribute: AttributeId,
    ) -> Result<Option<usize>, StoreError> {
        let _lock = self.lock(id).read();
        let found = self.index.get(&attribute_key(id, attribute))?;
        Ok(found.and_then(|value| match value {
            Ok(RecordValue::Attribute(value)) => Some(value.len()),
            _ => None,
        }))
    }
}
