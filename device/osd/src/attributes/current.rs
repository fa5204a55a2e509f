//! The Current Command page: what the command that is running did.
//!
//! Truth: docs/design/t10-osd.md 3.4, 3.5 (page FFFFFFFEh).

use sealstone_osd::{Generation, ObjectType};

/// What the command that is running did, for the Current Command page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Current {
    pub(crate) generation: Generation,
    /// Response ICV, if the method has one.
    pub(crate) response_icv: Vec<u8>,
    pub(crate) kind: ObjectType,
    pub(crate) partition: u64,
    /// The object of the command; of several created the highest.
    pub(crate) object: u64,
    /// Where APPEND began.
    pub(crate) append_start: u64,
    /// By how much the command changed the used capacity, bytes; two's complement.
    pub(crate) capacity_change: i64,
}

impl Current {
    /// Numbers of its attributes besides 0.
    pub(crate) fn numbers(&self) -> core::ops::RangeInclusive<u32> {
        match self.generation {
            Generation::Osd1 => 1..=5,
            Generation::Osd2 => 1..=6,
        }
    }

    /// One attribute; `None` is undefined.
    pub(crate) fn value(&self, number: u32) -> Option<Vec<u8>> {
        match number {
            1 => {
                let mut icv = self.response_icv.clone();
                icv.resize(self.generation.icv_len(), 0);
                Some(icv)
            }
            2 => Some(vec![self.kind as u8]),
            3 => Some(self.partition.to_be_bytes().to_vec()),
            4 => Some(self.object.to_be_bytes().to_vec()),
            5 => Some(self.append_start.to_be_bytes().to_vec()),
            6 if self.generation == Generation::Osd2 => Some(self.capacity_change.to_be_bytes().to_vec()),
            _ => None,
        }
    }
}
