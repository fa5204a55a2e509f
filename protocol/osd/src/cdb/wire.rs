//! The byte layouts of the OSD-1 and OSD-2 CDBs as structs, whose sizes the compiler checks.

use core::mem::offset_of;

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::Generation;

/// Bytes 0–79, common to both generations.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct CdbHead {
    pub(crate) opcode: u8,
    pub(crate) control: u8,
    pub(crate) reserved_2: [u8; 5],
    pub(crate) additional_length: u8,
    pub(crate) service_action: U16,
    pub(crate) options: u8,
    pub(crate) specific_bits: u8,
    pub(crate) timestamps: u8,
    pub(crate) reserved_13: u8,
    pub(crate) duplication: u8,
    pub(crate) reserved_15: u8,
    pub(crate) partition: U64,
    pub(crate) object: U64,
    pub(crate) specific: [u8; 20],
    pub(crate) attributes: [u8; 28],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Osd1 {
    pub(crate) head: CdbHead,
    pub(crate) capability: [u8; 80],
    pub(crate) request_icv: [u8; 20],
    pub(crate) nonce: [u8; 12],
    pub(crate) data_in_icv_offset: U32,
    pub(crate) data_out_icv_offset: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Osd2 {
    pub(crate) head: CdbHead,
    pub(crate) capability: [u8; 104],
    pub(crate) request_icv: [u8; 32],
    pub(crate) nonce: [u8; 12],
    pub(crate) data_in_icv_offset: U32,
    pub(crate) data_out_icv_offset: U32,
}

const _: () = assert!(offset_of!(CdbHead, service_action) == 8 && offset_of!(CdbHead, partition) == 16);
const _: () = assert!(offset_of!(CdbHead, specific) == 32 && offset_of!(CdbHead, attributes) == 52);
const _: () = assert!(size_of::<CdbHead>() == 80);
const _: () =
    assert!(size_of::<Osd1>() == Generation::Osd1.cdb_len() && offset_of!(Osd1, request_icv) == 160);
const _: () = assert!(offset_of!(Osd1, nonce) == 180 && offset_of!(Osd1, data_in_icv_offset) == 192);
const _: () =
    assert!(size_of::<Osd2>() == Generation::Osd2.cdb_len() && offset_of!(Osd2, request_icv) == 184);
const _: () = assert!(offset_of!(Osd2, nonce) == 216 && offset_of!(Osd2, data_in_icv_offset) == 228);

/// Bytes 32–51 of OSD-1 for commands without a layout of their own.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Generic1 {
    tail: U32,
    length: U64,
    start: U64,
}

/// Bytes 32–51 of OSD-2.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Generic2 {
    length: U64,
    start: U64,
    tail: U32,
}

/// Bytes 32–51 by meaning. The two generations have the same three fields in another order.
#[derive(Clone, Copy, Default)]
pub(crate) struct GenericOperands {
    /// Length, allocation length, capacity; the number of objects in its upper 16 bits.
    pub(crate) length: u64,
    /// Starting byte, initial id, second id.
    pub(crate) start: u64,
    /// List identifier; in OSD-2 also continuation length and map type.
    pub(crate) tail: u32,
}

/// The head with its generation, from which operands are read and to which they are written.
pub(crate) struct CdbWire {
    pub(crate) generation: Generation,
    pub(crate) head: CdbHead,
}

impl CdbWire {
    pub(crate) const fn is_osd2(&self) -> bool {
        matches!(self.generation, Generation::Osd2)
    }

    pub(crate) fn generic(&self) -> GenericOperands {
        match self.generation {
            Generation::Osd1 => {
                let Generic1 { tail, length, start } = transmute!(self.head.specific);
                GenericOperands { length: length.get(), start: start.get(), tail: tail.get() }
            }
            Generation::Osd2 => {
                let Generic2 { length, start, tail } = transmute!(self.head.specific);
                GenericOperands { length: length.get(), start: start.get(), tail: tail.get() }
            }
        }
    }

    pub(crate) fn set_generic(&mut self, GenericOperands { length, start, tail }: GenericOperands) {
        let (length, start, tail) = (length.into(), start.into(), tail.into());
        self.head.specific = match self.generation {
            Generation::Osd1 => transmute!(Generic1 { tail, length, start }),
            Generation::Osd2 => transmute!(Generic2 { length, start, tail }),
        };
    }
}
