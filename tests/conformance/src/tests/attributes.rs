//! GET and SET ATTRIBUTES in list format and from the CDB; permissions; truncation.

use crate::cdb::{self, Generation};
use crate::device::{Device, ILLEGAL, VerifiedReply, number};
use crate::list;
use crate::suite::behaviours;

/// An application page: the standard assigns pages from offset 10000h to applications.
const OURS: u32 = 0x1_0003;

behaviours! { "Attributes";
    Osd "t10-osd 3.1" attribute_value_round_trips;
    Osd "t10-osd 3.3" attributes_are_returned_in_request_order;
    Osd "t10-osd 3.3" undefined_attribute_is_returned_empty;
    Osd "t10-osd 3.1" setting_nothing_makes_an_attribute_undefined;
    Osd "t10-osd 3.1" a_value_of_the_greatest_length_is_kept;
    Osd "t10-osd 3.3" wildcard_fetches_all_attributes_of_a_page;
    Osd "t10-osd 3.3" all_pages_are_fetched_at_once;
    Osd "t10-osd 3.2" short_allocation_truncates_list_with_full_length;
    Osd "t10-osd 3.2" embedded_length_of_a_set_list_is_ignored;
    Osd "t10-osd 3.1" each_object_type_has_attributes_of_its_own;
    Osd "t10-osd 3.1" a_page_of_another_object_type_is_refused;
    Osd "t10-osd 3.5" device_maintained_attributes_are_readonly;
    Osd "t10-osd 3.1" reserved_pages_cannot_be_set;
    Osd "t10-osd 5.1 type 08h" a_refused_attribute_is_named;
    Osd "t10-osd 5.2" nothing_is_set_if_one_attribute_is_refused;
    Osd "t10-osd 1.7" set_attributes_sets_before_getting;
    Osd "t10-osd 1.7" get_attributes_gets_before_setting;
    Osd "t10-osd 5.3 1A00" a_ragged_list_is_refused;
    Osd "t10-osd 5.3 2600" a_list_of_the_wrong_type_is_refused;
    Osd2 "t10-osd 1.5" one_attribute_is_set_from_the_cdb;
    Osd2 "t10-osd 1.5" cdb_attribute_value_is_limited_to_18_bytes;
    Osd "t10-osd 3.1" the_root_keeps_attributes_of_applications;
    Osd "t10-osd 3.1" a_partition_keeps_attributes_of_applications;
    Osd "t10-osd 3.5 P+2" unset_quota_of_wrong_length_is_refused;
    Osd "t10-osd 3.1" many_attributes_are_kept_apart;
    Osd "t10-osd 1.10" attributes_of_a_missing_object_are_refused;
}

fn attribute_value_round_trips(device: &mut Device) {
    let object = device.create();
    for (number, value) in [(1, &b"x"[..]), (2, b"seven b"), (3, b"eight by"), (4, &[0xA5; 300])] {
        device.set(object, OURS, number, value).good();
        assert_eq!(device.get(object, OURS, number), value);
    }
    device.set(object, OURS, 4, b"changed").good();
    assert_eq!(device.get(object, OURS, 4), b"changed");
}

fn attributes_are_returned_in_request_order(device: &mut Device) {
    let object = device.create();
    device.set(object, OURS, 7, b"seven").good();
    let wanted = [(1, 2), (OURS, 7), (1, 0x82), (0x1_0007, 1), (1, 1)];
    let request = device.user(cdb::GET_ATTRIBUTES, object).gets(&wanted);
    let entries = device.run(request).good().entries();
    assert_eq!(entries.iter().map(|(id, _)| *id).collect::<Vec<_>>(), wanted);
    assert!(entries[3].1.is_empty(), "undefined, but there");
}

fn undefined_attribute_is_returned_empty(device: &mut Device) {
    let object = device.create();
    assert!(device.get(object, OURS, 99).is_empty());
}

