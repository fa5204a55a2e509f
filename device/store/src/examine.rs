//! The seam for whoever looks for damage before somebody needs the bytes.
//!
//! Does: read an object piece by piece and compare what the medium gives with everything that was stored to tell: the
//! checksums of blocks and records, the digests of units and attribute pages, the sum over an object's digests.
//! Does not: pace itself, or repair; a digest that is there and disagrees is told and left alone.
//! Contract: at most [`PIECE`] bytes of an object are read under its lock, and whoever changes it waits for no more.
//! Truth: docs/design/store.md, "Damage".

use sealstone_osd::ObjectId;

use crate::damage::MAX_DAMAGE;
use crate::disk::SumCourse;
use crate::{Damage, DamageKind, StoreError};

/// Most bytes of an object that one step reads.
pub const PIECE: u64 = 1 << 20;

/// An object that is being read from its first byte to its last.
#[derive(Clone, Debug)]
pub struct Examination {
    pub(crate) id: ObjectId,
    /// Everything before this byte was read.
    pub(crate) at: u64,
    /// It began at the first byte, so that what it found is all there is.
    pub(crate) whole: bool,
    pub(crate) found: Vec<Damage>,
    /// Blocks are told one by one, and all of them.
    pub(crate) each: bool,
    /// Lost records that were met.
    pub(crate) lost: u32,
    pub(crate) sum: Option<Box<SumCourse>>,
}

impl Examination {
    /// From the first byte.
    #[must_use]
    pub fn of(id: ObjectId) -> Self {
        Self { id, at: 0, whole: true, found: Vec::new(), each: false, lost: 0, sum: None }
    }

    /// From the piece on in which this byte lies: one that was interrupted goes on. The sum over its digests is left to
    /// the next one.
    #[must_use]
    pub fn resumed(id: ObjectId, at: u64) -> Self {
        Self { at: at / PIECE * PIECE, whole: at < PIECE, ..Self::of(id) }
    }

    /// Which object.
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// The first byte that was not read.
    #[must_use]
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// Remembers what was found; one more piece than the book of damage takes, so that it knows that there is more.
    pub(crate) fn keep(&mut self, found: &[Damage]) {
        for piece in found {
            if self.found.len() <= MAX_DAMAGE || self.each {
                join(&mut self.found, *piece, self.each);
            }
        }
    }
}

/// Adds a piece; what follows on the last one is one with it, unless each counts.
pub(crate) fn join(all: &mut Vec<Damage>, new: Damage, each: bool) {
    match all.last_mut() {
        Some(last) if !each && last.kind == new.kind && last.offset + last.length == new.offset => {
            last.length += new.length;
        }
        _ => all.push(new),
    }
}

/// What one step found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examined {
    /// Bytes of blocks that were read.
    pub bytes: u64,
    /// Damage, by its first byte.
    pub damage: Vec<Damage>,
    /// A byte of a piece that has units without a stored digest, for [`Examine::complete_digests`].
    pub incomplete: Option<u64>,
    /// There is more to read.
    pub more: bool,
}

/// What [`Examine::complete_digests`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// Units that have a stored digest now and had none before.
    pub units: u64,
    /// Bytes that were read for that.
    pub bytes: u64,
}

/// Looking for damage.
pub trait Examine: Send + Sync {
    /// Reads and checks the next piece of an object, and with the last one its records. Damage is no error, and is
    /// remembered. `NotFound` if the object is gone.
    fn examine(&self, examination: &mut Examination) -> Result<Examined, StoreError>;

    /// What of these bytes of an object, and of those that share a unit with them, is damaged now; by its first byte.
    /// Reads all of them under the object's lock.
    fn examine_bytes(&self, id: ObjectId, offset: u64, length: u64) -> Result<Vec<Damage>, StoreError>;

    /// What of an object's records is damaged now: its own, its attributes, and the digests that are not of bytes.
    /// Reads no data; where a sum is kept, all of the object's records of digests.
    fn examine_records(&self, id: ObjectId) -> Result<Vec<DamageKind>, StoreError>;

    /// Makes and stores the digests that the units of a piece do not have, from bytes whose checksums are right: of what
    /// an older version wrote, and what a `punch` moved. All under the object's lock. A digest that is there stays as it
    /// is; where one disagrees with the bytes nothing is made. Takes no space.
    fn complete_digests(&self, id: ObjectId, offset: u64) -> Result<Completed, StoreError>;
}
