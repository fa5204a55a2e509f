//! The position of the scrub in its pass, and the objects that it examines early.
//!
//! Does: chooses the next object; encodes the position, which survives a restart.
//! Does not: examine objects; [`scrub`](crate::scrub) does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use sealstone_osd::{AttributeId, ObjectId};
use sealstone_store::{ObjectStore, StoreError};

use crate::attributes::rows::INTERNAL;
use crate::catalog::{self, successor};
use crate::damage::{self, Examination, Examiner};

/// Objects listed per request to the store.
const LIST_STEP: usize = 256;
/// Objects queued for early examination. Further ones are left to the regular pass.
const SUSPECTS_MAX: usize = 4096;
/// Attempts to examine an object, with a pause in between, before the pass continues without it.
const TRIES: u32 = 2;
/// Attribute with the position.
pub(crate) const WALK: AttributeId = AttributeId::new(INTERNAL, 0x22);
/// Layout version, the first byte of that attribute.
const LAYOUT: u8 = 1;

/// Why an object is examined early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Suspicion {
    /// Known damage that may have been rewritten.
    Known,
    /// This byte could not be read.
    Byte(u64),
    /// Some part of it could not be read.
    Whole,
}

/// An object that a pass could not examine completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadObject {
    /// Id of the object.
    pub id: ObjectId,
    /// First byte that was not examined.
    pub at: u64,
    /// Reason of the failure.
    pub error: String,
}

/// Position and counts of a pass.
#[derive(Default)]
pub(crate) struct ScrubPass {
    pub(crate) running: bool,
    pub(crate) began_ms: u64,
    pub(crate) ended_ms: u64,
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    pub(crate) digested: u64,
    pub(crate) unread: u64,
    /// The first of them, with reasons.
    pub(crate) unread_objects: Vec<UnreadObject>,
    /// The object that fails, and its failures in a row.
    pub(crate) failing: Option<(ObjectId, u32)>,
    /// First object that was not listed yet.
    pub(crate) from: Option<ObjectId>,
    /// Objects listed but not started.
    pub(crate) queue: VecDeque<ObjectId>,
    /// Object in progress.
    pub(crate) now: Option<Examination>,
    /// Object in progress that is examined early.
    pub(crate) aside: Option<Examination>,
    /// After a restart in the middle of an object: the object and its first unread byte.
    pub(crate) resume: Option<(ObjectId, u64)>,
    pub(crate) saved_ms: u64,
    pub(crate) rechecked_ms: u64,
}

/// The scrub of one device.
pub(crate) struct DeviceScrub {
    pub(crate) walk: Mutex<ScrubPass>,
    pub(crate) suspects: Mutex<BTreeMap<ObjectId, Suspicion>>,
    pub(crate) bytes: AtomicU64,
    pub(crate) objects: AtomicU64,
    pub(crate) digested: AtomicU64,
    pub(crate) passes: AtomicU64,
}

impl DeviceScrub {
    /// Loads the position saved before a restart.
    pub(crate) fn load(store: &dyn ObjectStore) -> Self {
        let stored = store.attribute(ObjectId::ROOT, WALK).ok().flatten().unwrap_or_default();
        Self {
            walk: Mutex::new(ScrubPass::decode(&stored).unwrap_or_default()),
            suspects: Mutex::new(BTreeMap::new()),
            bytes: AtomicU64::new(0),
            objects: AtomicU64::new(0),
            digested: AtomicU64::new(0),
            passes: AtomicU64::new(0),
        }
    }

    /// Queues the object of an error. `object` is the one that was accessed, if the error names
    /// none.
    pub(crate) fn suspect_error(&self, error: &StoreError, object: Option<ObjectId>) {
        match (error, object) {
            (StoreError::Damaged { object, offset, .. }, _) => {
                self.suspect(*object, Suspicion::Byte(*offset));
            }
            (StoreError::IndexDamaged { object }, _) => self.suspect(*object, Suspicion::Whole),
            (StoreError::Io { .. }, Some(object)) => self.suspect(object, Suspicion::Whole),
            _ => {}
        }
    }

    pub(crate) fn suspect(&self, id: ObjectId, why: Suspicion) {
        let mut suspects = self.suspects.lock();
        if suspects.len() < SUSPECTS_MAX || suspects.contains_key(&id) {
            let known = suspects.entry(id).or_insert(why);
            *known = match (*known, why) {
                // Two different bytes: examine the whole object.
                (Suspicion::Byte(a), Suspicion::Byte(b)) if a != b => Suspicion::Whole,
                (known, why) => known.max(why),
            };
        }
    }
}

