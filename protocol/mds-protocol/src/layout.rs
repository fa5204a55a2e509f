//! Layouts: maps file ranges to object ranges and back.
//!
//! Does: the arithmetic of single and striped layouts, for client and server.
//! Does not: choose devices; the server's placement does.
//! Truth: docs/standards/mds/layouts.md §6.

use alloc::vec::Vec;
use core::ops::Range;

use sealstone_osd::ObjectId;

use crate::wire::{Wire, WireError, WireReader, WireWriter};

/// Maximum number of objects of a layout.
pub const WIDTH_MAX: usize = 64;
/// Maximum size of a file in bytes: 2^63 − 1, so that no sum of two offsets overflows.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Minimum stripe unit; a stripe unit is a power of two.
pub const STRIPE_UNIT_MIN: u32 = 4096;
/// Maximum stripe unit.
pub const STRIPE_UNIT_MAX: u32 = 1 << 26;
const LAYOUT_VERSION: u8 = 1;

/// Id of a device, assigned by the metadata server; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

impl Wire for DeviceId {
    fn put(&self, out: &mut WireWriter) {
        self.0.put(out);
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(Self(u32::get(input)?))
    }
}

/// One object of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// Device that stores it.
    pub device: DeviceId,
    /// Its id on the device.
    pub object: ObjectId,
}

impl Wire for ObjectRef {
    fn put(&self, out: &mut WireWriter) {
        self.device.put(out);
        self.object.partition.put(out);
        self.object.object.put(out);
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            device: DeviceId::get(input)?,
            object: ObjectId { partition: u64::get(input)?, object: u64::get(input)? },
        })
    }
}

/// How bytes are distributed over the objects. Code 4 (Reed-Solomon) is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LayoutKind {
    Single = 1,
    Striped = 2,
    /// Each object has all bytes.
    Copies = 3,
}

/// The objects of a file and how its bytes are distributed over them. Always consistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    kind: LayoutKind,
    unit: u32,
    number: u64,
    objects: Vec<ObjectRef>,
}

/// A part of a file range that is contiguous in one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Index into [`Layout::objects`].
    pub index: usize,
    /// First byte in the object.
    pub object_offset: u64,
    /// First byte in the file.
    pub file_offset: u64,
    /// Length in bytes.
    pub length: u64,
}

impl Layout {
    /// Returns the layout of a file with one object.
    #[must_use]
    pub fn single(object: ObjectRef) -> Self {
        Self { kind: LayoutKind::Single, unit: 0, number: object.object.object, objects: alloc::vec![object] }
    }

    /// Returns a layout that distributes units of `unit` bytes round-robin over the objects.
    ///
    /// # Errors
    /// `TooLong` for more than [`WIDTH_MAX`] objects, `Malformed` for none, for a unit that is no
    /// power of two between [`STRIPE_UNIT_MIN`] and [`STRIPE_UNIT_MAX`], or for an object named
    /// twice.
    pub fn striped(unit: u32, objects: Vec<ObjectRef>) -> Result<Self, WireError> {
        if objects.len() > WIDTH_MAX {
            return Err(WireError::TooLong { limit: WIDTH_MAX });
        }
        let twice = objects.iter().enumerate().any(|(i, object)| objects.iter().take(i).any(|o| o == object));
        let number = objects.first().map_or(0, |object| object.object.object);
        if twice
            || objects.is_empty()
            || !unit.is_power_of_two()
            || !(STRIPE_UNIT_MIN..=STRIPE_UNIT_MAX).contains(&unit)
        {
            return Err(WireError::Malformed("layout"));
        }
        Ok(Self { kind: LayoutKind::Striped, unit, number, objects })
    }