fn setting_nothing_makes_an_attribute_undefined(device: &mut Device) {
    let object = device.create();
    device.set(object, OURS, 1, b"here").good();
    device.set(object, OURS, 1, b"").good();
    assert!(device.get(object, OURS, 1).is_empty());
    let request = device.user(cdb::GET_ATTRIBUTES, object).gets(&[(OURS, u32::MAX)]);
    let entries = device.run(request).good().entries();
    assert!(entries.iter().all(|(_, value)| !value.is_empty()), "a wildcard fetches defined attributes only");
}

fn a_value_of_the_greatest_length_is_kept(device: &mut Device) {
    let object = device.create();
    let value = vec![0x5A; 0xFFFE];
    device.set(object, OURS, 1, &value).good();
    // In OSD-1 the length of a list has 16 bits, so the value does not fit besides its header.
    if device.osd2() {
        let request = device.user(cdb::GET_ATTRIBUTES, object).gets(&[(OURS, 1)]).allocates(0x1_0100);
        assert_eq!(device.run(request).good().value(), value);
    }
}

fn wildcard_fetches_all_attributes_of_a_page(device: &mut Device) {
    let object = device.create();
    for number in [1, 5, 9] {
        device.set(object, OURS, number, &number.to_be_bytes()).good();
    }
    let request = device.user(cdb::GET_ATTRIBUTES, object).gets(&[(OURS, u32::MAX)]);
    let entries = device.run(request).good().entries();
    let numbers: Vec<u32> =
        entries.iter().map(|((page, number), _)| (*page == OURS).then_some(*number).unwrap()).collect();
    assert_eq!(numbers.into_iter().filter(|number| *number != 0).collect::<Vec<_>>(), [1, 5, 9]);
}

fn all_pages_are_fetched_at_once(device: &mut Device) {
    let object = device.create();
    device.set(object, OURS, 1, b"ours").good();
    let request = device.user(cdb::GET_ATTRIBUTES, object).gets(&[(u32::MAX, u32::MAX)]).allocates(16_384);
    let entries = device.run(request).good().entries();
    let value = |id| entries.iter().find(|(one, _)| *one == id).map(|(_, value)| value.as_slice());
    assert_eq!(value((OURS, 1)), Some(&b"ours"[..]));
    assert_eq!(value((1, 2)).map(number), Some(object));
    assert!(
        entries.iter().all(|((page, _), _)| *page < 0x3000_0000 || *page >= 0xF000_0000),
        "pages of the object"
    );
}

fn short_allocation_truncates_list_with_full_length(device: &mut Device) {
    let object = device.create();
    device.set(object, OURS, 1, &[1; 100]).good();
    device.set(object, OURS, 2, &[2; 100]).good();
    let names = [(OURS, 1), (OURS, 2)];
    let request = device.user(cdb::GET_ATTRIBUTES, object).gets(&names);
    let whole = list::retrieved(device.generation, &device.run(request).good().attributes);
    assert_eq!(whole.entries.len(), 2);
    for allocation in [150, 16] {
        let request = device.user(cdb::GET_ATTRIBUTES, object).gets(&names).allocates(allocation);
        let answer = device.run(request).good();
        assert!(answer.attributes.len() <= allocation);
        let cut = list::retrieved(device.generation, &answer.attributes);
        assert_eq!(cut.full, whole.full, "full length at allocation {allocation}");
        assert_eq!(cut.entries, whole.entries[..cut.entries.len()]);
    }
}

fn embedded_length_of_a_set_list_is_ignored(device: &mut Device) {
    let object = device.create();
    for lie in [0_u8, 0xFF] {
        let mut list = list::values(device.generation, &[(OURS, 1, vec![lie; 4])]);
        let at = device.generation.pick(2, 4);
        list[at..at + 2].fill(lie);
        let request = cdb::Request { raw_set: Some(list), ..device.user(cdb::SET_ATTRIBUTES, object) };
        device.run(request).good();
        assert_eq!(device.get(object, OURS, 1), [lie; 4]);
    }
}

fn each_object_type_has_attributes_of_its_own(device: &mut Device) {
    let object = device.create();
    device.set(object, 1, 9, b"a user object").good();
    let request = device.own(cdb::SET_ATTRIBUTES).sets(0x3000_0001, 9, b"a partition");
    device.run(request).good();
    assert_eq!(device.get(object, 1, 9), b"a user object");
    assert_eq!(device.of_partition(0x3000_0001, 9), b"a partition");
}

