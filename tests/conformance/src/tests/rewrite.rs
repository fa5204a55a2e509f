//! REWRITE, a command of this project: read, compare and write at the device in one step
//! (docs/standards/osd.md, REWRITE).

use crate::cdb::{self, segment};
use crate::device::{Device, ILLEGAL, VerifiedReply};
use crate::suite::behaviours;
use sha2::{Digest as _, Sha256};

behaviours! { "REWRITE";
    Osd2 "osd: REWRITE" bytes_are_replaced_combined_and_filled;
    Osd2 "osd: REWRITE" numbers_are_added;
    Osd2 "osd: REWRITE" bytes_are_copied_within_the_range;
    Osd2 "osd: REWRITE RETURN_OLD" the_old_bytes_come_back;
    Osd2 "osd: REWRITE RETURN_DIGEST" digest_of_old_bytes_is_returned;
    Osd2 "osd: REWRITE" fulfilled_condition_permits_rewrite;
    Osd2 "osd: REWRITE" a_condition_that_fails_changes_nothing;
    Osd2 "osd: REWRITE" version_is_compared_and_set_atomically;
    Osd2 "osd: REWRITE EXTEND_OK" extension_needs_extend_ok;
    Osd2 "osd: REWRITE CONDITIONAL" a_condition_without_its_flag_is_refused;
    Osd2 "osd: REWRITE" an_operation_outside_the_range_is_refused;
}

const RETURN_OLD: u8 = 1;
const CONDITIONAL: u8 = 2;
const EXTEND_OK: u8 = 4;
const RETURN_DIGEST: u8 = 8;

const REPLACE: u8 = 0;
const XOR: u8 = 1;
const OR: u8 = 3;
const ADD: u8 = 4;
const FILL: u8 = 5;
const COPY: u8 = 6;
const COMPARE: u8 = 7;
const COMPARE_ATTRIBUTE: u8 = 9;

/// An operation: code, width, length, offset, auxiliary, operand.
type RewriteStep<'a> = (u8, u8, u32, u64, u64, &'a [u8]);

