//! Stored digests: recomputed for changed units, and returned with reads.
//!
//! Does: when the blocks of an operation are in place, computes the digest of each unit that it
//! touched: from the data if that covers the unit, else from the unit's final bytes.
//! Does not: fail an operation; a unit that cannot be read, or has a damaged block, has no digest
//! afterwards.
//! Contract: a known digest is that of the bytes whose checksums are stored with it: any change of
//! a slot or of the object's end clears the unit's digest first. Units that are completely holes
//! have none.
//! Costs: a write that ends inside a unit reads the rest of that unit (at most 12 KiB at each end)
//! and hashes it.

use std::collections::BTreeMap;
use std::ops::Range;

use sealstone_digest::{CoveredDigests, DigestCover, DigestValue as Digest, Profile};
use sealstone_osd::{ObjectId, ObjectType};

use super::DiskStore;
use super::chunk::{CHUNK_BLOCKS, Chunk, in_chunk};
use super::group::AnswerWait;
use super::index_space::{PageDemand, ReserveClass};
use super::prepared::PreparedData;
use super::read::{UncheckedBlocks, within};
use super::record::{RecordValue, object_key, object_of, profile_key};
use super::stage::StagedChanges;
use super::write::WriteSource;
use crate::damage::{Damage, DamageKind};
use crate::digests::{DigestCheck, DigestStore, DigestedRead, KnownDigests};
use crate::{BLOCK, MAX_TRANSFER, StoreError};

impl StagedChanges<'_> {
    /// Marks the unit of this byte as possibly without a digest.
    pub(crate) fn touch(&mut self, offset: u64) {
        if let Some(profile) = self.profile {
            self.stale.insert(offset / profile.unit_bytes());
        }
    }

    /// Returns the bytes of the object that a unit covers.
    pub(crate) fn unit_range(&self, profile: Profile, unit: u64) -> Range<u64> {
        let start = unit * profile.unit_bytes();
        start..(start + profile.unit_bytes()).min(self.record.length).max(start)
    }

    /// Computes the digests of the units that some data was just written to.
    pub(crate) fn digest(
        &mut self,
        source: &WriteSource<'_>,
        prepared: &PreparedData<'_>,
        increments: &BTreeMap<u64, Digest>,
    ) -> Result<(), StoreError> {
        let Some(profile) = self.profile else { return Ok(()) };
        let blocks = source.blocks();
        let each = profile.unit_bytes() / BLOCK;
        for unit in blocks.start / each..blocks.end.div_ceil(each) {
            let range = self.unit_range(profile, unit);
            if range.is_empty() {
                continue;
            }
            let whole = prepared
                .value(profile, unit, &range)
                .or_else(|| increments.get(&unit).copied())
                .or_else(|| source.slice(&range).map(|bytes| profile.value(unit, bytes)));
            let value = match whole {
                None if self.store.options.digest_lazily => None,
                None => self.merged(profile, unit, Some(source)),
                whole => whole,
            };
            if let Some(value) = value {
                let (chunk, number) = in_chunk(profile, unit);
                self.flat(chunk)?.set_digest(number, &value);
            }
        }
        Ok(())
    }

    /// Returns the current digest of a unit, some of whose blocks may be in `source`; `None` if the
    /// unit is a hole or cannot be read.
    fn merged(&mut self, profile: Profile, unit: u64, source: Option<&WriteSource<'_>>) -> Option<Digest> {
        let range = self.unit_range(profile, unit);
        let mut bytes = vec![0; profile.unit_bytes() as usize];
        let mut mapped = false;
        // Blocks that are consecutive on the medium are read at once.
        let mut run: Option<(u64, usize, Vec<u32>)> = None;
        let (base, end) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
        for block in base..end {
            let at = ((block - base) * BLOCK) as usize;
            if let Some(found) = source.and_then(|source| source.find(block)) {
                bytes[at..at + BLOCK as usize].copy_from_slice(found);
                mapped = true;
                continue;
            }
            let slot = self.slot(block).ok()?;
            let Some(location) = slot.location() else { continue };
            mapped = true;
            match &mut run {
                Some((first, from, sums))
                    if *first + sums.len() as u64 == location
                        && *from + sums.len() * BLOCK as usize == at
                        && !location.is_multiple_of(self.store.segments.blocks_each) =>
                {
                    sums.push(slot.sum);
                }
                _ => {
                    self.fill(run.take(), &mut bytes)?;
                    run = Some((location, at, vec![slot.sum]));
                }
            }
        }
        self.fill(run, &mut bytes)?;
        mapped.then(|| profile.value(unit, &bytes[..(range.end - range.start) as usize]))
    }

    fn fill(&self, run: Option<(u64, usize, Vec<u32>)>, bytes: &mut [u8]) -> Option<()> {
        let Some((location, from, sums)) = run else { return Some(()) };
        if let Some(written) = self.inline.get(&location) {
            bytes[from..from + written.len()].copy_from_slice(written);
            return Some(());
        }
        self.store.read_sound(location, &sums, &mut bytes[from..][..sums.len() * BLOCK as usize])
    }

    /// Computes the digests of these units of a chunk; returns how many could be computed.
    pub(crate) fn complete(
        &mut self,
        chunk: u64,
        profile: Profile,
        units: &[u32],
    ) -> Result<u64, StoreError> {
        let first = chunk * (CHUNK_BLOCKS * BLOCK / profile.unit_bytes());
        let mut made = 0;
        for &unit in units {
            if let Some(value) = self.merged(profile, first + u64::from(unit), None) {
                self.flat(chunk)?.set_digest(unit, &value);
                made += 1;
            }
        }
        Ok(made)
    }

    /// Computes the missing digests of units at the edges of the changed ranges.
    pub(crate) fn refresh(&mut self) {
        let Some(profile) = self.profile else { return };
        if self.store.options.digest_lazily {
            return;
        }
        for unit in std::mem::take(&mut self.stale) {
            let (chunk, number) = in_chunk(profile, unit);
            if self.unit_range(profile, unit).is_empty() || !self.has(chunk).unwrap_or(false) {
                continue;
            }
            if self.flat(chunk).is_ok_and(|flat| !flat.has_digest(number))
                && let Some(value) = self.merged(profile, unit, None)
                && let Ok(flat) = self.flat(chunk)
            {
                flat.set_digest(number, &value);
            }
        }
    }
}