fn refuses_attribute(answer: VerifiedReply) {
    let sense = answer.sense.clone().expect("sense data");
    assert_eq!(sense.key, ILLEGAL, "{sense:04x?}");
    assert!(matches!(sense.code, 0x2400 | 0x2600), "{sense:04x?}");
}

fn a_page_of_another_object_type_is_refused(device: &mut Device) {
    let object = device.create();
    for page in [0x3000_0001, 0x9000_0001] {
        let request = device.user(cdb::GET_ATTRIBUTES, object).gets(&[(page, 9)]);
        refuses_attribute(device.run(request));
        refuses_attribute(device.set(object, page, 9, b"wrong"));
    }
    let request = device.own(cdb::GET_ATTRIBUTES).gets(&[(1, 9)]);
    refuses_attribute(device.run(request));
}

fn device_maintained_attributes_are_readonly(device: &mut Device) {
    let object = device.create();
    for (page, number) in [(1, 1), (1, 2), (1, 0x81)] {
        refuses_attribute(device.set(object, page, number, &[0; 8]));
    }
    for (page, number) in [(0x3000_0001, 1), (0x3000_0001, 0x81), (0x3000_0001, 0xC1)] {
        let request = device.own(cdb::SET_ATTRIBUTES).sets(page, number, &[0; 8]);
        refuses_attribute(device.run(request));
    }
    for (page, number) in [(0x9000_0001, 3), (0x9000_0001, 4), (0x9000_0001, 0x80), (0x9000_0001, 0xC0)] {
        let request = device.request(cdb::SET_ATTRIBUTES).sets(page, number, &[0; 8]);
        refuses_attribute(device.run(request));
    }
    refuses_attribute(device.set(object, 0xFFFF_FFFE, 3, &[0; 8]));
}

fn reserved_pages_cannot_be_set(device: &mut Device) {
    let object = device.create();
    for page in [0, 0x7F, 0x80, 0xC000_0000] {
        refuses_attribute(device.set(object, page, 1, b"reserved"));
    }
}

fn a_refused_attribute_is_named(device: &mut Device) {
    let object = device.create();
    let answer = device.set(object, 1, 2, &[0; 8]).refused(ILLEGAL, 0x2600);
    assert_eq!(answer.sense.unwrap().attributes, [(1, 2)]);
}

fn nothing_is_set_if_one_attribute_is_refused(device: &mut Device) {
    let object = device.create();
    let request = device.user(cdb::SET_ATTRIBUTES, object).sets(OURS, 1, b"first").sets(1, 2, &[0; 8]);
    refuses_attribute(device.run(request));
    assert!(device.get(object, OURS, 1).is_empty());
}

fn set_attributes_sets_before_getting(device: &mut Device) {
    let object = device.create();
    device.set(object, OURS, 1, b"old").good();
    let request = device.user(cdb::SET_ATTRIBUTES, object).sets(OURS, 1, b"new").gets(&[(OURS, 1)]);
    assert_eq!(device.run(request).good().value(), b"new");
}

fn get_attributes_gets_before_setting(device: &mut Device) {
    let object = device.create();
    device.set(object, OURS, 1, b"old").good();
    let request = device.user(cdb::GET_ATTRIBUTES, object).sets(OURS, 1, b"new").gets(&[(OURS, 1)]);
    assert_eq!(device.run(request).good().value(), b"old");
    assert_eq!(device.get(object, OURS, 1), b"new");
}

fn raw(device: &mut Device, object: u64, list: Vec<u8>) -> VerifiedReply {
    let request = cdb::Request { raw_set: Some(list), ..device.user(cdb::SET_ATTRIBUTES, object) };
    device.run(request)
}

