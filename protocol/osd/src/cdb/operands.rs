//! Operands in bytes 10–51 of commands, besides options: one type per layout, used for reading and
//! writing.
//!
//! Source of truth: `docs/standards/osd.md`, command fields. The device checks rules that need its
//! state.

use sealstone_scsi::spc::SpcCommand;

use super::error::{CdbError, Fault};
use super::pointer;
use super::wire::{CdbWire, GenericOperands};
use crate::capability::Range;
use crate::{Generation, ObjectId, Permissions};

/// One layout of operands.
pub(crate) trait Operands: Sized {
    fn read(wire: &CdbWire) -> Result<Self, CdbError>;
    fn write(&self, wire: &mut CdbWire);
    /// Returns the addressed object; number 0 where a create lets the device choose.
    fn object(&self) -> ObjectId;
    /// Returns the maximum bytes of command data out and in; the table says which of them the
    /// command transfers.
    fn sizes(&self) -> (u64, u64) {
        (0, 0)
    }
    /// Returns the touched bytes of the object, as far as the CDB specifies them.
    fn range(&self) -> Option<Range> {
        None
    }
    /// Whether it acts on more than the object: on everything beneath it, or on another collection.
    fn deep(&self) -> bool {
        false
    }
    /// Returns the permissions that these operands need in addition to those of the row.
    fn besides(&self) -> Permissions {
        Permissions::NONE
    }
}

/// IMMED_TR: status is returned at once, and a tracking collection shows the progress (OSD-2).
const IMMEDIATE: u8 = 0x80;
/// LIST_ATTR: entries carry attributes (OSD-2).
const LIST_ATTR: u8 = 0x40;
/// SORT ORDER.
const SORT_ORDER: u8 = 0x0F;
/// FLUSH SCOPE, KEY TO SET, DH STEP.
pub(super) const TWO_BITS: u8 = 0x03;
/// REMOVE SCOPE.
const THREE_BITS: u8 = 0x07;

pub(super) const fn object_of(wire: &CdbWire) -> ObjectId {
    ObjectId::new(wire.head.partition.get(), wire.head.object.get())
}

pub(super) fn set_object(wire: &mut CdbWire, id: ObjectId) {
    wire.head.partition = id.partition.into();
    wire.head.object = id.object.into();
}

fn immediate_of(wire: &CdbWire) -> bool {
    wire.has_immediate_tracking()
}

impl CdbWire {
    /// Whether IMMED_TR is set; OSD-1 has no such bit.
    pub(super) const fn has_immediate_tracking(&self) -> bool {
        self.is_osd2() && self.head.specific_bits & IMMEDIATE != 0
    }
}

fn set_flag(wire: &mut CdbWire, flag: u8, on: bool) {
    wire.head.specific_bits |= if on { flag } else { 0 };
}

/// Only the object: REMOVE, GET and SET ATTRIBUTES, OBJECT STRUCTURE CHECK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The object addressed.
    pub object: ObjectId,
}

impl Operands for Target {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        Ok(Self { object: object_of(wire) })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
    }
    fn object(&self) -> ObjectId {
        self.object
    }
}

/// Bytes of a user object: READ, WRITE, CREATE AND WRITE, CLEAR, PUNCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The object; CREATE AND WRITE with number 0 lets the device choose.
    pub object: ObjectId,
    /// STARTING BYTE.
    pub start: u64,
    /// LENGTH in bytes.
    pub length: u64,
}

impl Operands for Extent {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        let GenericOperands { length, start, .. } = wire.generic();
        Ok(Self { object: object_of(wire), start, length })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        wire.set_generic(GenericOperands { length: self.length, start: self.start, tail: 0 });
    }
    fn object(&self) -> ObjectId {
        self.object
    }
    fn sizes(&self) -> (u64, u64) {
        (self.length, self.length)
    }
    fn range(&self) -> Option<Range> {
        Some(Range { start: self.start, length: self.length })
    }
}

/// Operands of APPEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    /// The user object.
    pub object: ObjectId,
    /// LENGTH in bytes.
    pub length: u64,
}

impl Operands for Append {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        Ok(Self { object: object_of(wire), length: wire.generic().length })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        wire.set_generic(GenericOperands { length: self.length, ..GenericOperands::default() });
    }
    fn object(&self) -> ObjectId {
        self.object
    }
    fn sizes(&self) -> (u64, u64) {
        (self.length, 0)
    }
}

/// Operands of CREATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// Partition and requested number; number 0 lets the device choose.
    pub object: ObjectId,
    /// Number of objects, at least 1; 0 on the wire means 1.
    pub count: u16,
}

/// NUMBER OF USER OBJECTS is the upper 16 bits of the field that other commands use as length.
const COUNT_SHIFT: u32 = 48;

impl Operands for Create {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        let object = object_of(wire);
        let count = ((wire.generic().length >> COUNT_SHIFT) as u16).max(1);
        if count > 1 && object.object != 0 {
            return Err(CdbError::Field { at: pointer::length(wire.generation), fault: Fault::Conflict });
        }
        Ok(Self { object, count })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        wire.set_generic(GenericOperands {
            length: u64::from(self.count) << COUNT_SHIFT,
            ..GenericOperands::default()
        });
    }
    fn object(&self) -> ObjectId {
        self.object
    }
}