/// Collects the stored digests of the whole units of a range, chunk by chunk.
struct StoredDigests<'a> {
    cover: &'a DigestCover,
    units: Range<u64>,
    values: Vec<Option<Digest>>,
}

impl<'a> StoredDigests<'a> {
    fn of(cover: &'a DigestCover) -> Self {
        let units = cover.whole_units();
        Self { cover, values: Vec::with_capacity((units.end - units.start) as usize), units }
    }

    /// Takes the digests of the next chunk; returns the blocks of the units that have one.
    fn take(&mut self, number: u64, chunk: Option<&Chunk>) -> UncheckedBlocks {
        let profile = self.cover.profile();
        let each = CHUNK_BLOCKS * BLOCK / profile.unit_bytes();
        let blocks = profile.unit_bytes() / BLOCK;
        let mut unchecked = UncheckedBlocks::NONE;
        for unit in self.units.start.max(number * each)..self.units.end.min((number + 1) * each) {
            let at = unit % each;
            let value = chunk.and_then(|chunk| chunk.digests().get(profile, at as u32));
            if value.is_some() {
                unchecked.add(at * blocks..(at + 1) * blocks);
            }
            self.values.push(value);
        }
        unchecked
    }
}

impl DiskStore {
    /// Whether the stored digests of the whole units of a range match their bytes, whose checksums
    /// were found right. The caller holds the object's lock.
    fn compare_digests(
        &self,
        id: ObjectId,
        cover: &DigestCover,
        values: &[Option<Digest>],
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let profile = cover.profile();
        let start = cover.range().start;
        for (unit, value) in cover.whole_units().zip(values) {
            let from = unit * profile.unit_bytes();
            let to = (from + profile.unit_bytes()).min(cover.range().end);
            let Some(value) = value else { continue };
            if profile.value(unit, &bytes[(from - start) as usize..(to - start) as usize]) != *value {
                tracing::error!(%id, unit, "a stored digest does not match the bytes");
                let (offset, length) = (from, to - from);
                self.note(Damage { object: id, kind: DamageKind::Data, offset, length });
                return Err(StoreError::Damaged { object: id, offset, length });
            }
        }
        Ok(())
    }

    /// Returns the digest profile of a partition's objects.
    pub(crate) fn profile_of(&self, partition: u64) -> Option<Profile> {
        if self.options.undigested.contains(&partition) {
            return None;
        }
        self.profiles.read().get(&partition).copied().unwrap_or(Some(Profile::DEFAULT))
    }

    /// Deletes the profile of a removed partition.
    pub(crate) fn forget_profile(&self, id: ObjectId) {
        if id.object == 0 {
            self.profiles.write().remove(&id.partition);
        }
    }

    /// Returns the known digests of some units. The caller holds the object's lock.
    fn known(
        &self,
        id: ObjectId,
        profile: Profile,
        units: Range<u64>,
    ) -> Result<Vec<Option<Digest>>, StoreError> {
        let mut values = Vec::with_capacity((units.end - units.start) as usize);
        let mut unit = units.start;
        while unit < units.end {
            let (chunk, first) = in_chunk(profile, unit);
            let each = CHUNK_BLOCKS * BLOCK / profile.unit_bytes();
            let stop = units.end.min((chunk + 1) * each);
            let found = self.chunk(id, chunk)?;
            let digests = found.as_ref().map(|chunk| chunk.digests());
            values.extend(
                (first..)
                    .take((stop - unit) as usize)
                    .map(|unit| digests.and_then(|digests| digests.get(profile, unit))),
            );
            unit = stop;
        }
        Ok(values)
    }