fn a_ragged_list_is_refused(device: &mut Device) {
    let object = device.create();
    let mut list = list::values(device.generation, &[(OURS, 1, vec![1; 16])]);
    list.truncate(list.len() - 9);
    raw(device, object, list).refused(ILLEGAL, 0x1A00);
    let head = device.generation.pick(4, 8);
    let short = list::values(device.generation, &[])[..head - 1].to_vec();
    raw(device, object, short).refused(ILLEGAL, 0x1A00);
    assert!(device.get(object, OURS, 1).is_empty());
}

fn a_list_of_the_wrong_type_is_refused(device: &mut Device) {
    let object = device.create();
    for kind in [0, 1, 2, 0x0F] {
        let mut list = list::values(device.generation, &[(OURS, 1, vec![1; 16])]);
        list[0] = kind;
        raw(device, object, list).refused(ILLEGAL, 0x2600);
    }
}

fn one(device: &Device, object: u64, page: u32, number: u32, length: u16, value: &[u8]) -> cdb::Request {
    let mut field = vec![0; 28];
    field[..4].copy_from_slice(&page.to_be_bytes());
    field[4..8].copy_from_slice(&number.to_be_bytes());
    field[8..10].copy_from_slice(&length.to_be_bytes());
    field[10..10 + value.len()].copy_from_slice(value);
    device.user(cdb::SET_ATTRIBUTES, object).patched(52, &field).patched(11, &[0x10])
}

fn one_attribute_is_set_from_the_cdb(device: &mut Device) {
    assert_eq!(device.generation, Generation::Osd2);
    let object = device.create();
    for value in [&b"x"[..], b"eighteen bytes lng"] {
        let request = one(device, object, OURS, 5, value.len() as u16, value);
        device.run(request).good();
        assert_eq!(device.get(object, OURS, 5), value);
    }
}

fn cdb_attribute_value_is_limited_to_18_bytes(device: &mut Device) {
    let object = device.create();
    let request = one(device, object, OURS, 5, 19, b"eighteen bytes lng");
    let answer = device.run(request).refused(ILLEGAL, 0x2400);
    if !device.secured() {
        answer.points_at(60);
    }
}

fn the_root_keeps_attributes_of_applications(device: &mut Device) {
    let request = device.request(cdb::SET_ATTRIBUTES).sets(0x9001_0000, 77, b"of the root");
    device.run(request).good();
    assert_eq!(device.of_root(0x9001_0000, 77), b"of the root");
    let request = device.request(cdb::SET_ATTRIBUTES).sets(0x9001_0000, 77, b"");
    device.run(request).good();
}

fn a_partition_keeps_attributes_of_applications(device: &mut Device) {
    let request = device.own(cdb::SET_ATTRIBUTES).sets(0x3001_0000, 77, b"of a partition");
    device.run(request).good();
    assert_eq!(device.of_partition(0x3001_0000, 77), b"of a partition");
}

fn unset_quota_of_wrong_length_is_refused(device: &mut Device) {
    for value in [&[0; 4][..], &[0; 9]] {
        let request = device.own(cdb::SET_ATTRIBUTES).sets(0x3000_0002, 0x1_0002, value);
        refuses_attribute(device.run(request));
    }
}

fn many_attributes_are_kept_apart(device: &mut Device) {
    let object = device.create();
    let mut request = device.user(cdb::SET_ATTRIBUTES, object);
    for at in 0..200_u32 {
        request = request.sets(OURS + at % 3, 1 + at, &at.to_be_bytes());
    }
    device.run(request).good();
    let names: Vec<(u32, u32)> = (0..200).map(|at| (OURS + at % 3, 1 + at)).collect();
    let request = device.user(cdb::GET_ATTRIBUTES, object).gets(&names).allocates(16_384);
    for (at, (id, value)) in device.run(request).good().entries().into_iter().enumerate() {
        assert_eq!((id, number(&value)), (names[at], at as u64));
    }
}

fn attributes_of_a_missing_object_are_refused(device: &mut Device) {
    let request = device.user(cdb::GET_ATTRIBUTES, 0x55_5555).gets(&[(1, 1)]);
    device.run(request).invalid(24);
    device.set(0x55_5555, OURS, 1, b"lost").invalid(24);
}