/// CREATE USER TRACKING COLLECTION (OSD-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateTracking {
    /// Partition and requested number of the collection.
    pub object: ObjectId,
    /// The collection whose members are tracked; 0 for none.
    pub source: u64,
    /// Whether IMMED_TR is set.
    pub immediate: bool,
}

impl Operands for CreateTracking {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        Ok(Self { object: object_of(wire), source: wire.generic().start, immediate: immediate_of(wire) })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        set_flag(wire, IMMEDIATE, self.immediate);
        wire.set_generic(GenericOperands { start: self.source, ..GenericOperands::default() });
    }
    fn object(&self) -> ObjectId {
        self.object
    }
}

/// REMOVE COLLECTION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoveCollection {
    /// The collection.
    pub object: ObjectId,
    /// FCR: removes it even if it has members, which are kept.
    pub force: bool,
}

const FORCE: u8 = 0x01;

impl Operands for RemoveCollection {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        Ok(Self { object: object_of(wire), force: wire.head.specific_bits & FORCE != 0 })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        set_flag(wire, FORCE, self.force);
    }
    fn object(&self) -> ObjectId {
        self.object
    }
}

/// CREATE PARTITION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatePartition {
    /// REQUESTED PARTITION_ID; 0 lets the device choose.
    pub partition: u64,
}

impl Operands for CreatePartition {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        Ok(Self { partition: wire.head.partition.get() })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object());
    }
    fn object(&self) -> ObjectId {
        ObjectId::of_partition(self.partition)
    }
}

/// REMOVE PARTITION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovePartition {
    /// The partition.
    pub partition: u64,
    /// REMOVE SCOPE 1: with everything in it (OSD-2).
    pub with_contents: bool,
}

impl Operands for RemovePartition {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        let with_contents = match (wire.generation, wire.head.specific_bits & THREE_BITS) {
            (Generation::Osd1, _) | (_, 0) => false,
            (_, 1) => true,
            _ => return Err(CdbError::reserved(pointer::SPECIFIC_BITS)),
        };
        Ok(Self { partition: wire.head.partition.get(), with_contents })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object());
        let osd2 = wire.is_osd2();
        set_flag(wire, 1, osd2 && self.with_contents);
    }
    fn object(&self) -> ObjectId {
        ObjectId::of_partition(self.partition)
    }
    fn deep(&self) -> bool {
        self.with_contents
    }
}

/// FORMAT OSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatOsd {
    /// FORMATTED CAPACITY in bytes; 0 is all available.
    pub capacity: u64,
}

impl Operands for FormatOsd {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        Ok(Self { capacity: wire.generic().length })
    }
    fn write(&self, wire: &mut CdbWire) {
        wire.set_generic(GenericOperands { length: self.capacity, ..GenericOperands::default() });
    }
    fn object(&self) -> ObjectId {
        ObjectId::ROOT
    }
    fn deep(&self) -> bool {
        true
    }
}

/// LIST and LIST COLLECTION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// The container to list: root, partition; for LIST COLLECTION also a collection.
    pub object: ObjectId,
    /// LIST IDENTIFIER of a series; 0 in the first request.
    pub list_id: u32,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: u64,
    /// INITIAL OBJECT_ID: the first id to list.
    pub initial: u64,
    /// LIST_ATTR: entries carry the attributes of the get list (OSD-2).
    pub with_attributes: bool,
}

impl Operands for List {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        if wire.head.specific_bits & SORT_ORDER != 0 {
            return Err(CdbError::reserved(pointer::SPECIFIC_BITS));
        }
        let GenericOperands { length: allocation, start: initial, tail: list_id } = wire.generic();
        let with_attributes = wire.is_osd2() && wire.head.specific_bits & LIST_ATTR != 0;
        Ok(Self { object: object_of(wire), list_id, allocation, initial, with_attributes })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        let osd2 = wire.is_osd2();
        set_flag(wire, LIST_ATTR, osd2 && self.with_attributes);
        wire.set_generic(GenericOperands {
            length: self.allocation,
            start: self.initial,
            tail: self.list_id,
        });
    }
    fn object(&self) -> ObjectId {
        self.object
    }
    fn sizes(&self) -> (u64, u64) {
        (0, self.allocation)
    }
}

/// QUERY (OSD-2); the query itself is in the continuation segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The collection whose members are queried.
    pub object: ObjectId,
    /// ALLOCATION LENGTH of the response in bytes.
    pub allocation: u64,
    /// MATCHES COLLECTION OBJECT_ID: receives the matches instead; 0 for none.
    pub matches: u64,
    /// Whether IMMED_TR is set.
    pub immediate: bool,
}

