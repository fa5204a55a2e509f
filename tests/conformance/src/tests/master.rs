//! SET MASTER KEY and SET KEY of the root (t10-osd 4.7 to 4.9). Permanent key changes run on a
//! separate device.

use crate::cdb::{self, PARTITION, ROOT};
use crate::device::{Device, GOOD, ILLEGAL, VerifiedReply, number};
use crate::dh;
use crate::iscsi::Connection;
use crate::seal::KeyPair;
use crate::suite::behaviours;

behaviours! { "Master and root keys";
    Secured "t10-osd 4.9" a_seed_exchange_answers_with_the_devices_value;
    Secured "t10-osd 4.9" an_unknown_group_is_refused;
    Secured "t10-osd 4.9" values_that_give_the_secret_away_are_refused;
    Secured "t10-osd 4.9" a_value_of_a_wrong_length_is_refused;
    Secured "t10-osd 4.9, 5.3 2C00" one_exchange_at_a_time;
    Secured "t10-osd 4.9, 5.3 2C00" master_key_change_requires_an_exchange;
    Secured "t10-osd 3.5 R+5/80000010h" dh_groups_are_reported;
    Alone "t10-osd 4.9" new_master_key_invalidates_all_lower_keys;
    Alone "t10-osd 4.9" a_change_with_other_values_changes_nothing;
    Alone "t10-osd 4.7" a_new_root_key_ends_every_key_below;
}

/// DH GROUP: the 2048-bit group of RFC 3526.
const GROUP: u8 = 14;

fn master(device: &Device, step: u8, group: u8, data: &[u8], allocation: usize) -> cdb::Request {
    let mut request = device.request(cdb::SET_MASTER_KEY).at(ROOT, 0, 0).specific(step);
    request.cdb[24] = group;
    request.cdb[25..32].fill(0x4D);
    request.cdb[32..36].copy_from_slice(&(data.len() as u32).to_be_bytes());
    request.cdb[36..40].copy_from_slice(&(allocation as u32).to_be_bytes());
    request.data = data.to_vec();
    request.data_in = allocation;
    request
}

fn exchange(device: &mut Device, group: u8, value: &[u8]) -> VerifiedReply {
    let request = master(device, 0, group, value, 4 + dh::BYTES);
    device.run(request)
}

