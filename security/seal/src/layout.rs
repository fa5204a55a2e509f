//! Offsets of the security fields in a CDB, in a continuation segment and in integrity information.
//!
//! Source of truth: t10-osd 1.1, 1.6, 1.7, 1.8.

use core::ops::Range;

use sealstone_osd::Generation;

/// Offset of the capability, in both generations.
pub const CAPABILITY: usize = 80;
/// Location of the check value in a continuation segment.
pub const CONTINUATION_ICV: Range<usize> = 8..40;

/// The security parameters at the end of a CDB, as byte ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityFields {
    /// The capability field.
    pub capability: Range<usize>,
    /// REQUEST INTEGRITY CHECK VALUE.
    pub request_icv: Range<usize>,
    /// REQUEST NONCE.
    pub nonce: Range<usize>,
    /// DATA-IN INTEGRITY CHECK VALUE OFFSET.
    pub data_in_icv_offset: Range<usize>,
    /// DATA-OUT INTEGRITY CHECK VALUE OFFSET.
    pub data_out_icv_offset: Range<usize>,
}

impl SecurityFields {
    /// Returns the fields of a generation.
    #[must_use]
    pub const fn of(generation: Generation) -> Self {
        let icv = CAPABILITY + generation.capability_len();
        let nonce = icv + generation.icv_len();
        Self {
            capability: CAPABILITY..icv,
            request_icv: icv..nonce,
            nonce: nonce..nonce + 12,
            data_in_icv_offset: nonce + 12..nonce + 16,
            data_out_icv_offset: nonce + 16..nonce + 20,
        }
    }
}

const _: () =
    assert!(SecurityFields::of(Generation::Osd1).data_out_icv_offset.end == Generation::Osd1.cdb_len());
const _: () =
    assert!(SecurityFields::of(Generation::Osd2).data_out_icv_offset.end == Generation::Osd2.cdb_len());
const _: () = assert!(SecurityFields::of(Generation::Osd2).nonce.start == 216);