    /// Returns a layout in which each object has all bytes. Files are read from the first one and
    /// written only there: the others serve functions.
    ///
    /// # Errors
    /// `TooLong` for more than [`WIDTH_MAX`] objects, `Malformed` for none, or for an object named
    /// twice.
    pub fn copies(objects: Vec<ObjectRef>) -> Result<Self, WireError> {
        if objects.len() > WIDTH_MAX {
            return Err(WireError::TooLong { limit: WIDTH_MAX });
        }
        let twice = objects.iter().enumerate().any(|(i, object)| objects.iter().take(i).any(|o| o == object));
        match objects.first() {
            Some(first) if !twice => {
                Ok(Self { kind: LayoutKind::Copies, unit: 0, number: first.object.object, objects })
            }
            _ => Err(WireError::Malformed("layout")),
        }
    }

    /// Returns the layout of a file with one more copy of its bytes; its number stays.
    ///
    /// # Errors
    /// `Malformed` for a striped layout, or a device that has a copy already; `TooLong` for more
    /// than [`WIDTH_MAX`] copies.
    pub fn with_copy(&self, copy: ObjectRef) -> Result<Self, WireError> {
        let is_present = self.objects.iter().any(|object| object.device == copy.device);
        if is_present || self.kind == LayoutKind::Striped {
            return Err(WireError::Malformed("layout"));
        }
        let objects = self.objects.iter().copied().chain([copy]).collect();
        Ok(Self { number: self.number, ..Self::copies(objects)? })
    }

    /// Returns the layout as one of copies, with the same objects and number; `None` if it is
    /// striped.
    #[must_use]
    pub fn as_copies(&self) -> Option<Self> {
        self.is_whole_in_each().then(|| Self { kind: LayoutKind::Copies, ..self.clone() })
    }

    /// Whether each object has all bytes of the file.
    #[must_use]
    pub fn is_whole_in_each(&self) -> bool {
        self.kind != LayoutKind::Striped
    }

