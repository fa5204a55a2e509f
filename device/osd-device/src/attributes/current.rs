//! The Current Command page: results of the running command.
//!
//! Truth: docs/design/t10-osd.md 3.4, 3.5 (page FFFFFFFEh).

use sealstone_osd::{Generation, ObjectType};

/// Results of the running command for the Current Command page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CurrentCommandPage {
    pub(crate) generation: Generation,
    /// Response ICV, if the method has one.
    pub(crate) response_icv: Vec<u8>,
    pub(crate) kind: ObjectType,
    pub(crate) partition: u64,
    /// Object of the command. If it created several, the one with the highest id.
    pub(crate) object: u64,
    /// Start offset of APPEND.
    pub(crate) append_start: u64,
    /// Change of the used capacity in bytes, two's complement.
    pub(crate) capacity_change: i64,
}

impl CurrentCommandPage {
    /// Returns the numbers of its attributes except 0.
    pub(crate) fn numbers(&self) -> core::ops::RangeInclusive<u32> {
        match self.generation {
            Generation::Osd1 => 1..=5,
            Generation::Osd2 => 1..=6,
        }
    }

    /// Returns the value of an attribute; `None` if it is undefined.
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
