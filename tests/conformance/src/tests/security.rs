//! Refusals of a secured device (docs/standards/security.md). The whole matrix is
//! docs/standards/refusals.json.

use crate::cdb::{self, Request};
use crate::device::{CHECK, Device, GOOD, ILLEGAL, INVALID_FIELD, SentCommand};
use crate::runner::skip;
use crate::seal::{self, Method};
use crate::sense::Sense;
use crate::suite::behaviours;

behaviours! { "Security";
    Secured "t10-osd 4.5" a_command_without_a_capability_is_refused;
    Secured "t10-osd 4.5" a_method_below_the_floor_is_refused;
    Secured "t10-osd 4.5" a_capability_that_was_changed_is_refused;
    Secured "t10-osd 4.5" a_cdb_that_was_changed_is_refused;
    Secured "t10-osd 5.3 260F" tampered_data_is_refused_and_not_written;
    Secured "t10-osd 5.3 2406" a_command_sent_again_is_refused;
    Secured "t10-osd 5.3 2406" replay_on_another_session_is_refused;
    Secured "t10-osd 5.3 2407" old_command_is_refused_with_device_time;
    Secured "t10-osd 4.1" an_expired_capability_is_refused;
    Secured "t10-osd 4.1" a_capability_for_another_object_is_refused;
    Secured "t10-osd 4.1" a_capability_for_another_partition_is_refused;
    Secured "t10-osd 4.2" a_missing_permission_is_refused_at_the_permissions;
    Secured "t10-osd 4.1" created_time_binds_a_capability_to_one_object;
    Secured "t10-osd 4.10" a_changed_policy_access_tag_revokes;
    Secured "t10-osd 4.1" a_range_in_a_capability_binds;
    Secured "t10-osd 4.6" every_reply_under_cmdrsp_is_sealed;
    Secured "security 3" unauthenticated_refusal_reveals_nothing;
    Secured "t10-osd 5.3 2405" a_frozen_key_is_refused;
    Secured "security 3" floors_cannot_be_lowered;
    Secured "t10-osd 1.7" a_missing_data_out_check_value_is_refused;
    Secured "security 1" every_algorithm_slot_protects_data;
    Open "t10-osd T2" nosec_accepts_capabilities_of_open_osd;
    Open "t10-osd 4.2" nosec_still_asks_for_permissions;
}

fn sensed(device: &mut Device, shot: &SentCommand) -> Sense {
    let reply = device.connection.command(&shot.cdb, &shot.data_out, shot.data_in_max);
    assert_eq!(reply.status, CHECK, "refused");
    Sense::parse(&reply.sense)
}

/// Checks for 5/2400 without pointer, functions or check value: the answer to unauthenticated
/// clients.
fn bare(sense: &Sense) {
    let received = (sense.key, sense.code, sense.field, sense.osd.is_some(), sense.response_icv.is_some());
    assert_eq!(received, (ILLEGAL, INVALID_FIELD, None, false, false), "{sense:04x?}");
}

fn read(device: &mut Device) -> (u64, Request) {
    let object = device.object(b"guarded");
    (object, device.user(cdb::READ, object).fetches(7))
}

/// Returns the first byte of the request check value.
fn icv(device: &Device) -> usize {
    80 + device.generation.capability_len()
}

fn a_command_without_a_capability_is_refused(device: &mut Device) {
    let (_, request) = read(device);
    let mut shot = device.sign(request);
    let end = icv(device);
    shot.cdb[80..end].fill(0);
    bare(&sensed(device, &shot));
}

fn a_method_below_the_floor_is_refused(device: &mut Device) {
    let (_, request) = read(device);
    let method = device.method;
    device.method = Method::NoSec;
    let shot = device.sign(request);
    bare(&sensed(device, &shot));
    device.method = method;
}

fn a_capability_that_was_changed_is_refused(device: &mut Device) {
    let (_, request) = read(device);
    // Expiration time, audit, discriminator, a permission, a partition, an object.
    let object = device.generation.pick(75, 87);
    for at in [9, 12, 33, 49, object - 8, object] {
        let mut shot = device.sign(request.clone());
        shot.cdb[80 + at] ^= 0x40;
        bare(&sensed(device, &shot));
    }
}

fn a_cdb_that_was_changed_is_refused(device: &mut Device) {
    let (_, request) = read(device);
    let nonce = icv(device) + device.generation.icv_len();
    for at in [1, 10, 31, 43, 51, icv(device), nonce + 11] {
        let mut shot = device.sign(request.clone());
        shot.cdb[at] ^= if at == 10 { 0x10 } else { 1 };
        let sense = sensed(device, &shot);
        assert_eq!((sense.key, sense.code), (ILLEGAL, INVALID_FIELD), "byte {at}");
        assert!(sense.response_icv.is_none());
    }
}

