//! Get and set attributes parameters: CDB bytes 52–79 in three formats (OSD-2 §5.2.6).
//!
//! A part with page 0, or a list of no bytes, is absent; its other fields are ignored.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::EncodeError;
use super::error::{CdbError, Fault};
use super::pointer::{self, ATTRIBUTES};
use crate::offset::{self, Decoded};
use crate::{AttributeId, Generation};

/// A range of bytes in a data buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// From the start of the buffer; 0 if there are no bytes.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
}

impl Segment {
    /// Returns the offset after its last byte.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.offset.saturating_add(self.length as u64)
    }

    /// Returns its bytes of `buffer`; `None` if they are not all present.
    #[must_use]
    pub fn of(self, buffer: &[u8]) -> Option<&[u8]> {
        buffer.get(usize::try_from(self.offset).ok()?..usize::try_from(self.end()).ok()?)
    }
}

/// Maximum bytes of a value in [`AttributeParameters::One`].
pub const ONE_VALUE_MAX: usize = 18;

/// The attributes that a command gets and sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeParameters {
    /// Set one attribute with the CDB's own bytes (format 1, OSD-2 only).
    One {
        /// Number of valid bytes of `value`, at most [`ONE_VALUE_MAX`]; 0 removes the value.
        id: AttributeId,
        /// Bytes of `value` that count, at most [`ONE_VALUE_MAX`]; 0 removes the value.
        length: u8,
        /// The value, left-justified, zero-padded.
        value: [u8; ONE_VALUE_MAX],
    },
    /// Get one page and set one attribute (format 2).
    Page {
        /// The page to get.
        get: Option<GetPage>,
        /// The attribute to set.
        set: Option<SetValue>,
    },
    /// Get and set lists of attributes (format 3).
    List {
        /// The attributes to get.
        get: Option<GetList>,
        /// Set attributes list in the Data-Out Buffer.
        set: Option<Segment>,
    },
}

impl AttributeParameters {
    /// Nothing to get or set.
    pub const NONE: Self = Self::List { get: None, set: None };

    /// Whether there is anything to get.
    #[must_use]
    pub const fn gets(&self) -> bool {
        matches!(self, Self::Page { get: Some(_), .. } | Self::List { get: Some(_), .. })
    }

    /// Whether there is anything to set.
    #[must_use]
    pub const fn sets(&self) -> bool {
        matches!(self, Self::One { .. } | Self::Page { set: Some(_), .. } | Self::List { set: Some(_), .. })
    }

    /// Returns the set attributes segment of the Data-Out Buffer, if any.
    #[must_use]
    pub const fn set_segment(&self) -> Option<Segment> {
        match self {
            Self::Page { set: Some(set), .. } => Some(set.value),
            Self::List { set, .. } => *set,
            _ => None,
        }
    }

    /// Returns the get attributes list of the Data-Out Buffer, if any.
    #[must_use]
    pub const fn get_list_segment(&self) -> Option<Segment> {
        match self {
            Self::List { get: Some(get), .. } => Some(get.list),
            _ => None,
        }
    }

    /// Returns the location of retrieved attributes in the Data-In Buffer, if any.
    #[must_use]
    pub const fn retrieved_segment(&self) -> Option<Segment> {
        match self {
            Self::Page { get: Some(get), .. } => Some(get.retrieved),
            Self::List { get: Some(get), .. } => Some(get.retrieved),
            _ => None,
        }
    }
}

/// The get part of the page format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetPage {
    /// The page, not 0.
    pub page: u32,
    /// Its location in the Data-In Buffer; the length is the allocation.
    pub retrieved: Segment,
}

/// The set part of the page format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetValue {
    /// The attribute; its page is not 0.
    pub id: AttributeId,
    /// Location of the value in the Data-Out Buffer; no bytes removes it.
    pub value: Segment,
}

/// The get part of the list format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetList {
    /// Location of the list of names in the Data-Out Buffer; never empty.
    pub list: Segment,
    /// Location of the retrieved list in the Data-In Buffer; the length is the allocation.
    pub retrieved: Segment,
}