    /// Whether the layout was made for copies on several devices; also true while it has one.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.kind == LayoutKind::Copies
    }

    /// Returns the layout with object `index` replaced; `None` if it is not `old`, or if `new` is
    /// already in the layout.
    #[must_use]
    pub fn replaced(&self, index: usize, old: ObjectRef, new: ObjectRef) -> Option<Self> {
        let mut layout = self.clone();
        if layout.objects.contains(&new) {
            return None;
        }
        let place = layout.objects.get_mut(index).filter(|place| **place == old)?;
        *place = new;
        Some(layout)
    }

    /// Returns the number of the layout: the id of its first object when it was created. It stays
    /// the same while objects move; a file that is truncated to zero and rewritten gets another
    /// one.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the objects in stripe order; never empty.
    #[must_use]
    pub fn objects(&self) -> &[ObjectRef] {
        &self.objects
    }

    /// Returns the number of objects.
    #[must_use]
    pub fn width(&self) -> usize {
        self.objects.len()
    }

    /// Returns the stripe unit in bytes; `None` if the file is one object.
    #[must_use]
    pub const fn stripe_unit(&self) -> Option<u32> {
        match self.kind {
            LayoutKind::Single | LayoutKind::Copies => None,
            LayoutKind::Striped => Some(self.unit),
        }
    }

    /// Returns `single`, `striped` or `copies`.
    #[must_use]
    pub const fn kind_name(&self) -> &'static str {
        match self.kind {
            LayoutKind::Single => "single",
            LayoutKind::Striped => "striped",
            LayoutKind::Copies => "copies",
        }
    }

    /// Returns the position of an object in a stripe; that of every copy is 0.
    fn slot_of(&self, index: usize) -> usize {
        if self.kind == LayoutKind::Copies && index < self.objects.len() { 0 } else { index }
    }

    fn unit_and_width(&self) -> (u64, u64) {
        match self.kind {
            LayoutKind::Single | LayoutKind::Copies => (FILE_SIZE_MAX, 1),
            LayoutKind::Striped => (u64::from(self.unit), self.objects.len() as u64),
        }
    }

    /// Returns the extents of a file range in file order, one per stripe unit. Bytes at and beyond
    /// [`FILE_SIZE_MAX`] are left out.
    pub fn extents(&self, range: Range<u64>) -> impl Iterator<Item = FileExtent> + use<> {
        let (unit, width) = self.unit_and_width();
        let end = range.end.min(FILE_SIZE_MAX);
        let mut at = range.start;
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (number, within) = (at / unit, at % unit);
            let length = (unit - within).min(end - at);
            let extent = FileExtent {
                index: (number % width) as usize,
                object_offset: (number / width) * unit + within,
                file_offset: at,
                length,
            };
            at += length;
            Some(extent)
        })
    }

    /// Returns the range of object `index` that holds a file range; it is contiguous because
    /// stripes follow each other. `None` if the object has no bytes of it, or is a further copy.
    #[must_use]
    pub fn object_range(&self, index: usize, range: Range<u64>) -> Option<Range<u64>> {
        if self.kind == LayoutKind::Copies && index > 0 {
            return None;
        }
        if index >= self.objects.len() || range.start >= range.end.min(FILE_SIZE_MAX) {
            return None;
        }
        let start = self.object_length(index, range.start);
        let end = self.object_length(index, range.end);
        (start < end).then_some(start..end)
    }

    /// Returns the length of object `index` of a file of `size` bytes without holes at its end; 0
    /// for an unknown index.
    #[must_use]
    pub fn object_length(&self, index: usize, size: u64) -> u64 {
        let (unit, width) = self.unit_and_width();
        let index = self.slot_of(index) as u64;
        if index >= width {
            return 0;
        }
        let size = size.min(FILE_SIZE_MAX);
        let (full, rest) = (size / (unit.saturating_mul(width)), size % (unit.saturating_mul(width)));
        full * unit + rest.saturating_sub(index * unit).min(unit)
    }

    /// Returns the file offset of byte `offset` of object `index`; `None` for an unknown index or
    /// an offset beyond [`FILE_SIZE_MAX`].
    #[must_use]
    pub fn file_offset(&self, index: usize, offset: u64) -> Option<u64> {
        let (unit, width) = self.unit_and_width();
        let index = u64::try_from(self.slot_of(index)).ok().filter(|&index| index < width)?;
        let number = (offset / unit).checked_mul(width)?.checked_add(index)?;
        number.checked_mul(unit)?.checked_add(offset % unit).filter(|&at| at < FILE_SIZE_MAX)
    }

    /// Returns the size of the file whose objects have these lengths: the byte after the last
    /// existing one.
    #[must_use]
    pub fn file_size(&self, lengths: &[u64]) -> u64 {
        lengths
            .iter()
            .enumerate()
            .filter_map(|(index, length)| Some(self.file_offset(index, length.checked_sub(1)?)? + 1))
            .max()
            .unwrap_or(0)
    }
}

impl Wire for Layout {
    fn put(&self, out: &mut WireWriter) {
        let width = self.objects.len() as u16;
        let (data, copies) = if self.kind == LayoutKind::Copies { (1, width) } else { (width, 1) };
        LAYOUT_VERSION.put(out);
        (self.kind as u8).put(out);
        self.unit.put(out);
        data.put(out); // data units of a stripe
        0u16.put(out); // parity units of a stripe
        copies.put(out); // copies of each unit
        self.number.put(out);
        self.objects.put(out);
    }

