//! Standard pages: lengths, page formats, directory, timestamps, clock.

use crate::cdb;
use crate::device::{Device, number};
use crate::runner::skip;
use crate::suite::behaviours;

behaviours! { "Attribute pages";
    Osd "t10-osd 6.3" open_osd_probe_gets_all_attributes;
    Osd "t10-osd 3.5 R+1" root_information_has_the_lengths_of_the_standard;
    Osd "t10-osd 3.5 U+1" user_object_information_has_standard_lengths;
    Osd "t10-osd 3.1" page_identifications_have_40_bytes;
    Osd "t10-osd 3.1" directories_list_the_pages_of_an_object;
    Osd "t10-osd 3.4 U+2" quotas_page_of_user_objects_has_its_format;
    Osd "t10-osd 3.4 P+2" quotas_page_of_partitions_has_its_format;
    Osd "t10-osd 3.4 R+2" quotas_page_of_the_root_has_its_format;
    Osd "t10-osd 3.4 U+3" timestamps_page_of_objects_has_its_format;
    Osd "t10-osd 3.4 P+3" timestamps_page_of_partitions_has_its_format;
    Osd "t10-osd 3.4 U+5" policy_page_of_objects_has_its_format;
    Osd "t10-osd 3.4 P+5" policy_page_of_partitions_has_its_format;
    Osd "t10-osd 3.4 R+5" policy_page_of_the_root_has_its_format;
    Osd "t10-osd 3.4 FFFFFFFEh" the_current_command_page_has_its_format;
    Osd "t10-osd 3.4" a_page_without_a_format_has_length_0;
    Osd "t10-osd 3.4" short_allocation_truncates_page_with_its_length;
    Osd "t10-osd 1.5" an_attribute_is_set_in_page_format;
    Osd "t10-osd 3.5 U+3" data_times_follow_reads_and_writes;
    Osd "t10-osd 1.1 TIMESTAMPS CONTROL" timestamps_stay_if_command_disables_updates;
    Osd "t10-osd 3.5 U+3" timestamps_are_settable_except_created_time;
    Osd "t10-osd 3.5 R+1/100h" clock_advances;
    Osd "t10-osd 3.5 R+5/7" supported_methods_are_reported;
    Osd "t10-osd 3.5 R+5/80000000h" supported_algorithms_are_reported;
    Osd "t10-osd 3.5 U+1/81h" used_capacity_follows_the_data;
}

fn open_osd_probe_gets_all_attributes(device: &mut Device) {
    let wanted: Vec<(u32, u32)> =
        [4, 5, 6, 7, 8, 9, 0x80, 0x81, 0xC0, 0x100, 3].iter().map(|number| (0x9000_0001, *number)).collect();
    let request = device.request(cdb::GET_ATTRIBUTES).gets(&wanted);
    let entries = device.run(request).good().entries();
    assert_eq!(entries.iter().map(|(id, _)| *id).collect::<Vec<_>>(), wanted, "all, in the order asked for");
    let length = |at: usize| entries[at].1.len();
    assert_eq!(
        [length(0), length(1), length(2), length(3)],
        [8, 16, 32, 4],
        "vendor, product, model, revision"
    );
    assert_eq!([length(6), length(7), length(8), length(9)], [8, 8, 8, 6], "capacities, partitions, clock");
    assert!(length(10) <= 20, "system id");
}

fn root_information_has_the_lengths_of_the_standard(device: &mut Device) {
    for (attribute, length) in
        [(3, 20), (4, 8), (5, 16), (6, 32), (7, 4), (0x80, 8), (0x81, 8), (0xC0, 8), (0x100, 6)]
    {
        assert_eq!(device.of_root(0x9000_0001, attribute).len(), length, "R+1/{attribute:x}h");
    }
    let (total, used) =
        (number(&device.of_root(0x9000_0001, 0x80)), number(&device.of_root(0x9000_0001, 0x81)));
    assert!(total > 0 && used <= total, "{used} of {total}");
}

fn user_object_information_has_standard_lengths(device: &mut Device) {
    let object = device.object(b"information");
    for (attribute, length) in [(1, 8), (2, 8), (0x81, 8), (0x82, 8)] {
        assert_eq!(device.get(object, 1, attribute).len(), length, "U+1/{attribute:x}h");
    }
    assert!(device.get(object, 1, 9).is_empty(), "no username yet");
}