fn tampered_data_is_refused_and_not_written(device: &mut Device) {
    let object = device.object(b"untouched");
    let request = device.user(cdb::WRITE, object).sends(b"TOUCHED__");
    let mut shot = device.sign(request);
    shot.data_out[3] ^= 1;
    let sense = sensed(device, &shot);
    assert_eq!((sense.key, sense.code), (ILLEGAL, 0x260F));
    device.holds(object, b"untouched");
}

fn a_command_sent_again_is_refused(device: &mut Device) {
    let object = device.object(b"abc");
    let request = device.user(cdb::APPEND, object).sends(b"def");
    let shot = device.sign(request);
    assert_eq!(device.send(&shot).status, GOOD);
    device.send(&shot).refused(ILLEGAL, 0x2406);
    device.holds(object, b"abcdef");
}

fn replay_on_another_session_is_refused(device: &mut Device) {
    let object = device.object(b"abc");
    let request = device.user(cdb::APPEND, object).sends(b"def");
    let shot = device.sign(request);
    assert_eq!(device.send(&shot).status, GOOD);
    device.connection = crate::iscsi::Connection::session(&device.connection.portal.clone());
    device.send(&shot).refused(ILLEGAL, 0x2406);
    device.holds(object, b"abcdef");
}

fn old_command_is_refused_with_device_time(device: &mut Device) {
    let (_, request) = read(device);
    for off in [-3_600_000_i64, 3_600_000] {
        device.shift_clock(off);
        let shot = device.sign(request.clone());
        device.shift_clock(0);
        let answer = device.send(&shot).refused(ILLEGAL, 0x2407);
        let clock = answer.sense.unwrap().information.expect("the device's clock");
        assert!(clock.abs_diff(seal::now_ms()) < 10_000, "{clock}");
    }
}

fn an_expired_capability_is_refused(device: &mut Device) {
    let (_, mut request) = read(device);
    request.capability_patches.push((4, (seal::now_ms() - 60_000).to_be_bytes()[2..].to_vec()));
    device.run(request).invalid(84);
}

fn a_capability_for_another_object_is_refused(device: &mut Device) {
    let (object, mut request) = read(device);
    let at = device.generation.pick(68, 80);
    request.capability_patches.push((at, (object + 1).to_be_bytes().to_vec()));
    device.run(request).invalid(80 + at);
}

fn a_capability_for_another_partition_is_refused(device: &mut Device) {
    let (_, mut request) = read(device);
    let at = device.generation.pick(60, 72);
    request.capability_patches.push((at, (device.partition + 1).to_be_bytes().to_vec()));
    device.run(request).invalid(80 + at);
}

fn a_missing_permission_is_refused_at_the_permissions(device: &mut Device) {
    let (_, mut request) = read(device);
    request.capability_patches.push((49, vec![0x7F, 0xE0]));
    device.run(request).invalid(129);
}

fn created_time_binds_a_capability_to_one_object(device: &mut Device) {
    let object = device.object(b"first life");
    let created = device.get(object, 3, 1);
    let bound = |device: &mut Device| {
        let mut request = device.user(cdb::READ, object).fetches(5);
        request.capability_patches.push((42, created.clone()));
        device.run(request)
    };
    bound(device).good();
    let request = device.user(cdb::REMOVE, object);
    device.run(request).good();
    let request = device.user(cdb::CREATE_AND_WRITE, object).sends(b"second life");
    device.run(request).good();
    bound(device).invalid(122);
}

fn a_changed_policy_access_tag_revokes(device: &mut Device) {
    let object = device.object(b"revocable");
    device.set(object, 5, 0x4000_0001, &7_u32.to_be_bytes()).good();
    let at = device.generation.pick(56, 60);
    let tagged = |device: &mut Device| {
        let mut request = device.user(cdb::READ, object).fetches(9);
        request.capability_patches.push((at, 7_u32.to_be_bytes().to_vec()));
        device.run(request)
    };
    tagged(device).good();
    device.set(object, 5, 0x4000_0001, &8_u32.to_be_bytes()).good();
    tagged(device).invalid(80 + at);
}

fn a_range_in_a_capability_binds(device: &mut Device) {
    if !device.osd2() {
        return;
    }
    let object = device.object(b"0123456789");
    let ranged = |device: &mut Device, start: u64, length: usize| {
        let mut request = device.user(cdb::READ, object).fetches(length).start(start);
        let range = [5_u64.to_be_bytes(), 2_u64.to_be_bytes()].concat();
        request.capability_patches.push((88, range));
        device.run(request)
    };
    assert_eq!(ranged(device, 2, 5).good().data, b"23456");
    ranged(device, 1, 5).invalid(168);
    ranged(device, 3, 5).invalid(168);
}

