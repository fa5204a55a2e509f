//! SET KEY, on the test's own partition (t10-osd 4.7, 4.8). Root and master keys are shared, and
//! not changed here.

use crate::cdb::{self, PARTITION};
use crate::device::{Device, GOOD, ILLEGAL, VerifiedReply};
use crate::iscsi::Connection;
use crate::seal::KeyPair;
use crate::suite::behaviours;

behaviours! { "Keys";
    Secured "t10-osd 4.8" a_working_key_is_set_and_signs;
    Secured "t10-osd 4.8" a_new_working_key_ends_the_old_one;
    Secured "t10-osd 4.8" lowest_seed_bit_is_ignored;
    Secured "t10-osd 4.7" new_partition_key_invalidates_working_keys;
    Secured "t10-osd 4.7" unset_working_key_is_refused;
    Secured "t10-osd 4.7" a_working_key_sets_no_key;
    Secured "t10-osd 3.5 P+5/7FFFh, 8000h" key_identifiers_are_reported;
    Secured "t10-osd 4.8" a_reserved_key_to_set_is_refused;
    Secured "t10-osd 4.8" a_key_version_belongs_to_working_keys_alone;
    Secured "security 2, retired partitions" recreated_partition_has_no_keys;
    Secured "security 3" keys_are_not_set_below_cmdrsp;
    Secured "t10-osd 4.7" partitions_have_different_keys;
    Open "security 3" nosec_sets_no_key;
}

const WORKING: u8 = 3;
const OF_PARTITION: u8 = 2;

/// Builds SET KEY as in the table of 1.4: version and identifier in place of an object id, the seed
/// from byte 32.
fn set_key(device: &Device, which: u8, version: u8, identifier: u8, seed: [u8; 20]) -> cdb::Request {
    let mut request = device.request(cdb::SET_KEY).at(PARTITION, device.partition, 0).specific(which);
    request.cdb[24] = version;
    request.cdb[25..32].fill(identifier);
    request.cdb[32..52].copy_from_slice(&seed);
    request
}

fn set_working(device: &mut Device, version: u8, seed: [u8; 20]) {
    let request = set_key(device, WORKING, version, seed[0], seed);
    device.run(request).good();
    let keys = device.keys.as_mut().unwrap();
    let parent = keys.partition(device.partition).generation;
    keys.set_working(device.partition, version, KeyPair::derive(&parent, &seed, &[]).authentication);
}

fn set_partition(device: &mut Device, seed: [u8; 20]) {
    let request = set_key(device, OF_PARTITION, 0, seed[0], seed);
    device.run(request).good();
    let keys = device.keys.as_mut().unwrap();
    let pair = KeyPair::derive(&keys.root.generation, &seed, &[]);
    keys.set_partition(device.partition, pair);
}

/// Reads an attribute of the object with this version of the working key.
fn look(device: &mut Device, object: u64, version: u8) -> VerifiedReply {
    let mut request = device.user(cdb::GET_ATTRIBUTES, object).gets(&[(1, 2)]);
    let slot = device.generation.pick(0, 1);
    request.capability_patches.push((1, vec![version << 4 | slot]));
    device.run(request)
}

fn a_key_version_belongs_to_working_keys_alone(device: &mut Device) {
    let object = device.create();
    let request = set_key(device, OF_PARTITION, 3, 9, [9; 20]);
    device.run(request).refused(ILLEGAL, 0x2400);
    assert_eq!(look(device, object, 0).status, GOOD, "the partition's keys are as they were");
}

/// Factory keys are derived from the id: they must not become valid again with it.
fn recreated_partition_has_no_keys(device: &mut Device) {
    let object = device.create();
    let partition = device.partition;
    let remove = device.own(cdb::REMOVE_PARTITION).specific(device.generation.pick(0, 1));
    if !device.osd2() {
        let first = device.user(cdb::REMOVE, object);
        device.run(first).good();
    }
    device.run(remove).good();
    let create = device.own(cdb::CREATE_PARTITION);
    device.run(create).good();
    let create = device.user(cdb::CREATE, 0);
    device.run(create).refused(ILLEGAL, 0x2400);
    set_partition(device, [3; 20]);
    set_working(device, 0, [4; 20]);
    assert_eq!(device.partition, partition);
    let object = device.create();
    assert_eq!(look(device, object, 0).status, GOOD);
}

