//! The trait for finding damage before the bytes are needed.
//!
//! Does: reads an object piece by piece and compares the medium with everything that was stored for
//! that: checksums of blocks and records, digests of units and attribute pages, the sum of an
//! object's digests.
//! Does not: limit its rate, or repair; a stored digest that does not match is reported and left
//! unchanged.
//! Contract: at most [`PIECE`] bytes of an object are read under its lock, and a change of the
//! object waits no longer.
//! Source of truth: docs/design/store.md, "Damage".

use sealstone_osd::ObjectId;

use crate::damage::MAX_DAMAGE;
use crate::disk::SumCourse;
use crate::{Damage, DamageKind, StoreError};

/// Maximum bytes of an object that one step reads.
pub const PIECE: u64 = 1 << 20;

/// The progress of examining one object from its first byte to its last.
#[derive(Clone, Debug)]
pub struct ObjectExamination {
    pub(crate) id: ObjectId,
    /// Everything before this byte was read.
    pub(crate) at: u64,
    /// Whether it began at the first byte, so that its findings are complete.
    pub(crate) whole: bool,
    pub(crate) found: Vec<Damage>,
    /// Whether blocks are reported one by one, and all of them.
    pub(crate) each: bool,
    /// Number of lost records found.
    pub(crate) lost: u32,
    pub(crate) sum: Option<Box<SumCourse>>,
}

impl ObjectExamination {
    /// Starts at the first byte.
    #[must_use]
    pub fn of(id: ObjectId) -> Self {
        Self { id, at: 0, whole: true, found: Vec::new(), each: false, lost: 0, sum: None }
    }

    /// Resumes an interrupted examination at the piece that contains this byte. The sum of the
    /// digests is not checked.
    #[must_use]
    pub fn resumed(id: ObjectId, at: u64) -> Self {
        Self { at: at / PIECE * PIECE, whole: at < PIECE, ..Self::of(id) }
    }

    /// Returns the object's id.
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Returns the first byte that was not read.
    #[must_use]
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// Keeps findings, up to one more than the list of damage takes, so that the list knows that
    /// there is more.
    pub(crate) fn keep(&mut self, found: &[Damage]) {
        for piece in found {
            if self.found.len() <= MAX_DAMAGE || self.each {
                join(&mut self.found, *piece, self.each);
            }
        }
    }
}

/// Adds an entry, merged with the last one if it follows it, unless each counts.
pub(crate) fn join(all: &mut Vec<Damage>, new: Damage, each: bool) {
    match all.last_mut() {
        Some(last) if !each && last.kind == new.kind && last.offset + last.length == new.offset => {
            last.length += new.length;
        }
        _ => all.push(new),
    }
}

/// Findings of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExaminationStep {
    /// Bytes of blocks that were read.
    pub bytes: u64,
    /// Damage, by its first byte.
    pub damage: Vec<Damage>,
    /// A byte of a piece that has units without a stored digest, for
    /// [`ObjectExaminer::complete_digests`].
    pub incomplete: Option<u64>,
    /// Whether there is more to read.
    pub more: bool,
}

/// Result of [`ObjectExaminer::complete_digests`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletedDigests {
    /// Number of units that got a stored digest.
    pub units: u64,
    /// Bytes that were read for that.
    pub bytes: u64,
}

/// Examination of objects for damage.
pub trait ObjectExaminer: Send + Sync {
    /// Reads and checks the next piece of an object, and its records with the last piece. Damage is
    /// recorded, and is not an error. Fails with `NotFound` if the object was removed.
    fn examine(&self, examination: &mut ObjectExamination) -> Result<ExaminationStep, StoreError>;

    /// Returns the current damage of these bytes of an object, and of those that share a unit with
    /// them, by first byte. Reads all of them under the object's lock.
    fn examine_bytes(&self, id: ObjectId, offset: u64, length: u64) -> Result<Vec<Damage>, StoreError>;

    /// Returns the current damage of an object's records: its own, its attributes, and the digests
    /// that are not of bytes. Reads no data; where a sum is kept, it reads all digest records of
    /// the object.
    fn examine_records(&self, id: ObjectId) -> Result<Vec<DamageKind>, StoreError>;

    /// Computes and stores the missing digests of the units of a piece, from bytes whose checksums
    /// are right: an older version or a `punch` leaves such units. All under the object's lock.
    /// Existing digests are unchanged; if one does not match the bytes, none is computed. Takes no
    /// space.
    fn complete_digests(&self, id: ObjectId, offset: u64) -> Result<CompletedDigests, StoreError>;
}
