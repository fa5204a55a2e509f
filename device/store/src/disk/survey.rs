//! The full check of the index at open: reads all records, page by verified page, before the engine
//! (redb) opens the file, and rebuilds the free map.
//!
//! Does: claims every extent; checks that each object has the records that its own record counts;
//! attributes losses to objects.
//! Does not: read data.
//! Contract: damage is *confined* if the walk can attribute it: a record that fails its checksum
//! still has its object in its key. An inconsistency that neither a lost page nor such a record
//! explains is a defect of the program, not of the medium: then the index is not trusted enough to
//! write to it.
//! Costs: each page is read once (a few more where ranges meet), six cursors side by side, O(1)
//! memory.

use std::collections::BTreeMap;

use sealstone_digest::Profile;
use sealstone_osd::ObjectId;
use sealstone_redb_format::{CursorStep, LostKeys, TreeCursor, TreeReader};

use super::chunk::CHUNK_BLOCKS;
use super::cross_checks::CrossChecks;
use super::record::{
    CorruptRecord, Key, RecordValue, all_about_digests, all_attributes, all_chunks, all_objects,
    attribute_key, chunk_key, chunk_of, collection_key, is_profile, is_sum, member_key, membership_key,
    object_of,
};
use super::space::BlockRun;
use crate::damage::{Damage, DamageBook, DamageKind, StoreFault};
use crate::store::attribute_weight;
use crate::{AttributeId, BLOCK, MAX_OBJECT_LENGTH};

/// Bytes of an object in one chunk record.
const CHUNK: u64 = CHUNK_BLOCKS * BLOCK;

/// Result of the walk.
#[derive(Default)]
pub(crate) struct IndexSurvey {
    pub(crate) objects: u64,
    pub(crate) damage: DamageBook,
    pub(crate) faults: Vec<StoreFault>,
    /// Number of contradicting records that no loss explains.
    pub(crate) inconsistent: u64,
    /// Digest profiles of partitions. If the record is lost, the partition has the default profile:
    /// its stored digests of another profile count as unknown, and are computed again on writes.
    pub(crate) profiles: BTreeMap<u64, Option<Profile>>,
}

/// Result of claiming an extent in the free map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimOutcome {
    /// It is counted.
    Taken,
    /// It is counted, but its segment cannot be read.
    Unreadable,
    /// It is counted, but its bytes were in a record of the index that is lost.
    Lost,
    /// It is counted, but its bytes are not in the index, and no loss explains that.
    Absent,
    /// It lies outside of all segments.
    Outside,
}

/// The records of one kind, by their objects, in order.
pub(crate) struct OwnedRecords<'a> {
    cursor: TreeCursor<'a>,
    /// Keys that could not be read so far, ascending.
    lost: Vec<LostKeys>,
}

/// Returns the lost ranges that overlap `first..=last`, of ranges in ascending order.
pub(crate) fn among<'l>(lost: &'l [LostKeys], first: &Key, last: &Key) -> impl Iterator<Item = &'l LostKeys> {
    let from = lost.partition_point(|lost| lost.through.is_some_and(|through| through < *first));
    let (first, last) = (*first, *last);
    lost[from..].iter().take_while(move |lost| lost.overlaps(&first, &last))
}

impl<'a> OwnedRecords<'a> {
    pub(crate) fn new(reader: &'a TreeReader, (first, last): (Key, Key)) -> Self {
        Self { cursor: TreeCursor::new(reader, first, last), lost: Vec::new() }
    }

    /// Visits the records of objects up to `id`.
    pub(crate) fn advance(
        &mut self,
        id: ObjectId,
        mut visit: impl FnMut(&Key, Result<RecordValue, CorruptRecord>),
    ) {
        while let Some(step) = self.cursor.current() {
            match step {
                CursorStep::Record(key, _) if object_of(key) > id => return,
                CursorStep::Record(key, value) => visit(key, RecordValue::parse(key, value)),
                CursorStep::Lost(lost) => self.lost.push(lost),
            }
            self.cursor.pass();
        }
    }

    /// Whether records between these keys may be lost. Only for keys that it has passed.
    pub(crate) fn misses(&self, first: &Key, last: &Key) -> bool {
        among(&self.lost, first, last).next().is_some()
    }

    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }
}

/// Returns the damage of chunks `first..=last` of an object that is `length` bytes long.
fn chunks_damage(object: ObjectId, first: u64, last: u64, length: u64) -> Option<Damage> {
    let offset = first.checked_mul(CHUNK)?.min(length);
    let end = last.saturating_add(1).saturating_mul(CHUNK).min(length);
    (offset < end).then_some(Damage { object, kind: DamageKind::Map, offset, length: end - offset })
}