    fn get(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        let version = u8::get(input)?;
        if version != LAYOUT_VERSION {
            return Err(WireError::UnknownCode { what: "layout version", code: u32::from(version) });
        }
        let kind = u8::get(input)?;
        let unit = u32::get(input)?;
        let (data, parity, copies) = (u16::get(input)?, u16::get(input)?, u16::get(input)?);
        let number = u64::get(input)?;
        let objects = Vec::<ObjectRef>::get(input)?;
        let expected = if kind == LayoutKind::Copies as u8 { (1, objects.len()) } else { (objects.len(), 1) };
        if (usize::from(data), usize::from(copies)) != expected || parity != 0 {
            return Err(WireError::Malformed("layout"));
        }
        match (kind, unit, objects.as_slice()) {
            (1, 0, [object]) => Ok(Self { number, ..Self::single(*object) }),
            (1, ..) => Err(WireError::Malformed("layout")),
            (2, ..) => Ok(Self { number, ..Self::striped(unit, objects)? }),
            (3, 0, _) => Ok(Self { number, ..Self::copies(objects)? }),
            (3, ..) => Err(WireError::Malformed("layout")),
            (kind, ..) => Err(WireError::UnknownCode { what: "layout kind", code: u32::from(kind) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::decode_message;
    use alloc::vec;
    use proptest::prelude::*;

    fn objects(width: u32) -> Vec<ObjectRef> {
        (0..width)
            .map(|i| ObjectRef {
                device: DeviceId(i),
                object: ObjectId::new(0x10000, 0x10000 + u64::from(i)),
            })
            .collect()
    }

    pub(crate) fn any_layout() -> impl Strategy<Value = Layout> {
        (12u32..=26, 0u32..=64, any::<bool>()).prop_map(|(shift, width, copies)| match width {
            0 => Layout::single(objects(1)[0]),
            width if copies => Layout::copies(objects(width)).unwrap(),
            width => Layout::striped(1 << shift, objects(width)).unwrap(),
        })
    }

    /// A range of up to a few stripes at any offset.
    fn any_range() -> impl Strategy<Value = Range<u64>> {
        (prop_oneof![0..(1u64 << 32), 0..FILE_SIZE_MAX], 0..(1u64 << 28))
            .prop_map(|(start, length)| start..(start + length).min(FILE_SIZE_MAX))
    }

    proptest! {
        #[test]
        fn extents_cover_range_once_in_order(layout in any_layout(), range in any_range()) {
            let mut at = range.start;
            for extent in layout.extents(range.clone()) {
                prop_assert_eq!(extent.file_offset, at);
                prop_assert!(extent.length > 0);
                prop_assert_eq!(layout.file_offset(extent.index, extent.object_offset), Some(at));
                let last = extent.length - 1;
                prop_assert_eq!(layout.file_offset(extent.index, extent.object_offset + last), Some(at + last));
                at += extent.length;
            }
            prop_assert_eq!(at, range.end);
        }

        #[test]
        fn extents_of_one_object_are_contiguous(layout in any_layout(), range in any_range()) {
            for index in 0..layout.width() {
                let mut pieces = layout.extents(range.clone()).filter(|e| e.index == index);
                let first = pieces.next();
                let mut end = first.map(|e| e.object_offset + e.length);
                for piece in pieces {
                    prop_assert_eq!(Some(piece.object_offset), end);
                    end = Some(piece.object_offset + piece.length);
                }
                let expected = first.map(|e| e.object_offset).zip(end).map(|(start, end)| start..end);
                prop_assert_eq!(layout.object_range(index, range.clone()), expected);
            }
        }

        #[test]
        fn object_lengths_match_file_size(layout in any_layout(), size in 0..FILE_SIZE_MAX) {
            let lengths: Vec<u64> = (0..layout.width()).map(|i| layout.object_length(i, size)).collect();
            let shown = if layout.is_whole_in_each() { lengths[0] } else { lengths.iter().sum() };
            prop_assert_eq!(shown, size);
            prop_assert_eq!(layout.file_size(&lengths), size);
        }

        #[test]
        fn every_layout_survives_the_wire(layout in any_layout()) {
            let mut out = WireWriter::new();
            layout.put(&mut out);
            prop_assert_eq!(decode_message::<Layout>(&out.finish(65_536).unwrap()), Ok(layout));
        }

        #[test]
        fn arbitrary_bytes_never_decode_inconsistent_layout(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), any_at: u64) {
            if bytes.len() > 1 {
                bytes[0] = 1;
                bytes[1] %= 4;
            }
            if let Ok(layout) = decode_message::<Layout>(&bytes) {
                let _ = layout.extents(any_at..any_at.saturating_add(1 << 20)).take(9).count();
                prop_assert!(layout.width() >= 1 && layout.width() <= WIDTH_MAX);
            }
        }
    }

    #[test]
    fn reserved_layout_kinds_and_versions_are_refused() {
        let mut out = WireWriter::new();
        Layout::single(objects(1)[0]).put(&mut out);
        let bytes = out.finish(999).unwrap();
        for (position, value, what) in
            [(1, 5, "layout kind"), (1, 4, "layout kind"), (0, 2, "layout version")]
        {
            let mut bytes = bytes.clone();
            bytes[position] = value;
            let error = decode_message::<Layout>(&bytes);
            assert_eq!(error, Err(WireError::UnknownCode { what, code: u32::from(value) }));
        }
    }

    #[test]
    fn layout_number_survives_replaced_objects() {
        let new = ObjectRef { device: DeviceId(9), object: ObjectId::new(0x10000, 0x20000) };
        for layout in [Layout::single(objects(1)[0]), Layout::striped(1 << 20, objects(3)).unwrap()] {
            let old = layout.objects()[0];
            let moved = layout.replaced(0, old, new).unwrap();
            assert_eq!((moved.number(), moved.objects()[0]), (layout.number(), new));
            assert_eq!((moved.stripe_unit(), moved.width()), (layout.stripe_unit(), layout.width()));
            let mut out = WireWriter::new();
            moved.put(&mut out);
            assert_eq!(decode_message::<Layout>(&out.finish(999).unwrap()), Ok(moved.clone()));
            assert_eq!(moved.replaced(0, old, new), None, "the old object is already replaced");
            assert_eq!(layout.replaced(0, new, old), None, "the old object was never in the layout");
            assert_ne!(Layout::single(new).number(), layout.number());
        }
        let two = Layout::striped(1 << 20, objects(2)).unwrap();
        assert_eq!(two.replaced(0, two.objects()[0], two.objects()[1]), None, "none twice");
    }

    #[test]
    fn copies_have_all_bytes_and_one_is_read() {
        let single = Layout::single(objects(1)[0]);
        let two = single.with_copy(objects(2)[1]).unwrap();
        assert_eq!((two.width(), two.number(), two.kind_name()), (2, single.number(), "copies"));
        assert_eq!([two.object_length(0, 9), two.object_length(1, 9), two.object_length(2, 9)], [9, 9, 0]);
        assert_eq!([two.object_range(0, 2..5), two.object_range(1, 2..5)], [Some(2..5), None]);
        assert!(two.extents(0..9).all(|extent| extent.index == 0));
        assert_eq!(two.file_size(&[9, 9]), 9);
        assert!(two.is_whole_in_each() && single.is_whole_in_each());
        let striped = Layout::striped(1 << 20, objects(2)).unwrap();
        assert!(!striped.is_whole_in_each());
        assert!(striped.with_copy(objects(3)[2]).is_err(), "a stripe is no copy");
        assert!(two.with_copy(objects(2)[1]).is_err(), "one copy for each device");
        assert!(Layout::copies(objects(65)).is_err() && Layout::copies(vec![]).is_err());
    }

    #[test]
    fn invalid_striped_layouts_are_refused() {
        assert!(Layout::striped(1 << 20, vec![]).is_err());
        assert!(Layout::striped(0, objects(2)).is_err());
        assert!(Layout::striped(4095, objects(2)).is_err());
        assert!(Layout::striped(1 << 27, objects(2)).is_err());
        assert!(Layout::striped(1 << 20, objects(65)).is_err());
        assert!(Layout::striped(1 << 20, vec![objects(1)[0]; 2]).is_err());
    }
}
