//! Digests of the memory store: computed at each request, never stored, so that they are always
//! right.

use sealstone_digest::{AttributePage, CoveredDigests, DigestCover, DigestValue, Profile};
use sealstone_osd::{ObjectId, ObjectType};

use super::{MemoryInner, MemoryObject, MemoryStore};
use crate::digests::{DigestCheck, DigestStore, DigestedRead, KnownDigests};
use crate::{BLOCK, MAX_TRANSFER, ObjectStore, StoreError};

impl MemoryInner {
    fn profile(&self, partition: u64) -> Option<Profile> {
        self.profiles.get(&partition).copied().unwrap_or(Some(Profile::DEFAULT))
    }

    fn object(&self, id: ObjectId) -> Result<&MemoryObject, StoreError> {
        self.objects.get(&id).ok_or(StoreError::NotFound(id))
    }
}

impl MemoryObject {
    /// Returns the digest of a unit; `None` if all of it is a hole.
    fn digest(&self, profile: Profile, unit: u64) -> Option<DigestValue> {
        let from = unit * profile.unit_bytes();
        let to = (from + profile.unit_bytes()).min(self.length);
        self.blocks.range(from / BLOCK..to.div_ceil(BLOCK)).next()?;
        let mut bytes = vec![0; (to - from) as usize];
        self.read(from, &mut bytes);
        Some(profile.value(unit, &bytes))
    }
}

impl DigestStore for MemoryStore {
    fn profile(&self, partition: u64) -> Option<Profile> {
        self.inner.lock().profile(partition)
    }

    fn set_profile(&self, partition: u64, profile: Option<Profile>) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        let id = ObjectId::of_partition(partition);
        if inner.object(id)?.kind != ObjectType::Partition {
            return Err(StoreError::NotFound(id));
        }
        let mut objects =
            inner.objects.range(ObjectId::new(partition, 1)..=ObjectId::new(partition, u64::MAX));
        if let Some((&object, _)) = objects.next() {
            return Err(StoreError::Exists(object));
        }
        inner.profiles.insert(partition, profile);
        Ok(())
    }

    fn digests(&self, id: ObjectId, offset: u64, length: u64) -> Result<KnownDigests, StoreError> {
        if length > MAX_TRANSFER {
            return Err(StoreError::TooLarge { what: "range of digests", limit: MAX_TRANSFER });
        }
        let inner = self.inner.lock();
        let object = inner.object(id)?;
        let profile = inner.profile(id.partition).map(Profile::values);
        let (first_unit, values) = profile.map_or((0, Vec::new()), |profile| {
            let units = DigestCover::new(profile, offset, length, object.length).whole_units();
            (units.start, units.map(|unit| object.digest(profile, unit)).collect())
        });
        Ok(KnownDigests { object_length: object.length, profile, first_unit, values })
    }

    fn read_digested(
        &self,
        id: ObjectId,
        offset: u64,
        into: &mut [u8],
        _checked: DigestCheck,
    ) -> Result<DigestedRead, StoreError> {
        let inner = self.inner.lock();
        let object = inner.object(id)?;
        let count = object.read(offset, into);
        let cover = |profile| DigestCover::new(profile, offset, count as u64, object.length);
        let covered =
            inner.profile(id.partition).map(|profile| CoveredDigests::of(cover(profile), &into[..count]));
        Ok(DigestedRead { count, object_length: object.length, covered, stored: 0 })
    }

    fn write_digested(
        &self,
        id: ObjectId,
        offset: u64,
        data: &[u8],
        _covered: &CoveredDigests,
    ) -> Result<(), StoreError> {
        self.write(id, offset, data)
    }

    fn page_digest(&self, id: ObjectId, page: u32) -> Result<Option<DigestValue>, StoreError> {
        let inner = self.inner.lock();
        let object = inner.object(id)?;
        Ok(inner.profile(id.partition).map(|profile| {
            let mut digest = AttributePage::new(profile, page);
            for (attribute, value) in object.attributes.iter().filter(|(attribute, _)| attribute.page == page)
            {
                digest.push(attribute.number, value);
            }
            digest.finish()
        }))
    }
}
