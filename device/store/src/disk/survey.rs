//! The walk over all records at open, on pages that are proved one by one, before the engine has the file.
//!
//! Does: claim every extent; check that each object has what its own record counts; say of which objects what is lost.
//! Does not: read data. Contract: damage is *confined* if the walk can tell whose it is: a record that fails its
//! checksum names its object by its key. What no lost page and no such record explains is the program's fault, not the
//! medium's: then nothing about the index is believed enough to write to it.
//! Costs: each page is read once (a few more where ranges meet), six cursors side by side, O(1) memory.

use std::collections::BTreeMap;

use sealstone_digest::Profile;
use sealstone_osd::ObjectId;

use super::chunk::CHUNK_BLOCKS;
use super::record::{
    Key, Rotten, Value, all_about_digests, all_attributes, all_chunks, all_objects, attribute_key, chunk_key,
    chunk_of, collection_key, is_profile, is_sum, member_key, membership_key, object_of,
};
use super::space::Run;
use super::ties::Ties;
use super::tree::{Cursor, Lost, Reader, Step};
use crate::damage::{Damage, DamageBook, DamageKind, StoreFault};
use crate::store::attribute_weight;
use crate::{AttributeId, BLOCK, MAX_OBJECT_LENGTH};

/// Bytes of an object under one chunk record.
const CHUNK: u64 = CHUNK_BLOCKS * BLOCK;

/// What the walk found.
#[derive(Default)]
pub(crate) struct Survey {
    pub(crate) objects: u64,
    pub(crate) damage: DamageBook,
    pub(crate) faults: Vec<StoreFault>,
    /// Records that disagree and nothing lost explains it.
    pub(crate) inconsistent: u64,
    /// The digest profiles that partitions were given. Where the record is lost the partition has the default: the
    /// digests of its units are not known by that, and made anew when they are written.
    pub(crate) profiles: BTreeMap<u64, Option<Profile>>,
}

/// How an extent is taken by whoever counts blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is counted.
    Taken,
    /// It is counted, but its segment cannot be read.
    Unreadable,
    /// It is counted, but its bytes were in a record of the index that is lost.
    Lost,
    /// It is counted, but its bytes are not in the index, and nothing lost explains it.
    Absent,
    /// It lies outside of all segments.
    Outside,
}

/// The records of one kind, by their objects, in order.
pub(crate) struct Owned<'a> {
    cursor: Cursor<'a>,
    /// Keys that could not be seen so far, ascending.
    lost: Vec<Lost>,
}

/// Lost keys among these, of lost keys in ascending order.
pub(crate) fn among<'l>(lost: &'l [Lost], first: &Key, last: &Key) -> impl Iterator<Item = &'l Lost> {
    let from = lost.partition_point(|lost| lost.through.is_some_and(|through| through < *first));
    let (first, last) = (*first, *last);
    lost[from..].iter().take_while(move |lost| lost.meets(&first, &last))
}

impl<'a> Owned<'a> {
    pub(crate) fn new(reader: &'a Reader, (first, last): (Key, Key)) -> Self {
        Self { cursor: Cursor::new(reader, first, last), lost: Vec::new() }
    }

    /// Visits what belongs to objects up to `id`.
    pub(crate) fn advance(&mut self, id: ObjectId, mut visit: impl FnMut(&Key, Result<Value, Rotten>)) {
        while let Some(step) = self.cursor.current() {
            match step {
                Step::Record(key, _) if object_of(key) > id => return,
                Step::Record(key, value) => visit(key, Value::parse(key, value)),
                Step::Lost(lost) => self.lost.push(lost),
            }
            self.cursor.pass();
        }
    }

    /// May records between these keys be lost? Only of keys that it went past.
    pub(crate) fn misses(&self, first: &Key, last: &Key) -> bool {
        among(&self.lost, first, last).next().is_some()
    }

    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }
}

/// The bytes of chunks `first..=last` of an object that is `length` bytes long.
fn chunks_damage(object: ObjectId, first: u64, last: u64, length: u64) -> Option<Damage> {
    let offset = first.checked_mul(CHUNK)?.min(length);
    let end = last.saturating_add(1).saturating_mul(CHUNK).min(length);
    (offset < end).then_some(Damage { object, kind: DamageKind::Map, offset, length: end - offset })
}