    fn try_set_profile(&self, partition: u64, profile: Option<Profile>) -> Result<AnswerWait, StoreError> {
        let id = ObjectId::of_partition(partition);
        let _inside = self.groups.gate.enter();
        self.groups.check()?;
        let _lock = self.lock(id).write();
        if self.record(id)?.kind != ObjectType::Partition {
            return Err(StoreError::NotFound(id));
        }
        let all = object_key(ObjectId::new(partition, 1))..=object_key(ObjectId::new(partition, u64::MAX));
        // A lost profile may be set again.
        let lost = self.lost_profile(id);
        if let Some((key, _)) = self.index.scan(all, 1)?.first().filter(|_| !lost) {
            return Err(StoreError::Exists(object_of(key)));
        }
        let given = (profile != Some(Profile::DEFAULT)).then_some(profile);
        let change = (profile_key(partition), given.map(RecordValue::Profile));
        let ack = self.apply(vec![change], &[], &[], Vec::new());
        let mut profiles = self.profiles.write();
        match given {
            Some(profile) => profiles.insert(partition, profile),
            None => profiles.remove(&partition),
        };
        Ok(ack)
    }
}

impl DigestStore for DiskStore {
    fn profile(&self, partition: u64) -> Option<Profile> {
        self.profile_of(partition)
    }

    fn set_profile(&self, partition: u64, profile: Option<Profile>) -> Result<(), StoreError> {
        let _room = self.admit(PageDemand::profile(), ReserveClass::Overwrite)?;
        let ack = self.try_set_profile(partition, profile)?;
        self.changed(ObjectId::of_partition(partition), 0..0, true);
        self.acknowledge(ack)
    }

    fn digests(&self, id: ObjectId, offset: u64, length: u64) -> Result<KnownDigests, StoreError> {
        if length > MAX_TRANSFER {
            return Err(StoreError::TooLarge { what: "range of digests", limit: MAX_TRANSFER });
        }
        let profile = self.profile_of(id.partition).map(Profile::values);
        let _lock = self.lock(id).read();
        let object_length = self.record(id)?.length;
        let units = profile
            .map_or(0..0, |profile| DigestCover::new(profile, offset, length, object_length).whole_units());
        let values = match profile {
            Some(profile) => self.known(id, profile, units.clone())?,
            None => Vec::new(),
        };
        Ok(KnownDigests { object_length, profile, first_unit: units.start, values })
    }

    fn read_digested(
        &self,
        id: ObjectId,
        offset: u64,
        into: &mut [u8],
        checked: DigestCheck,
    ) -> Result<DigestedRead, StoreError> {
        let Some(profile) = self.profile_of(id.partition).map(Profile::values) else {
            let (count, object_length) = self.read_whole(id, offset, into)?;
            return Ok(DigestedRead { count, object_length, covered: None, stored: 0 });
        };
        let lock = self.lock(id).read();
        let object_length = self.record(id)?.length;
        let count = object_length.saturating_sub(offset).min(into.len() as u64) as usize;
        let into = &mut into[..count];
        let cover = DigestCover::new(profile, offset, count as u64, object_length);
        // Bytes with known damage are checked again, so that a receiver that cannot check gets the
        // error, too.
        let trusts = checked == DigestCheck::ByReceiver && !self.book.lock().has_damage(id);
        let mut known = StoredDigests::of(&cover);
        self.read_range_with(id, offset, into, |number, chunk| {
            let unchecked = known.take(number, chunk);
            if trusts { unchecked } else { UncheckedBlocks::NONE }
        })
        .map_err(|error| within(error, object_length))?;
        let StoredDigests { values, .. } = known;
        if !trusts {
            self.compare_digests(id, &cover, &values, into)?;
        }
        drop(lock);
        // Digests that are not stored are computed without the lock.
        let first = cover.whole_units().start;
        let stored = values.iter().flatten().count() as u64;
        let covered = CoveredDigests::with(cover, into, |unit| values[(unit - first) as usize]);
        Ok(DigestedRead { count, object_length, covered: Some(covered), stored })
    }

    fn write_digested(
        &self,
        id: ObjectId,
        offset: u64,
        data: &[u8],
        covered: &CoveredDigests,
    ) -> Result<(), StoreError> {
        self.write_with(id, offset, data, Some(covered))
    }

    fn page_digest(&self, id: ObjectId, page: u32) -> Result<Option<Digest>, StoreError> {
        self.digest_of_page(id, page)
    }
}
