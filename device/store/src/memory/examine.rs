//! Examination of the memory store, which has no damage.

use sealstone_osd::ObjectId;

use super::MemoryStore;
use crate::examine::{CompletedDigests, ExaminationStep, ObjectExamination, ObjectExaminer, PIECE};
use crate::{BLOCK, Damage, DamageKind, StoreError};

impl ObjectExaminer for MemoryStore {
    fn examine(&self, examination: &mut ObjectExamination) -> Result<ExaminationStep, StoreError> {
        self.with_object(examination.id, |object| {
            let from = examination.at / BLOCK;
            let next = object.blocks.range(from..).next().map(|(block, _)| block * BLOCK / PIECE * PIECE);
            let start = next.unwrap_or(object.length).max(examination.at);
            let end = start.saturating_add(PIECE);
            let blocks = object.blocks.range(start / BLOCK..end / BLOCK).count() as u64;
            examination.at = end;
            ExaminationStep { bytes: blocks * BLOCK, more: end < object.length, ..ExaminationStep::default() }
        })
    }

    fn examine_bytes(&self, id: ObjectId, _offset: u64, _length: u64) -> Result<Vec<Damage>, StoreError> {
        self.with_object(id, |_| Vec::new())
    }

    fn examine_records(&self, id: ObjectId) -> Result<Vec<DamageKind>, StoreError> {
        self.with_object(id, |_| Vec::new())
    }

    fn complete_digests(&self, id: ObjectId, _offset: u64) -> Result<CompletedDigests, StoreError> {
        self.with_object(id, |_| CompletedDigests::default())
    }
}