/// Walks over everything.
pub(crate) fn survey(reader: &Reader, mut claim: impl FnMut(Run) -> Claim) -> Survey {
    let mut survey = Survey::default();
    let mut objects = Owned::new(reader, all_objects());
    let mut chunks = Owned::new(reader, all_chunks());
    let mut attributes = Owned::new(reader, all_attributes());
    let mut ties = Ties::new(reader);
    let end = ObjectId::new(u64::MAX, u64::MAX);
    let mut each = |survey: &mut Survey,
                    objects: &Owned<'_>,
                    id: ObjectId,
                    record: Option<Result<Value, Rotten>>| {
        let known = match &record {
            Some(Ok(Value::Object(record))) => Some(*record),
            _ => None,
        };
        let length = known.map_or(MAX_OBJECT_LENGTH, |record| record.length);
        let Survey { damage, inconsistent, .. } = survey;
        // Records of an object whose own is not there.
        let mut orphan = |damage: &mut DamageBook, owner: ObjectId| {
            let own = super::record::object_key(owner);
            damage.add(Damage::whole(owner, DamageKind::Record));
            *inconsistent += u64::from(!objects.misses(&own, &own));
        };
        if matches!(record, Some(Ok(_) | Err(Rotten))) && known.is_none() {
            damage.add(Damage::whole(id, DamageKind::Record));
        }
        let mine = |owner: ObjectId| owner == id && record.is_some();
        let (mut blocks, mut absent, mut rotten) = (0, 0, false);
        chunks.advance(id, |key, value| {
            let (owner, number) = (object_of(key), chunk_of(key));
            if !mine(owner) {
                orphan(damage, owner);
            }
            let length = if mine(owner) { length } else { MAX_OBJECT_LENGTH };
            let Ok(Value::Chunk(chunk)) = value else {
                rotten |= mine(owner);
                chunks_damage(owner, number, number, length).into_iter().for_each(|piece| damage.add(piece));
                return;
            };
            for (extent, sums) in chunk.extents() {
                let count = sums.len() as u64;
                blocks += if mine(owner) { count } else { 0 };
                let kind = match claim(Run { place: extent.place, count }) {
                    Claim::Taken => continue,
                    Claim::Unreadable => DamageKind::Unreadable,
                    Claim::Lost => DamageKind::Data,
                    Claim::Absent => {
                        absent += 1;
                        DamageKind::Data
                    }
                    Claim::Outside => DamageKind::Map,
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
            if !mine(owner) {
                orphan(damage, owner);
            }
            match value {
                Ok(Value::Attribute(value)) if mine(owner) => weight += attribute_weight(value.len()),
                Ok(Value::Attribute(_)) => {}
                _ => {
                    rotten_attribute |= mine(owner);
                    damage.add(Damage::whole(owner, DamageKind::Attributes));
                }
            }
        });
        *inconsistent += absent;
        let tie = ties.advance(id);
        let Some(record) = known else { return };
        if record.blocks != blocks {
            let (first, last) = (chunk_key(id, 0), chunk_key(id, u64::MAX));
            let mut explained = rotten;
            for lost in among(&chunks.lost, &first, &last) {
                let number = |key: Option<Key>, other: u64| {
                    key.filter(|key| object_of(key) == id && key[0] == first[0])
                        .map_or(other, |key| chunk_of(&key))
                };
                // The first one is `after` itself, which is there: one too many, but for whole objects.
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
        if !tie.fits(&record) {
            damage.add(Damage::whole(id, DamageKind::Memberships));
            let explained = tie.is_rotten()
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
            Step::Lost(lost) => objects.lost.push(lost),
            Step::Record(key, value) => {
                let (id, value) = (object_of(key), Value::parse(key, value));
                survey.objects += 1;
                each(&mut survey, &objects, id, Some(value));
            }
        }
        objects.cursor.pass();
    }
    // What is left belongs to objects whose own record is gone.
    each(&mut survey, &objects, end, None);
    survey.inconsistent += u64::from(!ties.finish());
    // Digests can be computed again: what is lost of them costs no bytes.
    Owned::new(reader, all_about_digests()).advance(end, |key, value| match value {
        Ok(Value::Profile(profile)) => {
            survey.profiles.insert(object_of(key).partition, profile);
        }
        Ok(_) => {}
        Err(Rotten) => {
            let object = object_of(key);
            tracing::error!(%object, "a record about digests is lost");
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
