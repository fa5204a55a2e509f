//! OPTIONS and TIMESTAMPS CONTROL of the CDB: isolation methods, FUA, DPO, immediate tracking.

use crate::plain::{Plain, create, get_attributes, triple};
use crate::support::{PID, user};
use sealstone_osd::cdb::{Extent, Isolation, List, Timestamps};
use sealstone_osd::{Command, Generation, ObjectId};

const OID: u64 = 0x10000;

fn write(length: u64) -> Command {
    Command::Write(Extent { object: user(OID), start: 0, length })
}

#[test]
fn only_reported_isolation_methods_are_accepted() {
    let plain = Plain::with_object(Generation::Osd2);
    let supported = plain.get(ObjectId::ROOT, 0x9000_0001, 0x111);
    assert_eq!(supported.len(), 32);
    assert_eq!(supported[1..], [0; 31]);
    for code in 0..8u8 {
        let mut wire = plain.cdb(write(3)).encode().unwrap().to_vec();
        wire[10] = wire[10] & !7 | code;
        let reply = plain.wire(&wire, b"abc");
        if code == 0 || supported[0] & 0x80 >> code != 0 {
            assert!(reply.sense.is_empty(), "{code}");
        } else {
            let sense = crate::plain::sense(&reply);
            assert_eq!((triple(&sense), sense.field.unwrap().byte), ((5, 0x2400), 10), "{code}");
        }
    }
}

#[test]
fn default_isolation_method_is_settable() {
    let plain = Plain::with_object(Generation::Osd2);
    assert_eq!(plain.get(ObjectId::ROOT, 0x9000_0001, 0x110), [4]);
    for method in [1u8, 2, 4, 5] {
        plain.set(ObjectId::ROOT, 0x9000_0001, 0x110, &[method]);
        assert_eq!(plain.get(ObjectId::ROOT, 0x9000_0001, 0x110), [method]);
        plain.good(&plain.cdb(write(3)), b"abc");
    }
    for wrong in [&[0u8][..], &[3], &[6], &[7], &[4, 4]] {
        let (cdb, out) = plain.setting(ObjectId::ROOT, 0x9000_0001, 0x110, wrong);
        assert_eq!(triple(&plain.sense(&cdb, &out)), (5, 0x2600), "{wrong:?}");
    }
    plain.set(ObjectId::ROOT, 0x9000_0001, 0x110, &[]);
    assert_eq!(plain.get(ObjectId::ROOT, 0x9000_0001, 0x110), [4]);
}

/// A list with STRICT shows all its objects at one moment: two attributes that are set alternately
/// differ by at most one.
#[test]
fn a_strict_list_sees_one_moment() {
    let plain = Plain::with_object(Generation::Osd2);
    plain.good(&plain.cdb(create(0x10001, 1)), &[]);
    let rounds = 150u64;
    std::thread::scope(|scope| {
        let writer = &plain;
        scope.spawn(move || {
            for round in 1..=rounds {
                // First one, then the other: at any moment the first is ahead by at most one.
                for object in [OID, OID + 1] {
                    writer.set(user(object), 0x1_0000, 1, &round.to_be_bytes());
                }
            }
        });
        loop {
            let list = List {
                object: ObjectId::of_partition(PID),
                list_id: 0,
                allocation: 4096,
                initial: 0,
                with_attributes: true,
            };
            let id = sealstone_osd::AttributeId::new(0x1_0000, 1);
            let (mut cdb, out) = plain.with_lists(Command::List(list), &[], &[], &[id]);
            cdb.options.isolation = Isolation::Strict;
            let reply = plain.good(&cdb, &out);
            let value = |at: usize| {
                let entry = 24 + at * 40;
                let length = usize::from(reply.data_in[entry + 16 + 15]);
                let value = &reply.data_in[entry + 32..entry + 32 + length];
                value.iter().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte))
            };
            if reply.data_in[24 + 31] == 0
                || reply.data_in.len() < 24 + 80
                || reply.data_in[24 + 40 + 31] == 0
            {
                continue;
            }
            let (first, second) = (value(0), value(1));
            assert!(first == second || first == second + 1, "{first} {second}");
            if second == rounds {
                break;
            }
        }
    });
}

#[test]
fn fua_and_dpo_have_no_visible_effect() {
    let plain = Plain::with_object(Generation::Osd2);
    for (fua, dpo) in [(true, false), (false, true), (true, true)] {
        let mut cdb = plain.cdb(write(3));
        (cdb.options.fua, cdb.options.dpo) = (fua, dpo);
        plain.good(&cdb, b"abc");
        let mut cdb = plain.cdb(Command::Read(Extent { object: user(OID), start: 0, length: 3 }));
        (cdb.options.fua, cdb.options.dpo) = (fua, dpo);
        assert_eq!(plain.good(&cdb, &[]).data_in[..], b"abc"[..]);
    }
}

#[test]
fn vendor_timestamps_control_is_refused() {
    let plain = Plain::with_object(Generation::Osd2);
    let mut cdb = plain.cdb(write(3));
    cdb.timestamps = Timestamps::Vendor(0xE0);
    let sense = plain.sense(&cdb, b"abc");
    assert_eq!((triple(&sense), sense.field.unwrap().byte), ((5, 0x2400), 12));
}

#[test]
fn immediate_tracking_is_refused_if_undefined() {
    let plain = Plain::with_object(Generation::Osd2);
    for command in [write(3), get_attributes(user(OID)), create(0, 1)] {
        let mut wire = plain.cdb(command).encode().unwrap().to_vec();
        wire[11] |= 0x80;
        let sense = crate::plain::sense(&plain.wire(&wire, b"abc"));
        assert_eq!((triple(&sense), sense.field.unwrap().byte), ((5, 0x2400), 11), "{command:?}");
    }
    // OSD-1 has no such bit.
    let plain = Plain { generation: Generation::Osd1, ..plain };
    let mut wire = plain.cdb(write(3)).encode().unwrap().to_vec();
    wire[11] |= 0x80;
    assert!(plain.wire(&wire, b"abc").sense.is_empty());
}