fn a_working_key_is_set_and_signs(device: &mut Device) {
    let object = device.create();
    for version in [1, 7, 15] {
        set_working(device, version, [version + 0x40; 20]);
        look(device, object, version).good();
    }
    look(device, object, 0).good();
}

fn a_new_working_key_ends_the_old_one(device: &mut Device) {
    let object = device.create();
    let old = device.keys.clone();
    set_working(device, 0, [0x22; 20]);
    look(device, object, 0).good();
    let new = std::mem::replace(&mut device.keys, old);
    assert_ne!(look(device, object, 0).status, GOOD, "signed with the old one");
    device.keys = new;
    // The same credential on another session.
    device.connection = Connection::session(&device.connection.portal.clone());
    look(device, object, 0).good();
}

fn lowest_seed_bit_is_ignored(device: &mut Device) {
    let object = device.create();
    let mut seed = [0x31; 20];
    seed[19] = 0x30;
    set_working(device, 2, seed);
    look(device, object, 2).good();
}

fn new_partition_key_invalidates_working_keys(device: &mut Device) {
    let object = device.create();
    let old = device.keys.clone();
    set_partition(device, [0x51; 20]);
    let new = std::mem::replace(&mut device.keys, old);
    assert_ne!(look(device, object, 0).status, GOOD, "the factory's working key");
    device.keys = new;
    set_working(device, 0, [0x52; 20]);
    look(device, object, 0).good();
}

fn unset_working_key_is_refused(device: &mut Device) {
    let object = device.create();
    let answer = look(device, object, 9).refused(ILLEGAL, 0x2400);
    assert_eq!(answer.sense.unwrap().field, None, "nothing proven, nothing told");
}

fn a_working_key_sets_no_key(device: &mut Device) {
    let request = set_key(device, WORKING, 4, 4, [4; 20]);
    // Signed like a command on the partition, not like SET KEY.
    let shot = device.sign_as(request, crate::seal::SigningKey::Working(device.partition));
    assert_ne!(device.send(&shot).status, GOOD);
}

fn key_identifiers_are_reported(device: &mut Device) {
    assert!(device.of_partition(0x3000_0005, 0x8003).is_empty(), "never set");
    set_working(device, 3, [0x63; 20]);
    assert_eq!(device.of_partition(0x3000_0005, 0x8003), [0x63; 7]);
    set_partition(device, [0x64; 20]);
    set_working(device, 0, [0x65; 20]);
    assert_eq!(device.of_partition(0x3000_0005, 0x7FFF), [0x64; 7]);
    assert!(device.of_partition(0x3000_0005, 0x8003).is_empty(), "ended by the partition's new key");
}

fn a_reserved_key_to_set_is_refused(device: &mut Device) {
    let request = set_key(device, 0, 0, 1, [1; 20]);
    device.run(request).refused(ILLEGAL, 0x2400);
}

fn keys_are_not_set_below_cmdrsp(device: &mut Device) {
    let request = set_key(device, WORKING, 5, 5, [5; 20]);
    let method = device.method;
    device.method = crate::seal::Method::NoSec;
    let answer = device.run(request);
    device.method = method;
    answer.refused(ILLEGAL, 0x2400);
    assert!(device.of_partition(0x3000_0005, 0x8005).is_empty());
}

fn partitions_have_different_keys(device: &mut Device) {
    let object = device.create();
    let other = crate::runner::free_partition();
    let request = device.request(cdb::CREATE_PARTITION).at(PARTITION, other, 0);
    device.run(request).good();
    set_working(device, 0, [0x71; 20]);
    look(device, object, 0).good();
    // The other partition's keys are unchanged.
    let request = device.request(cdb::LIST).at(PARTITION, other, 0).fetches(64);
    device.run(request).good();
    let request = device.request(cdb::REMOVE_PARTITION).at(PARTITION, other, 0);
    device.run(request).good();
}

fn nosec_sets_no_key(device: &mut Device) {
    let request = set_key(device, WORKING, 5, 5, [5; 20]);
    device.run(request).refused(ILLEGAL, 0x2400);
}