/// Walks over all records.
pub(crate) fn survey(reader: &TreeReader, mut claim: impl FnMut(BlockRun) -> ClaimOutcome) -> IndexSurvey {
    let mut survey = IndexSurvey::default();
    let mut objects = OwnedRecords::new(reader, all_objects());
    let mut chunks = OwnedRecords::new(reader, all_chunks());
    let mut attributes = OwnedRecords::new(reader, all_attributes());
    let mut ties = CrossChecks::new(reader);
    let end = ObjectId::new(u64::MAX, u64::MAX);
    let mut each = |survey: &mut IndexSurvey,
                    objects: &OwnedRecords<'_>,
                    id: ObjectId,
                    record: Option<Result<RecordValue, CorruptRecord>>| {
        let known = match &record {
            Some(Ok(RecordValue::Object(record))) => Some(*record),
            _ => None,
        };
        let length = known.map_or(MAX_OBJECT_LENGTH, |record| record.length);
        let IndexSurvey { damage, inconsistent, .. } = survey;
        // Records of an object whose own record is missing.
        let mut orphan = |damage: &mut DamageBook, owner: ObjectId| {
            let own = super::record::object_key(owner);
            damage.add(Damage::whole(owner, DamageKind::Record));
            *inconsistent += u64::from(!objects.misses(&own, &own));
        };
        if matches!(record, Some(Ok(_) | Err(CorruptRecord))) && known.is_none() {
            damage.add(Damage::whole(id, DamageKind::Record));
        }
        let is_own = |owner: ObjectId| owner == id && record.is_some();
        let (mut blocks, mut absent, mut corrupt) = (0, 0, false);
        chunks.advance(id, |key, value| {
            let (owner, number) = (object_of(key), chunk_of(key));
            if !is_own(owner) {
                orphan(damage, owner);
            }
            let length = if is_own(owner) { length } else { MAX_OBJECT_LENGTH };
            let Ok(RecordValue::Chunk(chunk)) = value else {
                corrupt |= is_own(owner);
                chunks_damage(owner, number, number, length).into_iter().for_each(|piece| damage.add(piece));
                return;
            };
            for (extent, sums) in chunk.extents() {
                let count = sums.len() as u64;
                blocks += if is_own(owner) { count } else { 0 };
                let kind = match claim(BlockRun { location: extent.location, count }) {
                    ClaimOutcome::Taken => continue,
                    ClaimOutcome::Unreadable => DamageKind::Unreadable,
                    ClaimOutcome::Lost => DamageKind::Data,
                    ClaimOutcome::Absent => {
                        absent += 1;
                        DamageKind::Data
                    }
                    ClaimOutcome::Outside => DamageKind::Map,
                };
                let offset = number.saturating_mul(CHUNK) + u64::from(extent.first) * BLOCK;
                let count = (count * BLOCK).min(length.saturating_sub(offset));
                if count > 0 {
                    damage.add(Damage { object: owner, kind, offset, length: count });
                }
            }
        });
        let (mut weight, mut rotten_attribute) = (0, false);
        attributes.advance(id, |key, value| {
            let owner = object_of(key);
            if !is_own(owner) {
                orphan(damage, owner);
            }
            match value {
                Ok(RecordValue::Attribute(value)) if is_own(owner) => weight += attribute_weight(value.len()),
                Ok(RecordValue::Attribute(_)) => {}
                _ => {
                    rotten_attribute |= is_own(owner);
                    damage.add(Damage::whole(owner, DamageKind::Attributes));
                }
            }
        });
        *inconsistent += absent;
        let check = ties.advance(id);
        let Some(record) = known else { return };
        if record.blocks != blocks {
            let (first, last) = (chunk_key(id, 0), chunk_key(id, u64::MAX));
            let mut explained = corrupt;
            for lost in among(&chunks.lost, &first, &last) {
                let number = |key: Option<Key>, other: u64| {
                    key.filter(|key| object_of(key) == id && key[0] == first[0])
                        .map_or(other, |key| chunk_of(&key))
                };
                // The first one is `after` itself, which exists: one too many, except for whole
                // objects.
                let start = number(lost.after, 0);
                let piece = chunks_damage(id, start, number(lost.through, u64::MAX), length);
                piece.into_iter().for_each(|piece| damage.add(piece));
                explained = true;
            }
            if !explained {
                chunks_damage(id, 0, u64::MAX, length).into_iter().for_each(|piece| damage.add(piece));
                *inconsistent += 1;
            }
        }
        let attribute = |number| attribute_key(id, AttributeId { page: number, number });
        if record.attribute_weight != weight {
            damage.add(Damage::whole(id, DamageKind::Attributes));
            let explained = rotten_attribute || attributes.misses(&attribute(0), &attribute(u32::MAX));
            *inconsistent += u64::from(!explained);
        }
        if !check.fits(&record) {
            damage.add(Damage::whole(id, DamageKind::Memberships));
            let explained = check.is_corrupt()
                || ties.misses(
                    (&member_key(id, 0), &member_key(id, u64::MAX)),
                    (&membership_key(id, 0), &membership_key(id, u64::MAX)),
                    &collection_key(id),
                );
            *inconsistent += u64::from(!explained);
        }
    };
    while let Some(step) = objects.cursor.current() {
        match step {
            CursorStep::Lost(lost) => objects.lost.push(lost),
            CursorStep::Record(key, value) => {
                let (id, value) = (object_of(key), RecordValue::parse(key, value));
                survey.objects += 1;
                each(&mut survey, &objects, id, Some(value));
            }
        }
        objects.cursor.pass();
    }
    // The remaining records belong to objects whose own record is missing.
    each(&mut survey, &objects, end, None);
    survey.inconsistent += u64::from(!ties.finish());
    // Digests can be computed again: losing them loses no bytes.
    OwnedRecords::new(reader, all_about_digests()).advance(end, |key, value| match value {
        Ok(RecordValue::Profile(profile)) => {
            survey.profiles.insert(object_of(key).partition, profile);
        }
        Ok(_) => {}
        Err(CorruptRecord) => {
            let object = object_of(key);
            tracing::error!(%object, "a digest record is lost");
            let kind = match () {
                () if is_profile(key) => DamageKind::Profile,
                () if is_sum(key) => DamageKind::Sum,
                () => DamageKind::Digests,
            };
            survey.damage.add(Damage::whole(object, kind));
        }
    });
    let (low, high) = all_objects();
    for lost in &objects.lost {
        let bound = |key: Option<Key>, other: Key| key.filter(|key| key[0] == low[0]).unwrap_or(other);
        let (from, to) = (object_of(&bound(lost.after, low)), object_of(&bound(lost.through, high)));
        survey.faults.push(StoreFault::LostObjects { from, to });
    }
    survey
}
