//! CDB continuation segments: limits of scatter/gather lists, and positions of errors in a segment.

use crate::plain::{Plain, triple};
use crate::support::user;
use sealstone_osd::cdb::{Append, Extent, Target};
use sealstone_osd::continuation::{Piece, Segment};
use sealstone_osd::{Command, Generation, ObjectId};
use sealstone_scsi::{FieldPointer, Sense};

const OID: u64 = 0x10000;

fn extent(start: u64, length: u64) -> Extent {
    Extent { object: user(OID), start, length }
}

fn pieces(list: &[(u64, u64)]) -> Segment {
    let pieces = list.iter().map(|&(offset, length)| Piece { offset, length }).collect();
    Segment { scatter_gather: Some(pieces), ..Segment::default() }
}

struct Scatter(Plain);

impl Scatter {
    fn new() -> Self {
        Self(Plain::with_object(Generation::Osd2))
    }

    fn reply(&self, command: Command, segment: &[u8], data: &[u8]) -> sealstone_scsi::lu::ScsiReply {
        let mut cdb = self.0.cdb(command);
        cdb.continuation_length = segment.len() as u32;
        self.0.send(&cdb, &[segment, data].concat())
    }

    fn run(&self, command: Command, list: &[(u64, u64)], data: &[u8]) -> sealstone_scsi::lu::ScsiReply {
        let action = command.row().osd2.unwrap();
        self.reply(command, &pieces(list).encode(action).unwrap(), data)
    }

    fn write(&self, start: u64, list: &[(u64, u64)], data: &[u8]) -> sealstone_scsi::lu::ScsiReply {
        self.run(Command::Write(extent(start, data.len() as u64)), list, data)
    }

    fn read(&self, start: u64, length: u64) -> Vec<u8> {
        self.0.good(&self.0.cdb(Command::Read(extent(start, length))), &[]).data_in.to_vec()
    }

    fn bad(&self, command: Command, segment: &[u8], data: &[u8]) -> Sense {
        crate::plain::sense(&self.reply(command, segment, data))
    }
}

#[test]
fn overlapping_pieces_write_in_list_order() {
    let scatter = Scatter::new();
    assert!(scatter.write(0, &[(20, 4), (0, 4), (2, 4)], b"aaaabbbbcccc").sense.is_empty());
    assert_eq!(scatter.read(0, 24), b"bbcccc\0\0\0\0\0\0\0\0\0\0\0\0\0\0aaaa");
    // The same bytes twice: the later piece remains.
    assert!(scatter.write(0, &[(0, 3), (0, 3)], b"oldnew").sense.is_empty());
    assert_eq!(scatter.read(0, 3), b"new");
    // Offsets are relative to STARTING BYTE.
    assert!(scatter.write(100, &[(5, 2), (0, 1)], b"xyz").sense.is_empty());
    assert_eq!(scatter.read(100, 7), b"z\0\0\0\0xy");
}

#[test]
fn a_read_gathers_overlapping_pieces_each_for_itself() {
    let scatter = Scatter::new();
    assert!(scatter.0.send(&scatter.0.cdb(Command::Write(extent(0, 10))), b"0123456789").sense.is_empty());
    let read = |list: &[(u64, u64)]| {
        let length = list.iter().map(|(_, length)| length).sum();
        scatter.run(Command::Read(extent(0, length)), list, &[])
    };
    assert_eq!(read(&[(8, 2), (0, 4), (2, 4)]).data_in[..], b"8901232345"[..]);
    assert_eq!(read(&[(3, 0), (0, 1), (9, 1)]).data_in[..], b"09"[..]);
    // Past the end: zeros, and the number of existing bytes is reported.
    let past = read(&[(0, 2), (9, 3)]);
    let sense = crate::plain::sense(&past);
    assert_eq!((triple(&sense), sense.command_specific), ((1, 0x3B17), Some(3)));
    assert_eq!(past.data_in[..], b"019\0\0"[..]);
    // The error points to the piece that starts beyond the end.
    let beyond = crate::plain::sense(&read(&[(0, 2), (11, 1)]));
    assert_eq!((triple(&beyond), beyond.field), ((5, 0x2400), Some(FieldPointer::parameter(48 + 16))));
}

