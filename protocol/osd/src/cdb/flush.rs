//! Operands of the FLUSH commands: which parts of an object, collection, partition or OSD become
//! durable.

use super::error::CdbError;
use super::operands::{Operands, TWO_BITS, object_of, set_object};
use super::pointer;
use super::wire::{CdbWire, GenericOperands};
use crate::capability::Range;
use crate::{Generation, ObjectId};

/// The parts of an object that FLUSH makes stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushScope {
    /// Data and attributes.
    Everything,
    /// Attributes only.
    Attributes,
    /// A range of bytes and the attributes (OSD-2).
    Range,
}

/// Operands of FLUSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// The user object.
    pub object: ObjectId,
    /// The part to flush.
    pub scope: FlushScope,
    /// The bytes, with [`FlushScope::Range`]; otherwise 0, 0.
    pub start: u64,
    /// Number of bytes.
    pub length: u64,
}

impl Operands for Flush {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        let GenericOperands { length, start, .. } = wire.generic();
        let object = object_of(wire);
        Ok(match (flush_bits(wire), wire.generation) {
            (0, _) => Self { object, scope: FlushScope::Everything, start: 0, length: 0 },
            (1, _) => Self { object, scope: FlushScope::Attributes, start: 0, length: 0 },
            (2, Generation::Osd2) => Self { object, scope: FlushScope::Range, start, length },
            _ => return Err(CdbError::reserved(pointer::flush_scope(wire.generation))),
        })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        set_flush_bits(wire, self.scope as u8);
        if self.scope == FlushScope::Range {
            wire.set_generic(GenericOperands { length: self.length, start: self.start, tail: 0 });
        }
    }
    fn object(&self) -> ObjectId {
        self.object
    }
    fn range(&self) -> Option<Range> {
        (self.scope == FlushScope::Range).then_some(Range { start: self.start, length: self.length })
    }
}

/// The parts that a flush of a collection, a partition or the OSD makes stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerScope {
    /// The list of its members.
    Members,
    /// Its own attributes.
    Attributes,
    /// All of it, and all its members.
    Everything,
}

/// FLUSH COLLECTION, FLUSH PARTITION, FLUSH OSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushContainer {
    /// The collection, partition or root.
    pub object: ObjectId,
    /// The part to flush.
    pub scope: ContainerScope,
}

impl Operands for FlushContainer {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        // Peers differ on the byte in OSD-2. A larger flush is always right, so an ambiguous one
        // flushes everything.
        let doubtful = wire.is_osd2() && flush_bits(wire) == 0 && wire.head.options & TWO_BITS != 0;
        let scope = match if doubtful { 2 } else { flush_bits(wire) } {
            0 => ContainerScope::Members,
            1 => ContainerScope::Attributes,
            2 => ContainerScope::Everything,
            _ => return Err(CdbError::reserved(pointer::flush_scope(wire.generation))),
        };
        Ok(Self { object: object_of(wire), scope })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        set_flush_bits(wire, self.scope as u8);
    }
    fn object(&self) -> ObjectId {
        self.object
    }
    fn deep(&self) -> bool {
        self.scope == ContainerScope::Everything
    }
}

/// FLUSH SCOPE: byte 10 in OSD-1; byte 11 in OSD-2, where byte 10 has ISOLATION.
const fn flush_bits(wire: &CdbWire) -> u8 {
    match wire.generation {
        Generation::Osd1 => wire.head.options & TWO_BITS,
        Generation::Osd2 => wire.head.specific_bits & TWO_BITS,
    }
}

fn set_flush_bits(wire: &mut CdbWire, scope: u8) {
    match wire.generation {
        Generation::Osd1 => wire.head.options |= scope,
        Generation::Osd2 => wire.head.specific_bits |= scope,
    }
}