/// GET/SET CDBFMT, bits 5–4 of byte 11.
const FORMAT_SHIFT: u32 = 4;
const FORMAT_MASK: u8 = 0x30;
const FORMAT_ONE: u8 = 1;
const FORMAT_PAGE: u8 = 2;
const FORMAT_LIST: u8 = 3;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct OneWire {
    page: U32,
    number: U32,
    length: U16,
    value: [u8; ONE_VALUE_MAX],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PageWire {
    get_page: U32,
    get_allocation: U32,
    retrieved_offset: U32,
    set_page: U32,
    set_number: U32,
    set_length: U32,
    set_offset: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ListWire {
    get_length: U32,
    get_offset: U32,
    get_allocation: U32,
    retrieved_offset: U32,
    set_length: U32,
    set_offset: U32,
    reserved_76: [u8; 4],
}

const _: () =
    assert!(size_of::<OneWire>() == 28 && size_of::<PageWire>() == 28 && size_of::<ListWire>() == 28);

/// Parses a segment; `at` is the offset of its offset field.
fn segment(generation: Generation, length: U32, offset: U32, at: u16) -> Result<Segment, CdbError> {
    let length = length.get();
    if length == 0 {
        return Ok(Segment::default());
    }
    match offset::decode(generation, offset.get()) {
        Decoded::At(offset) => Ok(Segment { offset, length }),
        Decoded::Unused | Decoded::Reserved => Err(CdbError::Field { at, fault: Fault::Offset }),
    }
}

/// Returns the fields of a segment: length, offset.
fn fields(generation: Generation, segment: Segment) -> Result<(U32, U32), EncodeError> {
    if segment.length == 0 {
        return Ok((U32::ZERO, U32::new(offset::UNUSED)));
    }
    let field = offset::encode(generation, segment.offset).ok_or(EncodeError::Offset(segment.offset))?;
    Ok((segment.length.into(), field.into()))
}

impl AttributeParameters {
    /// Parses bytes 52–79 in the format of byte 11.
    pub(crate) fn read(generation: Generation, specific_bits: u8, bytes: [u8; 28]) -> Result<Self, CdbError> {
        match (specific_bits & FORMAT_MASK) >> FORMAT_SHIFT {
            FORMAT_ONE if generation == Generation::Osd2 => Self::read_one(transmute!(bytes)),
            FORMAT_PAGE => Self::read_page(generation, transmute!(bytes)),
            FORMAT_LIST => Self::read_list(generation, transmute!(bytes)),
            _ => Err(CdbError::reserved(pointer::SPECIFIC_BITS)),
        }
    }

    fn read_one(wire: OneWire) -> Result<Self, CdbError> {
        let id = AttributeId::new(wire.page.get(), wire.number.get());
        let wildcard = |at| Err(CdbError::Field { at, fault: Fault::Wildcard });
        // Page 0, the user object directory, is read-only; two rules contradict each other, this is
        // the strict one.
        if id.page == AttributeId::ALL || id.page == 0 {
            return wildcard(ATTRIBUTES);
        }
        if id.number == AttributeId::ALL {
            return wildcard(ATTRIBUTES + 4);
        }
        let length = wire.length.get();
        if usize::from(length) > ONE_VALUE_MAX {
            return Err(CdbError::Field { at: ATTRIBUTES + 8, fault: Fault::Length });
        }
        let mut value = wire.value;
        value[usize::from(length)..].fill(0);
        Ok(Self::One { id, length: length as u8, value })
    }

    fn read_page(generation: Generation, wire: PageWire) -> Result<Self, CdbError> {
        let get = match wire.get_page.get() {
            0 => None,
            page => {
                let retrieved =
                    segment(generation, wire.get_allocation, wire.retrieved_offset, ATTRIBUTES + 8)?;
                Some(GetPage { page, retrieved })
            }
        };
        let set = match wire.set_page.get() {
            0 => None,
            page => {
                let id = AttributeId::new(page, wire.set_number.get());
                if id.is_wildcard() {
                    return Err(CdbError::Field { at: ATTRIBUTES + 12, fault: Fault::Wildcard });
                }
                let value = segment(generation, wire.set_length, wire.set_offset, ATTRIBUTES + 24)?;
                Some(SetValue { id, value })
            }
        };
        Ok(Self::Page { get, set })
    }

    fn read_list(generation: Generation, wire: ListWire) -> Result<Self, CdbError> {
        let list = segment(generation, wire.get_length, wire.get_offset, ATTRIBUTES + 4)?;
        let get = if list.length == 0 {
            None
        } else {
            let retrieved = segment(generation, wire.get_allocation, wire.retrieved_offset, ATTRIBUTES + 12)?;
            Some(GetList { list, retrieved })
        };
        let set = segment(generation, wire.set_length, wire.set_offset, ATTRIBUTES + 20)?;
        Ok(Self::List { get, set: (set.length > 0).then_some(set) })
    }

    /// Returns the bits of byte 11 and bytes 52–79.
    pub(crate) fn write(&self, generation: Generation) -> Result<(u8, [u8; 28]), EncodeError> {
        let (format, bytes) = match *self {
            Self::One { id, length, value } => {
                let (page, number, length) = (id.page.into(), id.number.into(), u16::from(length).into());
                (FORMAT_ONE, transmute!(OneWire { page, number, length, value }))
            }
            Self::Page { get, set } => {
                let get = get.unwrap_or(GetPage { page: 0, retrieved: Segment::default() });
                let set = set.unwrap_or(SetValue { id: AttributeId::new(0, 0), value: Segment::default() });
                let (get_allocation, retrieved_offset) = fields(generation, get.retrieved)?;
                let (set_length, set_offset) = fields(generation, set.value)?;
                let wire = PageWire {
                    get_page: get.page.into(),
                    get_allocation,
                    retrieved_offset,
                    set_page: set.id.page.into(),
                    set_number: set.id.number.into(),
                    set_length,
                    set_offset,
                };
                (FORMAT_PAGE, transmute!(wire))
            }
            Self::List { get, set } => {
                let none = GetList { list: Segment::default(), retrieved: Segment::default() };
                let get = get.unwrap_or(none);
                let (get_length, get_offset) = fields(generation, get.list)?;
                let (get_allocation, retrieved_offset) = fields(generation, get.retrieved)?;
                let (set_length, set_offset) = fields(generation, set.unwrap_or_default())?;
                let wire = ListWire {
                    get_length,
                    get_offset,
                    get_allocation,
                    retrieved_offset,
                    set_length,
                    set_offset,
                    reserved_76: [0; 4],
                };
                (FORMAT_LIST, transmute!(wire))
            }
        };
        Ok((format << FORMAT_SHIFT, bytes))
    }
}