impl ScrubPass {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (at, offset) = self.position();
        let numbers = [
            self.began_ms,
            self.ended_ms,
            self.objects,
            self.bytes,
            at.unwrap_or(ObjectId::ROOT).partition,
            at.unwrap_or(ObjectId::ROOT).object,
            offset,
            self.digested,
            self.unread,
        ];
        let mut bytes = vec![LAYOUT, u8::from(self.running)];
        bytes.extend(numbers.into_iter().flat_map(u64::to_be_bytes));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let [LAYOUT, running, numbers @ ..] = bytes else { return None };
        let numbers: Vec<u64> = numbers.chunks_exact(8).map(catalog::be).collect();
        let &[began_ms, ended_ms, objects, bytes, partition, object, offset, ref later @ ..] = &*numbers
        else {
            return None;
        };
        // A position stored by an older version has fewer counters.
        let (digested, unread) = match *later {
            [] => (0, 0),
            [digested, unread] => (digested, unread),
            _ => return None,
        };
        let at = ObjectId::new(partition, object);
        Some(Self {
            running: *running != 0,
            began_ms,
            ended_ms,
            objects,
            bytes,
            digested,
            unread,
            from: Some(at),
            resume: (offset > 0).then_some((at, offset)),
            ..Self::default()
        })
    }

    /// Returns the object and byte at which to resume.
    pub(crate) fn position(&self) -> (Option<ObjectId>, u64) {
        match (&self.now, &self.resume) {
            (Some(now), _) => (Some(now.id()), now.at()),
            (None, Some((id, offset))) => (Some(*id), *offset),
            (None, None) => (self.queue.front().copied().or(self.from), 0),
        }
    }

    /// Starts a pass at the first object.
    pub(crate) fn begin(&mut self, now_ms: u64) {
        let keep = (self.ended_ms, self.rechecked_ms);
        *self = Self { running: true, began_ms: now_ms, from: Some(ObjectId::ROOT), ..Self::default() };
        (self.ended_ms, self.rechecked_ms) = keep;
    }

    /// Returns the object to read next; `None` if there are no more.
    pub(crate) fn next(&mut self, examiner: Examiner<'_>) -> Result<Option<Examination>, StoreError> {
        if let Some(now) = self.now.take() {
            return Ok(Some(now));
        }
        if self.queue.is_empty()
            && let Some(from) = self.from
        {
            let listed = examiner.store.list_known(from, LIST_STEP)?;
            let whole = listed.len() == LIST_STEP;
            self.from = listed.last().filter(|_| whole).and_then(|(last, _)| successor(*last));
            self.queue.extend(listed.into_iter().map(|(id, _)| id));
        }
        let Some(id) = self.queue.pop_front() else { return Ok(None) };
        Ok(Some(match self.resume.take() {
            Some((half, offset)) if half == id => {
                // Findings of its first part were recorded then.
                let found = damage::known(examiner.store, id).unwrap_or_default();
                Examination::resumed(id, offset, found)
            }
            _ => Examination::of(id),
        }))
    }

    /// Counts a failed attempt, and returns whether to continue without the object.
    pub(crate) fn gives_up(&mut self, id: ObjectId) -> bool {
        let tries = match self.failing {
            Some((failing, tries)) if failing == id => tries + 1,
            _ => 1,
        };
        self.failing = (tries < TRIES).then_some((id, tries));
        tries >= TRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::Damage;

    /// A saved position decodes to the same position; an invalid one is ignored.
    #[test]
    fn scrub_position_round_trips() {
        let id = ObjectId::new(0x10000, 0x10007);
        let walk = ScrubPass {
            running: true,
            began_ms: 5,
            ended_ms: 3,
            objects: 9,
            bytes: 77,
            digested: 4,
            unread: 2,
            now: Some(Examination::resumed(id, 3 << 20, Damage::default())),
            ..ScrubPass::default()
        };
        let again = ScrubPass::decode(&walk.encode()).unwrap();
        assert_eq!((again.running, again.began_ms, again.ended_ms), (true, 5, 3));
        assert_eq!((again.objects, again.bytes), (9, 77));
        assert_eq!((again.digested, again.unread), (4, 2));
        assert_eq!((again.from, again.resume), (Some(id), Some((id, 3 << 20))));
        assert_eq!(again.position(), (Some(id), 3 << 20));
        let older = &walk.encode()[..2 + 7 * 8];
        assert_eq!(ScrubPass::decode(older).map(|walk| (walk.objects, walk.unread)), Some((9, 0)));
        for wrong in [&b""[..], b"\x02", &walk.encode()[1..], &walk.encode()[..50]] {
            assert!(ScrubPass::decode(wrong).is_none());
        }
    }
}