fn page_identifications_have_40_bytes(device: &mut Device) {
    let object = device.create();
    for page in [1, 2, 3] {
        let identification = device.get(object, page, 0);
        assert_eq!(identification.len(), 40, "U+{page}");
        assert!(identification.starts_with(b"INCITS  "), "{}", String::from_utf8_lossy(&identification));
    }
    assert_eq!(device.of_partition(0x3000_0001, 0).len(), 40);
    assert_eq!(device.of_root(0x9000_0001, 0).len(), 40);
}

fn directories_list_the_pages_of_an_object(device: &mut Device) {
    let object = device.create();
    device.set(object, 0x1_0003, 1, b"a page without a name").good();
    let request = device.user(cdb::GET_ATTRIBUTES, object).gets(&[(0, u32::MAX)]).allocates(8192);
    let entries = device.run(request).good().entries();
    for page in [1, 2, 3, 0x1_0003] {
        let entry = entries.iter().find(|((_, number), _)| *number == page);
        let (_, value) = entry.unwrap_or_else(|| panic!("page {page:#x} is in the directory"));
        assert_eq!(value.len(), 40);
    }
}

/// Retrieves a page in page format; checks its header and its length.
fn page(device: &mut Device, request: cdb::Request, page: u32, osd1: usize, osd2: usize) -> Vec<u8> {
    let bytes = device.run(request.gets_page(page)).good().attributes;
    let length = device.generation.pick(osd1, osd2);
    assert_eq!(number(&bytes[..4]), u64::from(page), "page number");
    assert_eq!(number(&bytes[4..8]) as usize, length, "page length");
    bytes[..8 + length].to_vec()
}

fn user_page(device: &mut Device, object: u64, number: u32, length: usize) -> Vec<u8> {
    let request = device.user(cdb::GET_ATTRIBUTES, object);
    page(device, request, number, length, length)
}

fn quotas_page_of_user_objects_has_its_format(device: &mut Device) {
    let object = device.create();
    device.set(object, 2, 1, &0x1234_u64.to_be_bytes()).good();
    let bytes = user_page(device, object, 2, 0x08);
    assert_eq!(number(&bytes[8..16]), 0x1234);
}

fn quotas_page_of_partitions_has_its_format(device: &mut Device) {
    let request = device.own(cdb::SET_ATTRIBUTES).sets(0x3000_0002, 0x1_0002, &77_u64.to_be_bytes());
    device.run(request).good();
    let request = device.own(cdb::GET_ATTRIBUTES);
    let bytes = page(device, request, 0x3000_0002, 0x1C, 0x1C);
    assert_eq!(number(&bytes[24..32]), 77, "object count");
}

fn quotas_page_of_the_root_has_its_format(device: &mut Device) {
    let request = device.request(cdb::GET_ATTRIBUTES);
    page(device, request, 0x9000_0002, 0x24, 0x24);
}

fn timestamps_page_of_objects_has_its_format(device: &mut Device) {
    let object = device.create();
    let created = device.get(object, 3, 1);
    let bytes = user_page(device, object, 3, 0x1E);
    assert_eq!(bytes[8..14], created);
}

fn timestamps_page_of_partitions_has_its_format(device: &mut Device) {
    let created = device.of_partition(0x3000_0003, 1);
    let request = device.own(cdb::GET_ATTRIBUTES);
    let bytes = page(device, request, 0x3000_0003, 0x1F, 0x1F);
    assert_eq!(bytes[8..14], created);
}

fn policy_page_of_objects_has_its_format(device: &mut Device) {
    let object = device.create();
    device.set(object, 5, 0x4000_0001, &0xABCD_u32.to_be_bytes()).good();
    let bytes = user_page(device, object, 5, 0x04);
    assert_eq!(number(&bytes[8..12]), 0xABCD);
}

fn policy_page_of_partitions_has_its_format(device: &mut Device) {
    let method = device.of_partition(0x3000_0005, 1);
    let request = device.own(cdb::GET_ATTRIBUTES);
    let bytes = page(device, request, 0x3000_0005, 0x96, 0x96);
    assert_eq!(bytes[11..12], method);
}

fn policy_page_of_the_root_has_its_format(device: &mut Device) {
    let method = device.of_root(0x9000_0005, 1);
    let request = device.request(cdb::GET_ATTRIBUTES);
    let bytes = page(device, request, 0x9000_0005, 0x3F, 0x42);
    assert_eq!(bytes[8..9], method);
}

fn the_current_command_page_has_its_format(device: &mut Device) {
    let request = device.user(cdb::CREATE, 0x6_0000);
    let bytes = page(device, request, 0xFFFF_FFFE, 0x30, 0x44);
    let at = device.generation.pick(28, 40);
    assert_eq!(bytes[at], 0x80, "object type");
    assert_eq!(number(&bytes[at + 4..at + 12]), device.partition);
    assert_eq!(number(&bytes[at + 12..at + 20]), 0x6_0000);
}

