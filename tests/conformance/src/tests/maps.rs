//! READ MAP, READ MAPS AND COMPARE, OBJECT STRUCTURE CHECK.

use crate::cdb;
use crate::device::{Device, GOOD, ILLEGAL, number};
use crate::suite::behaviours;

behaviours! { "Maps and checks";
    Osd2 "t10-osd 1.9 READ MAP" map_distinguishes_data_and_holes;
    Osd2 "t10-osd 1.9 READ MAP" map_of_one_type_lists_only_that_type;
    Osd2 "t10-osd 1.9 READ MAP" short_map_has_whole_descriptors_and_length;
    Osd2 "t10-osd 1.9 READ MAP" zero_allocation_returns_no_map;
    Osd2 "t10-osd 1.9 READ MAP" a_map_from_beyond_the_end_is_refused;
    Osd2 "t10-osd 1.9 READ MAP" map_of_a_missing_object_is_refused;
    Osd2 "t10-osd 1.10 OBJECT STRUCTURE CHECK" a_sound_partition_checks_sound;
    Osd2 "t10-osd 1.10 OBJECT STRUCTURE CHECK" check_of_a_missing_partition_is_refused;
}

const WRITTEN: u16 = 1;
const HOLE: u16 = 2;
const MEBIBYTE: u64 = 1 << 20;

/// Returns type, offset and length of each descriptor, and the reported length.
fn map(
    device: &mut Device,
    object: u64,
    allocation: usize,
    start: u64,
    kind: u16,
) -> (Vec<(u16, u64, u64)>, u64) {
    let request = device.user(cdb::READ_MAP, object).fetches(allocation).start(start);
    let request = request.with(48, &kind.to_be_bytes());
    let data = device.run(request).good().data;
    let reported = number(&data[..8]);
    let there = (reported as usize).min(data.len() - 8) / 16;
    let one = |bytes: &[u8]| (number(&bytes[2..4]) as u16, number(&bytes[8..16]), number(&bytes[4..8]));
    (data[8..8 + 16 * there].chunks_exact(16).map(one).collect(), reported)
}

/// Creates an object with data in the second of four mebibytes.
fn sparse(device: &mut Device) -> u64 {
    let object = device.create();
    device.write(object, MEBIBYTE, &vec![7; MEBIBYTE as usize]);
    device.set(object, 1, 0x82, &(4 * MEBIBYTE).to_be_bytes()).good();
    object
}

fn map_distinguishes_data_and_holes(device: &mut Device) {
    let object = sparse(device);
    let (stretches, reported) = map(device, object, 4096, 0, 0);
    assert_eq!(reported, 16 * stretches.len() as u64);
    let mut end = 0;
    for (kind, offset, length) in &stretches {
        assert!(*offset == end && matches!(*kind, WRITTEN | HOLE), "{stretches:x?}");
        end = offset + length;
    }
    assert_eq!(end, 4 * MEBIBYTE, "the whole object");
    let written: u64 =
        stretches.iter().filter(|(kind, ..)| *kind == WRITTEN).map(|(.., length)| length).sum();
    // A device may store unwritten zeros at the edges of its blocks.
    assert!((MEBIBYTE..2 * MEBIBYTE).contains(&written), "{stretches:x?}");
    let covers = stretches
        .iter()
        .any(|(kind, at, length)| *kind == WRITTEN && *at <= MEBIBYTE && at + length >= 2 * MEBIBYTE);
    assert!(covers, "{stretches:x?}");
}

fn map_of_one_type_lists_only_that_type(device: &mut Device) {
    let object = sparse(device);
    for kind in [WRITTEN, HOLE] {
        let (stretches, _) = map(device, object, 4096, 0, kind);
        assert!(!stretches.is_empty() && stretches.iter().all(|(one, ..)| *one == kind), "{stretches:x?}");
    }
}

fn short_map_has_whole_descriptors_and_length(device: &mut Device) {
    let object = sparse(device);
    let (whole, full) = map(device, object, 4096, 0, 0);
    let (cut, reported) = map(device, object, 8 + 16 + 9, 0, 0);
    assert_eq!((cut, reported), (whole[..1].to_vec(), full));
}

fn zero_allocation_returns_no_map(device: &mut Device) {
    let object = sparse(device);
    let request = device.user(cdb::READ_MAP, object).fetches(0);
    assert!(device.run(request).good().data.is_empty());
}

fn a_map_from_beyond_the_end_is_refused(device: &mut Device) {
    let object = sparse(device);
    let request = device.user(cdb::READ_MAP, object).fetches(512).start(4 * MEBIBYTE + 1);
    device.run(request).invalid(40);
}

fn map_of_a_missing_object_is_refused(device: &mut Device) {
    let request = device.user(cdb::READ_MAP, 0x55_5555).fetches(512);
    device.run(request).invalid(24);
}

fn a_sound_partition_checks_sound(device: &mut Device) {
    device.object(b"sound");
    let request = device.own(cdb::STRUCTURE_CHECK);
    device.run(request).good();
    assert_eq!(number(&device.of_partition(0x3000_0006, 1)), 0, "damage summary");
    assert_eq!(number(&device.of_partition(0x3000_0006, 6)), 0, "damaged objects");
}

fn check_of_a_missing_partition_is_refused(device: &mut Device) {
    let nowhere = crate::runner::free_partition();
    let request = device.request(cdb::STRUCTURE_CHECK).at(cdb::PARTITION, nowhere, 0);
    let answer = device.run(request).refused(ILLEGAL, 0x2400);
    assert_ne!(answer.status, GOOD);
}