fn rewrite(
    device: &Device,
    object: u64,
    start: u64,
    length: u32,
    flags: u8,
    steps: &[RewriteStep<'_>],
) -> cdb::Request {
    let (mut operations, mut operands) = (Vec::new(), Vec::new());
    for (what, width, bytes, at, auxiliary, operand) in steps {
        operations.extend_from_slice(&[*what, *width, 0, 0]);
        operations.extend_from_slice(&bytes.to_be_bytes());
        for number in [*at, *auxiliary, operands.len() as u64] {
            operations.extend_from_slice(&number.to_be_bytes());
        }
        operands.extend_from_slice(operand);
    }
    let mut request = device.user(cdb::REWRITE, object).start(start).specific(flags);
    request.cdb[32..36].copy_from_slice(&(operands.len() as u32).to_be_bytes());
    request.cdb[36..40].copy_from_slice(&length.to_be_bytes());
    request.data = operands;
    request.data_in = match flags & (RETURN_OLD | RETURN_DIGEST) {
        0 => 0,
        RETURN_OLD => length as usize,
        _ => 32,
    };
    // READ permission too, and the extension bit for conditions.
    request.permissions = 0x8000;
    request.capability_patches.push((53, vec![0x02]));
    request.continues(segment(cdb::REWRITE, &[(0xFF10, operations)]))
}

fn run(device: &mut Device, object: u64, length: u32, flags: u8, steps: &[RewriteStep<'_>]) -> VerifiedReply {
    let request = rewrite(device, object, 0, length, flags, steps);
    device.run(request)
}

fn bytes_are_replaced_combined_and_filled(device: &mut Device) {
    let object = device.object(b"abcdefghij");
    let steps: &[RewriteStep<'_>] = &[
        (REPLACE, 0, 2, 0, 0, b"AB"),
        (XOR, 0, 2, 2, 0, &[0x20, 0x20]),
        (OR, 0, 1, 4, 0, &[0x02]),
        (FILL, 1, 3, 7, 0, b"-"),
    ];
    run(device, object, 10, 0, steps).good();
    device.holds(object, b"ABCDgfg---");
}

fn numbers_are_added(device: &mut Device) {
    let object = device.object(&[0xFF, 0x01, 0x10, 0]);
    run(device, object, 4, 0, &[(ADD, 2, 4, 0, 0, &[1, 0, 5, 0])]).good();
    // Little-endian: 01FFh + 1, 0010h + 5.
    device.holds(object, &[0x00, 0x02, 0x15, 0]);
}

fn bytes_are_copied_within_the_range(device: &mut Device) {
    let object = device.object(b"abcdefghij");
    run(device, object, 10, 0, &[(COPY, 0, 4, 2, 0, b"")]).good();
    device.holds(object, b"ababcdghij");
}

fn the_old_bytes_come_back(device: &mut Device) {
    let object = device.object(b"abcdefghij");
    let request = rewrite(device, object, 2, 5, RETURN_OLD, &[(REPLACE, 0, 1, 0, 0, b"X")]);
    assert_eq!(device.run(request).good().data, b"cdefg");
    device.holds(object, b"abXdefghij");
}

fn digest_of_old_bytes_is_returned(device: &mut Device) {
    let object = device.object(b"abcdefghij");
    let answer = run(device, object, 10, RETURN_DIGEST, &[(REPLACE, 0, 1, 0, 0, b"X")]).good();
    assert_eq!(answer.data, Sha256::digest(b"abcdefghij").to_vec());
}

fn fulfilled_condition_permits_rewrite(device: &mut Device) {
    let object = device.object(b"abcdefghij");
    let steps: &[RewriteStep<'_>] = &[(COMPARE, 0, 3, 0, 0, b"abc"), (REPLACE, 0, 3, 0, 0, b"ABC")];
    run(device, object, 10, CONDITIONAL, steps).good();
    device.holds(object, b"ABCdefghij");
}

fn a_condition_that_fails_changes_nothing(device: &mut Device) {
    let object = device.object(b"abcdefghij");
    let steps: &[RewriteStep<'_>] = &[(REPLACE, 0, 3, 5, 0, b"XYZ"), (COMPARE, 0, 3, 0, 0, b"abd")];
    let answer = run(device, object, 10, CONDITIONAL, steps).refused(0x0E, 0x1D00);
    assert_eq!(answer.sense.unwrap().information, Some(2), "the byte that differs");
    device.holds(object, b"abcdefghij");
}

fn version_is_compared_and_set_atomically(device: &mut Device) {
    let object = device.object(b"abcdefghij");
    device.set(object, 0x1_0000, 1, b"v1").good();
    let auxiliary = 0x1_0000_u64 << 32 | 1;
    let write = |device: &mut Device, old: &[u8], new: &[u8]| {
        let steps: &[RewriteStep<'_>] =
            &[(COMPARE_ATTRIBUTE, 0, old.len() as u32, 0, auxiliary, old), (REPLACE, 0, 2, 0, 0, new)];
        let request = rewrite(device, object, 0, 10, CONDITIONAL, steps).sets(0x1_0000, 1, new);
        device.run(request)
    };
    write(device, b"v1", b"v2").good();
    device.holds(object, b"v2cdefghij");
    write(device, b"v1", b"v3").refused(0x0E, 0x1D00);
    device.holds(object, b"v2cdefghij");
    assert_eq!(device.get(object, 0x1_0000, 1), b"v2");
}

fn extension_needs_extend_ok(device: &mut Device) {
    let object = device.object(b"abc");
    let steps: &[RewriteStep<'_>] = &[(REPLACE, 0, 3, 3, 0, b"def")];
    run(device, object, 6, 0, steps).invalid(40);
    device.holds(object, b"abc");
    run(device, object, 6, EXTEND_OK, steps).good();
    device.holds(object, b"abcdef");
}

fn a_condition_without_its_flag_is_refused(device: &mut Device) {
    let object = device.object(b"abc");
    run(device, object, 3, 0, &[(COMPARE, 0, 3, 0, 0, b"abc")]).refused(ILLEGAL, 0x2400);
}

fn an_operation_outside_the_range_is_refused(device: &mut Device) {
    let object = device.object(b"abcdefghij");
    run(device, object, 4, 0, &[(REPLACE, 0, 3, 2, 0, b"XYZ")]).refused(ILLEGAL, 0x2400);
    device.holds(object, b"abcdefghij");
}
