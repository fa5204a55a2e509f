//! REWRITE: read-modify-write of a range at the device (our own command, OSD-2 only).
//!
//! Source of truth: docs/design/security.md 4.7; `docs/standards/osd.md`, REWRITE.

use super::error::{CdbError, Fault};
use super::operands::{Operands, object_of, set_object};
use super::pointer;
use super::wire::{CdbWire, GenericOperands};
use crate::capability::Range;
use crate::rewrite::{DIGEST_LEN, RANGE_MAX};
use crate::{ObjectId, Permissions};

/// The old bytes of the range are returned.
const RETURN_OLD: u8 = 0x01;
/// Some operations are conditions.
const CONDITIONAL: u8 = 0x02;
/// The range may end beyond the object, which grows.
const EXTEND_OK: u8 = 0x04;
/// The SHA-256 of the old bytes is returned.
const RETURN_DIGEST: u8 = 0x08;

/// The data that REWRITE returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RewriteReturn {
    /// No data.
    #[default]
    Nothing,
    /// The old bytes of the range, as far as the object had any.
    Old,
    /// Their SHA-256.
    Digest,
}

/// REWRITE; the operations are in the continuation segment, their operands in the command data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The user object.
    pub object: ObjectId,
    /// First byte of the range.
    pub start: u64,
    /// Bytes of the range, 1 to 16 MiB.
    pub length: u32,
    /// Bytes of operands, at most 16 MiB.
    pub operands: u32,
    /// The returned data.
    pub returns: RewriteReturn,
    /// Whether it may have conditions.
    pub conditional: bool,
    /// Whether the object may grow to the end of the range.
    pub extend: bool,
}

impl Operands for Rewrite {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        let GenericOperands { length, start, .. } = wire.generic();
        let (operands, length) = ((length >> 32) as u32, (length & 0xFFFF_FFFF) as u32);
        let field = |at| Err(CdbError::Field { at, fault: Fault::Length });
        if operands > RANGE_MAX {
            return field(pointer::length(wire.generation));
        }
        if length == 0 || length > RANGE_MAX {
            return field(pointer::length(wire.generation) + 4);
        }
        let bits = wire.head.specific_bits;
        let returns = match bits & (RETURN_OLD | RETURN_DIGEST) {
            0 => RewriteReturn::Nothing,
            RETURN_OLD => RewriteReturn::Old,
            RETURN_DIGEST => RewriteReturn::Digest,
            _ => return Err(CdbError::reserved(pointer::SPECIFIC_BITS)),
        };
        let (conditional, extend) = (bits & CONDITIONAL != 0, bits & EXTEND_OK != 0);
        Ok(Self { object: object_of(wire), start, length, operands, returns, conditional, extend })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        wire.head.specific_bits |= match self.returns {
            RewriteReturn::Nothing => 0,
            RewriteReturn::Old => RETURN_OLD,
            RewriteReturn::Digest => RETURN_DIGEST,
        } | if self.conditional { CONDITIONAL } else { 0 }
            | if self.extend { EXTEND_OK } else { 0 };
        let length = u64::from(self.operands) << 32 | u64::from(self.length);
        wire.set_generic(GenericOperands { length, start: self.start, tail: 0 });
    }
    fn object(&self) -> ObjectId {
        self.object
    }
    fn sizes(&self) -> (u64, u64) {
        let inward = match self.returns {
            RewriteReturn::Nothing => 0,
            RewriteReturn::Old => self.length,
            RewriteReturn::Digest => DIGEST_LEN,
        };
        (self.operands.into(), inward.into())
    }
    fn range(&self) -> Option<Range> {
        Some(Range { start: self.start, length: self.length.into() })
    }
    /// Whether it reveals the old content: by what it returns, or by the result of a condition.
    fn deep(&self) -> bool {
        self.returns != RewriteReturn::Nothing || self.conditional
    }
    /// So that a capability from before this command existed does not permit reading an object's
    /// content.
    fn besides(&self) -> Permissions {
        if self.conditional { Permissions::REWRITE_CONDITIONAL } else { Permissions::NONE }
    }
}