/// Starts an exchange; retries while that of a just closed session is ending.
fn begin(device: &mut Device, value: &[u8]) -> VerifiedReply {
    for _ in 0..100 {
        let answer = exchange(device, GROUP, value);
        if answer.sense.as_ref().is_none_or(|sense| sense.code != 0x2C00) {
            return answer;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("an exchange of a session that is gone does not end");
}

/// Returns the device's value from the answer to a seed exchange.
fn value(answer: &VerifiedReply) -> Vec<u8> {
    let length = number(&answer.data[..4]) as usize;
    answer.data[4..4 + length].to_vec()
}

/// Ends a running exchange, by ending its nexus.
fn leave(device: &mut Device) {
    device.connection = Connection::session(&device.connection.portal.clone());
}

fn exponent() -> Vec<u8> {
    let mut bytes = crate::seal::nonce(crate::seal::now_ms()).to_vec();
    bytes.resize(32, 0x6B);
    bytes
}

fn a_seed_exchange_answers_with_the_devices_value(device: &mut Device) {
    let mut values = Vec::new();
    for _ in 0..2 {
        let answer = begin(device, &dh::public(&exponent())).good();
        values.push(value(&answer));
        leave(device);
    }
    assert!(values.iter().all(|value| value.len() == dh::BYTES));
    assert_ne!(values[0], values[1], "drawn anew");
    assert!(values[0] < dh::prime() && values[0] > dh::small(1));
}

fn an_unknown_group_is_refused(device: &mut Device) {
    exchange(device, 0x77, &dh::public(&exponent())).invalid(24);
}

fn values_that_give_the_secret_away_are_refused(device: &mut Device) {
    let mut less = dh::prime();
    less[dh::BYTES - 1] -= 1;
    for bad in [dh::small(0), dh::small(1), less, dh::prime()] {
        begin(device, &bad).refused(ILLEGAL, 0x2600);
    }
}

fn a_value_of_a_wrong_length_is_refused(device: &mut Device) {
    begin(device, &dh::public(&exponent())[1..]).refused(ILLEGAL, 0x1A00);
}

fn one_exchange_at_a_time(device: &mut Device) {
    let value = dh::public(&exponent());
    begin(device, &value).good();
    exchange(device, GROUP, &value).refused(ILLEGAL, 0x2C00);
    leave(device);
    begin(device, &value).good();
    leave(device);
}

/// Encodes both values, each after its length.
fn both(client: &[u8], device: &[u8]) -> Vec<u8> {
    let one = |value: &[u8]| [&(value.len() as u32).to_be_bytes()[..], value].concat();
    [one(client), one(device)].concat()
}

fn master_key_change_requires_an_exchange(device: &mut Device) {
    let request = master(device, 1, GROUP, &both(&dh::small(2), &dh::small(3)), 0);
    device.run(request).refused(ILLEGAL, 0x2C00);
}

fn dh_groups_are_reported(device: &mut Device) {
    let codes: Vec<Vec<u8>> = (0..16).map(|slot| device.of_root(0x9000_0005, 0x8000_0010 + slot)).collect();
    assert!(codes.iter().all(|code| code.len() <= 1));
    assert!(codes.contains(&vec![GROUP]), "{codes:02x?}");
}

fn set_key(device: &mut Device, which: u8, partition: u64, seed: [u8; 20]) {
    let kind = if partition == 0 { ROOT } else { PARTITION };
    let mut request = device.request(cdb::SET_KEY).at(kind, partition, 0).specific(which);
    request.cdb[24] = 0;
    request.cdb[25..32].fill(seed[0]);
    request.cdb[32..52].copy_from_slice(&seed);
    device.run(request).good();
}

/// Sets root, partition and working keys.
fn set_below(device: &mut Device) {
    let root = [0x21; 20];
    set_key(device, 1, 0, root);
    let keys = device.keys.as_mut().unwrap();
    keys.root = KeyPair::derive(&keys.master.generation, &root, &[]);
    for partition in [0, device.partition] {
        let (own, working) = ([0x22; 20], [0x23; 20]);
        set_key(device, 2, partition, own);
        let keys = device.keys.as_mut().unwrap();
        let pair = KeyPair::derive(&keys.root.generation, &own, &[]);
        keys.set_partition(partition, pair.clone());
        set_key(device, 3, partition, working);
        let key = KeyPair::derive(&pair.generation, &working, &[]).authentication;
        device.keys.as_mut().unwrap().set_working(partition, 0, key);
    }
}

fn is_locked_out(device: &mut Device) -> bool {
    let request = device.own(cdb::LIST).fetches(64);
    device.run(request).status != GOOD
}

fn new_master_key_invalidates_all_lower_keys(device: &mut Device) {
    let object = device.object(b"kept");
    let secret = exponent();
    let ours = dh::public(&secret);
    let theirs = value(&begin(device, &ours).good());
    device.holds(object, b"kept");
    let old = device.keys.clone().unwrap();
    let pair = KeyPair::of_seed(&old.master.generation, &dh::power(&theirs, &secret), &old.system_id);
    device.keys.as_mut().unwrap().master = pair;
    let request = master(device, 1, GROUP, &both(&ours, &theirs), 0);
    device.run(request).good();
    assert!(is_locked_out(device), "every key below is void");
    set_below(device);
    device.holds(object, b"kept");
    assert_eq!(device.of_root(0x9000_0005, 0x7FFD), [0x4D; 7], "the new key's identifier");
}

fn a_change_with_other_values_changes_nothing(device: &mut Device) {
    let object = device.object(b"kept");
    let secret = exponent();
    let ours = dh::public(&secret);
    let theirs = value(&begin(device, &ours).good());
    let old = device.keys.clone().unwrap();
    let pair = KeyPair::of_seed(&old.master.generation, &dh::power(&theirs, &secret), &old.system_id);
    device.keys.as_mut().unwrap().master = pair;
    let mut changed = theirs;
    changed[9] ^= 1;
    let request = master(device, 1, GROUP, &both(&ours, &changed), 0);
    device.run(request).refused(ILLEGAL, 0x2600);
    device.keys = Some(old);
    device.holds(object, b"kept");
}

fn a_new_root_key_ends_every_key_below(device: &mut Device) {
    let object = device.object(b"kept");
    let factory = device.keys.clone();
    set_below(device);
    device.holds(object, b"kept");
    let new = std::mem::replace(&mut device.keys, factory);
    assert!(is_locked_out(device), "the factory's keys are void");
    device.keys = new;
    assert_eq!(device.of_root(0x9000_0005, 0x7FFE), [0x21; 7]);
}
