//! Replays what Linux 4.14 with open-osd and exofs sent to another target.

use std::collections::HashMap;

use crate::cdb::Generation;
use crate::device::{Device, GOOD};
use crate::iscsi::Connection;
use crate::list;
use crate::suite::behaviours;

const CAPTURE: &str = include_str!("../../../../device/osd-device/tests/data/exofs-linux-4.14.txt");

behaviours! { "A real client";
    Whole "t10-osd 6.3, T1, T2, T27" captured_linux_session_gets_the_same_answers;
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Formats, mounts, writes and reads files, unmounts. Compares every status, every byte read, every
/// attribute of every object. For root and partition, which differ between devices, compares which
/// attributes arrive in which order.
fn captured_linux_session_gets_the_same_answers(device: &mut Device) {
    let mut connection = Connection::open(&device.connection.portal.clone());
    connection.log_in("exofs", &[]);
    let mut osd = 0;
    for (number, block) in CAPTURE.split("\n\n").filter(|block| !block.trim().is_empty()).enumerate() {
        let field: HashMap<&str, &str> =
            block.lines().map(|line| line.split_once(' ').unwrap_or((line, ""))).collect();
        let (cdb, out, data_in) = (unhex(field["cdb"]), unhex(field["out"]), unhex(field["in"]));
        let read = field["max"].parse::<usize>().unwrap();
        let reply = connection.command(&cdb, &out, read);
        let what = format!("command {number}: {:02x?}", &cdb[..cdb.len().min(32)]);
        let status = u8::from_str_radix(field["status"], 16).unwrap();
        assert_eq!(reply.status, status, "{what}: {:02x?}", reply.sense);
        if cdb[0] != 0x7F {
            continue;
        }
        osd += 1;
        assert_eq!(reply.status == GOOD, reply.sense.is_empty(), "{what}");
        let action = u16::from_be_bytes([cdb[8], cdb[9]]);
        if action == 0x8885 {
            assert!(reply.data_in == data_in, "{what}: what was read");
        }
        // List format with attributes to get.
        if cdb[11] & 0x30 == 0x30 && cdb[52..56] != [0; 4] {
            let ours = list::retrieved(Generation::Osd2, &reply.data_in).entries;
            let theirs = list::retrieved(Generation::Osd2, &data_in).entries;
            let names = |entries: &[(list::Attribute, Vec<u8>)]| {
                entries.iter().map(|(id, _)| *id).collect::<Vec<_>>()
            };
            assert_eq!(names(&ours), names(&theirs), "{what}: all, in the order asked for");
            if cdb[24..32] != [0; 8] {
                assert_eq!(ours, theirs, "{what}");
            }
        }
    }
    assert_eq!(osd, 43);
}
