//! Stored digests of attribute pages: kept from the first request until an attribute changes.
//!
//! Does: stores the digest of a page that was requested until an attribute of the page changes. The
//! change deletes the digest record in the same step, so that a crash cannot leave a digest of
//! older values.
//! Costs: setting an attribute looks up one more record; the first request after a change reads and
//! hashes the page.

use std::ops::RangeInclusive;

use sealstone_digest::{AttributePage, DigestValue as Digest, Profile};
use sealstone_osd::ObjectId;

use super::index_space::{PageDemand, ReserveClass};
use super::record::{CorruptRecord, Key, RecordValue, attribute_of, page_key, profile_key, sub_of, sum_key};
use super::stage::StagedChanges;
use super::{DiskStore, MAX_ATTRIBUTES, attribute_range};
use crate::StoreError;

fn all_pages(id: ObjectId) -> RangeInclusive<Key> {
    page_key(id, 0)..=page_key(id, u32::MAX)
}

impl DiskStore {
    /// Deletes the digest of a page in the step that changes one of its attributes.
    pub(crate) fn forget_page(&self, stage: &mut StagedChanges<'_>, page: u32) -> Result<(), StoreError> {
        let key = page_key(stage.id, page);
        if self.index.get(&key)?.is_some() {
            stage.changes.push((key, None));
        }
        Ok(())
    }

    /// Returns the keys of all digest records of an object besides its chunks.
    pub(crate) fn digest_records(&self, id: ObjectId) -> Result<Vec<Key>, StoreError> {
        let pages = self.index.scan(all_pages(id), MAX_ATTRIBUTES)?;
        let mut keys: Vec<Key> = pages.into_iter().map(|(key, _)| key).collect();
        let others = [(id.object == 0).then(|| profile_key(id.partition)), Some(sum_key(id))];
        for key in others.into_iter().flatten() {
            if self.index.get(&key)?.is_some() {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    /// Returns the digest of a page: stored, or computed and then stored.
    pub(crate) fn digest_of_page(&self, id: ObjectId, page: u32) -> Result<Option<Digest>, StoreError> {
        let Some(profile) = self.profile_of(id.partition) else {
            let _lock = self.lock(id).read();
            return self.record(id).map(|_| None);
        };
        let key = page_key(id, page);
        {
            let _lock = self.lock(id).read();
            self.record(id)?;
            match self.index.get(&key)? {
                Some(Ok(RecordValue::Page(of, digest))) if of == profile => return Ok(Some(digest)),
                // The store is poisoned, so the digest cannot be stored.
                _ if self.is_poisoned() => return Ok(Some(self.compute_page(id, page, profile)?.0)),
                _ => {}
            }
        }
        // A digest that cannot be stored is computed again on the next request.
        let index_space = match self.admit(PageDemand::attribute(0), ReserveClass::Addition) {
            Err(StoreError::NoSpace | StoreError::Poisoned) => None,
            index_space => Some(index_space?),
        };
        let inside = self.groups.gate.enter();
        let lock = self.lock(id).write();
        self.record(id)?;
        let (digest, count) = self.compute_page(id, page, profile)?;
        // Requests for empty pages must not fill the index.
        if count > 0 && index_space.is_some() && self.groups.check().is_ok() {
            let ack = self.apply(vec![(key, Some(RecordValue::Page(profile, digest)))], &[], &[], Vec::new());
            drop((lock, inside));
            self.acknowledge(ack)?;
        }
        Ok(Some(digest))
    }

    /// Whether the stored digest of any page is lost or wrong, under whatever profile it was
    /// computed. The caller holds the object's lock.
    pub(crate) fn wrong_page(&self, id: ObjectId) -> bool {
        let pages = self.index.scan(all_pages(id), MAX_ATTRIBUTES).unwrap_or_default();
        pages.into_iter().any(|(key, value)| match value {
            Ok(RecordValue::Page(profile, digest)) => {
                let computed = self.compute_page(id, sub_of(&key) as u32, profile);
                computed.is_ok_and(|(computed, _)| computed != digest)
            }
            Ok(_) | Err(CorruptRecord) => true,
        })
    }

    /// Returns the digest, and the number of attributes of the page. The caller holds the object's
    /// lock.
    fn compute_page(&self, id: ObjectId, page: u32, profile: Profile) -> Result<(Digest, usize), StoreError> {
        let mut digest = AttributePage::new(profile, page);
        let found = self.index.scan(attribute_range(id, Some(page)), MAX_ATTRIBUTES)?;
        self.check_attributes(id)?;
        let count = found.len();
        for (key, value) in found {
            match value {
                Ok(RecordValue::Attribute(value)) => digest.push(attribute_of(&key).number, &value),
                Ok(_) | Err(CorruptRecord) => return Err(StoreError::IndexDamaged { object: id }),
            }
        }
        Ok((digest.finish(), count))
    }
}