fn every_reply_under_cmdrsp_is_sealed(device: &mut Device) {
    device.method = Method::CmdRsp;
    let (object, request) = read(device);
    // `send` fails the test if a check value is missing or wrong.
    assert_eq!(device.run(request).good().data, b"guarded");
    let answer = device.read(object, 100, 5).refused(ILLEGAL, INVALID_FIELD);
    assert!(answer.sense.unwrap().response_icv.is_some());
}

fn unauthenticated_refusal_reveals_nothing(device: &mut Device) {
    // An existing object, a missing one, a missing partition: no difference.
    let (object, _) = read(device);
    let mut received = Vec::new();
    for (partition, object) in
        [(device.partition, object), (device.partition, 0x55_5555), (device.partition + 9, 1)]
    {
        let request = device.request(cdb::READ).user(partition, object).fetches(7);
        let mut shot = device.sign(request);
        let at = icv(device);
        shot.cdb[at] ^= 1;
        let reply = device.connection.command(&shot.cdb, &shot.data_out, shot.data_in_max);
        received.push((reply.status, reply.sense, reply.data_in));
    }
    assert!(received.iter().all(|one| *one == received[0]), "{received:02x?}");
}

fn a_frozen_key_is_refused(device: &mut Device) {
    let (_, request) = read(device);
    let freeze = device.own(cdb::SET_ATTRIBUTES).sets(0x3000_0005, 5, &[0, 1]);
    device.run(freeze).good();
    device.run(request).refused(ILLEGAL, 0x2405);
}

fn floors_cannot_be_lowered(device: &mut Device) {
    let raise = device.own(cdb::SET_ATTRIBUTES).sets(0x3000_0005, 1, &[3]);
    device.run(raise).good();
    for lower in [0, 1, 2] {
        let request = device.own(cdb::SET_ATTRIBUTES).sets(0x3000_0005, 1, &[lower]);
        assert_ne!(device.run(request).status, GOOD, "lowered to {lower}");
    }
    let (_, request) = read(device);
    device.method = Method::CmdRsp;
    let shot = device.sign(request);
    bare(&sensed(device, &shot));
    device.method = Method::AllData;
}

fn a_missing_data_out_check_value_is_refused(device: &mut Device) {
    let object = device.object(b"untouched");
    let request = device.user(cdb::WRITE, object).sends(b"TOUCHED__");
    let mut shot = device.sign(request);
    shot.data_out.truncate(9);
    let sense = sensed(device, &shot);
    assert_eq!((sense.key, sense.code), (ILLEGAL, INVALID_FIELD));
    assert_eq!(sense.field, Some((true, device.generation.pick(196, 232))));
    device.holds(object, b"untouched");
}

/// Ranges of every kind, out and in; data-out that was changed is refused.
fn every_algorithm_slot_protects_data(device: &mut Device) {
    let slots: &[u8] = device.generation.pick(&[0, 3][..], &[0, 1, 2, 3]);
    let content: Vec<u8> = (0..50_000_u32).map(|at| (at * 7 + at / 251) as u8).collect();
    for slot in slots {
        device.slot = Some(*slot);
        let object = device.object(&content);
        for (start, length) in [(0, 50_000), (16_384, 16_384), (5000, 12_000), (32_768, 17_232), (49_999, 1)]
        {
            device.write(object, start as u64, &content[start..start + length]);
            let request = device.user(cdb::READ, object).start(start as u64).fetches(length);
            assert_eq!(device.run(request).good().data, &content[start..start + length], "slot {slot}");
        }
        let request = device.user(cdb::WRITE, object).start(8192).sends(&content[..20_000]);
        let mut shot = device.sign(request);
        shot.data_out[19_999] ^= 1;
        let sense = sensed(device, &shot);
        assert_eq!((sense.key, sense.code), (ILLEGAL, 0x260F), "slot {slot}");
        device.holds(object, &content);
    }
    device.slot = None;
}

fn nosec_accepts_capabilities_of_open_osd(device: &mut Device) {
    // Format 1 in an OSD-2 CDB, no object id, and OSD-1's permission bits only.
    let object = device.object(b"for anybody");
    let mut request = device.user(cdb::READ, object).fetches(11);
    request.capability_patches.push((0, vec![1]));
    request.capability_patches.push((49, vec![0xFF, 0xE0]));
    request.capability_patches.push((80, vec![0; 24]));
    assert_eq!(device.run(request).good().data, b"for anybody");
}

fn nosec_still_asks_for_permissions(device: &mut Device) {
    let object = device.object(b"not for writing");
    let mut request = device.user(cdb::WRITE, object).sends(b"x");
    request.capability_patches.push((49, vec![0xB0, 0]));
    let answer = device.run(request);
    if answer.status == GOOD {
        skip("the device lets NOSEC do everything");
    }
    answer.invalid(129);
}