#[test]
fn scatter_list_limits_are_enforced() {
    let scatter = Scatter::new();
    assert!(scatter.write(0, &[], b"").sense.is_empty(), "an empty list");
    let sum = crate::plain::sense(&scatter.write(0, &[], b"abc"));
    assert_eq!((triple(&sum), sum.field), ((5, 0x2400), Some(FieldPointer::cdb(48))));
    let sum = crate::plain::sense(&scatter.write(0, &[(0, u64::MAX), (0, 4)], b"abc"));
    assert_eq!(triple(&sum), (5, 0x2400));
    // As many pieces as fit the length of a scatter/gather list in the root page.
    let most = scatter.0.get(ObjectId::ROOT, 0x9000_0001, 0x700_0001);
    let most = u32::from_be_bytes(most.try_into().unwrap()) + 48;
    let count = u64::from(most - 48) / 16;
    let list: Vec<(u64, u64)> = (0..count).map(|at| (2 * (count - 1 - at), 1)).collect();
    let data: Vec<u8> = (0..count).map(|at| (at % 251) as u8).collect();
    assert!(scatter.write(0, &list, &data).sense.is_empty());
    assert_eq!(scatter.read(0, 1), [((count - 1) % 251) as u8]);
    assert_eq!(scatter.read(2 * (count - 1), 1), [0]);
    let action = Command::Write(extent(0, 0)).row().osd2.unwrap();
    let mut long = pieces(&[(0, 3)]).encode(action).unwrap();
    long.resize(most as usize + 8, 0);
    let sense = scatter.bad(Command::Write(extent(0, 3)), &long, b"abc");
    assert_eq!((triple(&sense), sense.field), ((5, 0x2400), Some(FieldPointer::cdb(48))));
    long.truncate(most as usize);
    assert!(scatter.reply(Command::Write(extent(0, 3)), &long, b"abc").sense.is_empty(), "zeros end it");
}

#[test]
fn segment_errors_point_to_byte() {
    let scatter = Scatter::new();
    let write = Command::Write(extent(0, 3));
    let action = write.row().osd2.unwrap();
    let good = pieces(&[(0, 3)]).encode(action).unwrap();
    assert!(scatter.reply(write, &good, b"abc").sense.is_empty());
    let before = scatter.0.bench.state_hash();
    let change = |at: usize, value: u8| {
        let mut segment = good.clone();
        segment[at] = value;
        let sense = scatter.bad(write, &segment, b"abc");
        assert_eq!(triple(&sense), (5, 0x2400), "{at}");
        sense.field.unwrap()
    };
    assert_eq!(change(0, 2), FieldPointer::parameter(0), "format");
    assert_eq!(change(3, 0x85), FieldPointer::parameter(2), "another service action");
    assert_eq!(change(41, 9), FieldPointer::parameter(40), "an unknown descriptor");
    assert_eq!(change(41, 2), FieldPointer::parameter(40), "a query list in a WRITE");
    assert_eq!(change(43, 1), FieldPointer::parameter(40), "padding that does not fit");
    assert_eq!(change(47, 15), FieldPointer::parameter(40), "half a piece");
    assert_eq!(change(47, 32), FieldPointer::parameter(40), "past the end of the segment");
    // A second list is refused.
    let twice = [&good[..], &good[40..]].concat();
    let sense = scatter.bad(write, &twice, b"abc");
    assert_eq!(sense.field, Some(FieldPointer::parameter(64)));
    assert_eq!(scatter.0.bench.state_hash(), before, "nothing of it was written");
}

#[test]
fn invalid_segment_lengths_point_to_length() {
    let scatter = Scatter::new();
    for length in [8u32, 40, 47, 49, 60] {
        let mut wire = scatter.0.cdb(Command::Write(extent(0, 3))).encode().unwrap().to_vec();
        wire[48..52].copy_from_slice(&length.to_be_bytes());
        let sense = crate::plain::sense(&scatter.0.wire(&wire, &[0; 64]));
        assert_eq!((triple(&sense), sense.field), ((5, 0x2400), Some(FieldPointer::cdb(48))), "{length}");
    }
    // A Data-Out Buffer that ends within the segment.
    let mut cdb = scatter.0.cdb(Command::Write(extent(0, 3)));
    cdb.continuation_length = 64;
    assert_eq!(scatter.0.sense(&cdb, &[1; 50]).key.nibble(), 5);
}

#[test]
fn commands_that_take_no_segment_refuse_one() {
    let scatter = Scatter::new();
    let object = user(OID);
    for command in [
        Command::Append(Append { object, length: 3 }),
        Command::Clear(extent(0, 3)),
        Command::Punch(extent(0, 3)),
        Command::Remove(Target { object }),
        Command::GetAttributes(Target { object }),
        Command::SetAttributes(Target { object }),
    ] {
        let mut wire = scatter.0.cdb(command).encode().unwrap().to_vec();
        wire[48..52].copy_from_slice(&64u32.to_be_bytes());
        let sense = crate::plain::sense(&scatter.0.wire(&wire, &[0; 80]));
        assert_eq!((triple(&sense), sense.field), ((5, 0x2400), Some(FieldPointer::cdb(48))), "{command:?}");
    }
}

#[test]
fn attribute_list_offsets_include_segment() {
    let scatter = Scatter::new();
    let command = Command::Write(extent(0, 6));
    let segment = pieces(&[(0, 3), (8, 3)]).encode(command.row().osd2.unwrap()).unwrap();
    let (mut cdb, out) = scatter.0.with_lists(
        command,
        &[&segment[..], b"abcdef"].concat(),
        &[(sealstone_osd::AttributeId::new(0x1_0000, 1), b"value".to_vec())],
        &[],
    );
    cdb.continuation_length = segment.len() as u32;
    scatter.0.good(&cdb, &out);
    assert_eq!(scatter.0.get(user(OID), 0x1_0000, 1), b"value");
    assert_eq!(scatter.read(0, 11), b"abc\0\0\0\0\0def");
}