fn a_page_without_a_format_has_length_0(device: &mut Device) {
    let object = device.create();
    user_page(device, object, 1, 0);
    user_page(device, object, 0x1_0003, 0);
}

fn short_allocation_truncates_page_with_its_length(device: &mut Device) {
    let object = device.create();
    let request = device.user(cdb::GET_ATTRIBUTES, object).gets_page(3).allocates(16);
    let bytes = device.run(request).good().attributes;
    assert!(bytes.len() <= 16);
    assert_eq!(number(&bytes[4..8]), 0x1E);
}

fn an_attribute_is_set_in_page_format(device: &mut Device) {
    let object = device.create();
    let request = device.user(cdb::SET_ATTRIBUTES, object).gets_page(3).sets(0x1_0003, 1, b"in page format");
    device.run(request).good();
    assert_eq!(device.get(object, 0x1_0003, 1), b"in page format");
}

fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(5));
}

fn times(device: &mut Device, object: u64) -> [u64; 2] {
    // Reads the times without updating them.
    let request = device.user(cdb::GET_ATTRIBUTES, object).gets(&[(3, 4), (3, 5)]).timestamps(0x7F);
    let entries = device.run(request).good().entries();
    [number(&entries[0].1), number(&entries[1].1)]
}

fn data_times_follow_reads_and_writes(device: &mut Device) {
    let object = device.object(b"data");
    let [accessed, modified] = times(device, object);
    pause();
    device.write(object, 0, b"more");
    let [_, after_write] = times(device, object);
    assert!(after_write > modified, "a write leaves its time");
    pause();
    device.read(object, 0, 4).good();
    let after_read = times(device, object);
    assert!(after_read[0] > accessed && after_read[1] == after_write, "a read leaves its own");
}

fn timestamps_stay_if_command_disables_updates(device: &mut Device) {
    let object = device.object(b"data");
    let before = times(device, object);
    pause();
    let request = device.user(cdb::WRITE, object).sends(b"more").timestamps(0x7F);
    device.run(request).good();
    let request = device.user(cdb::READ, object).fetches(4).timestamps(0x7F);
    device.run(request).good();
    assert_eq!(times(device, object), before);
}

fn timestamps_are_settable_except_created_time(device: &mut Device) {
    let object = device.create();
    let time = &0x0123_4567_89AB_u64.to_be_bytes()[2..];
    device.set(object, 3, 5, time).good();
    let request = device.user(cdb::GET_ATTRIBUTES, object).gets(&[(3, 5)]);
    assert_eq!(device.run(request).good().value(), time);
    let answer = device.set(object, 3, 1, time);
    assert_ne!(answer.status, 0, "the device keeps it: capabilities rest on it");
}

fn clock_advances(device: &mut Device) {
    let one = number(&device.of_root(0x9000_0001, 0x100));
    pause();
    let other = number(&device.of_root(0x9000_0001, 0x100));
    assert!(other > one && other - one < 60_000, "{one} then {other}");
}

fn supported_methods_are_reported(device: &mut Device) {
    let mask = number(&device.of_root(0x9000_0005, 7));
    let used = 1 << device.method as u8;
    assert!(mask & used != 0, "the method that we use: {mask:#x}");
}

fn supported_algorithms_are_reported(device: &mut Device) {
    let codes: Vec<Vec<u8>> = (0..16).map(|slot| device.of_root(0x9000_0005, 0x8000_0000 + slot)).collect();
    if codes.iter().all(Vec::is_empty) {
        skip("the device tells no algorithms");
    }
    assert_eq!(codes[0], [0x01], "slot 0 is HMAC-SHA1");
    if !codes[2].is_empty() {
        assert_eq!(codes[1..4].concat(), [0xF1, 0xF3, 0xF4], "the algorithms of this project");
    }
    assert!(codes.iter().all(|code| code.len() <= 1));
}

fn used_capacity_follows_the_data(device: &mut Device) {
    let object = device.create();
    let before = number(&device.get(object, 1, 0x81));
    device.write(object, 0, &vec![1; 200_000]);
    let request = device.user(cdb::FLUSH, object);
    device.run(request).good();
    let after = number(&device.get(object, 1, 0x81));
    assert!(after >= before + 200_000, "{before} then {after}");
    assert!(number(&device.of_partition(0x3000_0001, 0x81)) >= 200_000);
}