impl Operands for Query {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        let GenericOperands { length: allocation, start: matches, .. } = wire.generic();
        Ok(Self { object: object_of(wire), allocation, matches, immediate: immediate_of(wire) })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        set_flag(wire, IMMEDIATE, self.immediate);
        wire.set_generic(GenericOperands { length: self.allocation, start: self.matches, tail: 0 });
    }
    fn object(&self) -> ObjectId {
        self.object
    }
    fn sizes(&self) -> (u64, u64) {
        (0, self.allocation)
    }
}

/// Commands on the members of a collection (OSD-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    /// The collection.
    pub object: ObjectId,
    /// Whether IMMED_TR is set.
    pub immediate: bool,
}

impl Operands for Members {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        Ok(Self { object: object_of(wire), immediate: immediate_of(wire) })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        set_flag(wire, IMMEDIATE, self.immediate);
    }
    fn object(&self) -> ObjectId {
        self.object
    }
}

/// COPY USER OBJECTS (OSD-2); the source is in the continuation segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyObjects {
    /// Destination partition and requested number.
    pub object: ObjectId,
    /// DUPLICATION METHOD.
    pub method: u8,
    /// Whether IMMED_TR is set.
    pub immediate: bool,
}

impl Operands for CopyObjects {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        Ok(Self { object: object_of(wire), method: wire.head.duplication, immediate: immediate_of(wire) })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        wire.head.duplication = self.method;
        set_flag(wire, IMMEDIATE, self.immediate);
    }
    fn object(&self) -> ObjectId {
        self.object
    }
}

/// Snapshot and clone commands (OSD-2). No source gives their fields; this layout is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The created or changed partition; 0 lets the device choose.
    pub partition: u64,
    /// The source partition; 0 for none.
    pub source: u64,
    /// DUPLICATION METHOD.
    pub method: u8,
}

impl Operands for Duplicate {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        let ObjectId { partition, object: source } = object_of(wire);
        Ok(Self { partition, source, method: wire.head.duplication })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, ObjectId::new(self.partition, self.source));
        wire.head.duplication = self.method;
    }
    fn object(&self) -> ObjectId {
        ObjectId::of_partition(self.partition)
    }
}

/// READ MAP and READ MAPS AND COMPARE (OSD-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadMap {
    /// The user object.
    pub object: ObjectId,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: u64,
    /// First byte to map.
    pub start: u64,
    /// Requested MAP TYPE; 0 is every type.
    pub kind: u16,
}

impl Operands for ReadMap {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        let GenericOperands { length: allocation, start, tail } = wire.generic();
        Ok(Self { object: object_of(wire), allocation, start, kind: (tail >> 16) as u16 })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        let tail = u32::from(self.kind) << 16;
        wire.set_generic(GenericOperands { length: self.allocation, start: self.start, tail });
    }
    fn object(&self) -> ObjectId {
        self.object
    }
    fn sizes(&self) -> (u64, u64) {
        (0, self.allocation)
    }
    fn range(&self) -> Option<Range> {
        Some(Range { start: self.start, length: u64::MAX - self.start })
    }
}

/// PERFORM SCSI COMMAND. The embedded command's data are the command data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerformScsi {
    /// The object whose capability permits it.
    pub object: ObjectId,
    /// The embedded CDB, left-justified, zero-padded.
    pub cdb: [u8; 16],
}

impl Operands for PerformScsi {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        let mut cdb = [0; 16];
        cdb.copy_from_slice(&wire.head.specific[..16]);
        Ok(Self { object: object_of(wire), cdb })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        wire.head.specific[..16].copy_from_slice(&self.cdb);
    }
    fn object(&self) -> ObjectId {
        self.object
    }
    /// Returns the data sizes of the embedded command.
    fn sizes(&self) -> (u64, u64) {
        match SpcCommand::parse(&self.cdb) {
            Ok(SpcCommand::ModeSelect(select)) => (select.length.into(), 0),
            Ok(command) => (0, command.allocation() as u64),
            Err(_) => (0, 0),
        }
    }
}

/// PERFORM TASK MANAGEMENT FUNCTION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerformTask {
    /// The object whose capability permits it.
    pub object: ObjectId,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: u16,
    /// Function code.
    pub function: u8,
    /// Tag of the task.
    pub tag: u64,
}

impl Operands for PerformTask {
    fn read(wire: &CdbWire) -> Result<Self, CdbError> {
        let [a, b, _, _, _, _, _, function, tag @ .., _, _, _, _] = wire.head.specific;
        let (allocation, tag) = (u16::from_be_bytes([a, b]), u64::from_be_bytes(tag));
        Ok(Self { object: object_of(wire), allocation, function, tag })
    }
    fn write(&self, wire: &mut CdbWire) {
        set_object(wire, self.object);
        wire.head.specific[..2].copy_from_slice(&self.allocation.to_be_bytes());
        wire.head.specific[7] = self.function;
        wire.head.specific[8..16].copy_from_slice(&self.tag.to_be_bytes());
    }
    fn object(&self) -> ObjectId {
        self.object
    }
    fn sizes(&self) -> (u64, u64) {
        (0, self.allocation.into())
    }
}
