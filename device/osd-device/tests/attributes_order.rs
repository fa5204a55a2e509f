//! Order within each command: its own work, setting attributes, getting attributes.

use crate::plain::{Plain, create, get_attributes, set_attributes, triple, values};
use crate::support::{PID, user};
use sealstone_osd::cdb::*;
use sealstone_osd::{AttributeId, Command, Generation, ObjectId};
use sealstone_scsi::Functions;

const OID: u64 = 0x10000;
const BOTH: [Generation; 2] = [Generation::Osd1, Generation::Osd2];

/// Runs a command with this set and get list, and returns the retrieved values.
#[track_caller]
fn both(
    plain: &Plain,
    command: Command,
    data: &[u8],
    set: (u32, u32, &[u8]),
    get: &[(u32, u32)],
) -> Vec<Vec<u8>> {
    let set = [(AttributeId::new(set.0, set.1), set.2.to_vec())];
    let get: Vec<_> = get.iter().map(|&(page, number)| AttributeId::new(page, number)).collect();
    let (cdb, out) = plain.with_lists(command, data, &set, &get);
    let reply = plain.good(&cdb, &out);
    values(plain.generation, plain.attributes(&cdb, &reply)).into_iter().map(|(_, value)| value).collect()
}

/// Commands that keep their object: work, then set, then get. The set affects objects that the work
/// created.
#[test]
fn work_then_set_then_get() {
    for generation in BOTH {
        let plain = Plain::with_object(generation);
        let extent = |start, length| Extent { object: user(OID), start, length };
        let length = |value: u64| value.to_be_bytes().to_vec();
        // The write extends to 8, the set truncates to 4, the get returns 4.
        let cut = (1, 0x82, &4u64.to_be_bytes()[..]);
        let write = Command::Write(extent(0, 8));
        assert_eq!(both(&plain, write, b"01234567", cut, &[(1, 0x82)]), [length(4)]);
        // The append starts at the end of the object before the set.
        let append = Command::Append(Append { object: user(OID), length: 2 });
        let got = both(&plain, append, b"ab", cut, &[(0xFFFF_FFFE, 5), (1, 0x82)]);
        assert_eq!(got, [length(4), length(4)]);
        // The read returns the data from before the set.
        let read = Command::Read(extent(0, 4));
        let (cdb, out) = plain.with_lists(
            read,
            &[],
            &[(AttributeId::new(1, 0x82), length(2))],
            &[AttributeId::new(1, 0x82)],
        );
        let reply = plain.good(&cdb, &out);
        assert_eq!(reply.data_in[..4], *b"0123");
        assert_eq!(values(generation, plain.attributes(&cdb, &reply))[0].1, length(2));
        // The created object gets the attributes.
        let name = (1, 9, &b"named"[..]);
        let got = both(&plain, create(OID + 1, 1), &[], name, &[(1, 9), (1, 2)]);
        assert_eq!(got, [b"named".to_vec(), length(OID + 1)]);
        let made = Command::CreateAndWrite(Extent { object: user(OID + 2), start: 0, length: 3 });
        assert_eq!(
            both(&plain, made, b"abc", (1, 0x82, &[0, 0, 0, 0, 0, 0, 0, 1]), &[(1, 0x82)]),
            [length(1)]
        );
        let partition = Command::CreatePartition(CreatePartition { partition: PID + 1 });
        let got = both(&plain, partition, &[], (0x3000_0001, 9, b"p"), &[(0x3000_0001, 9), (0x3000_0001, 1)]);
        assert_eq!(got, [b"p".to_vec(), length(PID + 1)]);
        let flush = Flush { object: user(OID), scope: FlushScope::Everything, start: 0, length: 0 };
        assert_eq!(both(&plain, Command::Flush(flush), &[], name, &[(1, 9)]), [b"named".to_vec()]);
    }
    let plain = Plain::with_object(Generation::Osd2);
    let extent = |start, length| Extent { object: user(OID), start, length };
    let cut = (1, 0x82, &4u64.to_be_bytes()[..]);
    let four = 4u64.to_be_bytes().to_vec();
    assert_eq!(
        both(&plain, Command::Clear(extent(0, 100)), &[], cut, &[(1, 0x82)]),
        std::slice::from_ref(&four)
    );
    assert_eq!(both(&plain, Command::Punch(extent(0, 2)), &[], cut, &[(1, 0x82)]), [four]);
}

/// Commands that remove their object: set, get, then work.
#[test]
fn attributes_before_a_removal() {
    for generation in BOTH {
        let plain = Plain::with_object(generation);
        let remove = Command::Remove(Target { object: user(OID) });
        assert_eq!(both(&plain, remove, &[], (1, 9, b"last"), &[(1, 9)]), [b"last".to_vec()]);
        let remove = Command::RemovePartition(RemovePartition { partition: PID, with_contents: false });
        let got = both(&plain, remove, &[], (0x3000_0001, 9, b"last"), &[(0x3000_0001, 9)]);
        assert_eq!(got, [b"last".to_vec()]);
        assert_eq!(plain.get(ObjectId::ROOT, 0x9000_0001, 0xC0), [0; 8]);
    }
}

/// GET ATTRIBUTES gets, then sets; SET ATTRIBUTES sets, then gets.
#[test]
fn get_attributes_gets_first() {
    for generation in BOTH {
        let plain = Plain::with_object(generation);
        plain.set(user(OID), 1, 9, b"old");
        let new = (1, 9, &b"new"[..]);
        assert_eq!(both(&plain, get_attributes(user(OID)), &[], new, &[(1, 9)]), [b"old".to_vec()]);
        let newer = (1, 9, &b"newer"[..]);
        assert_eq!(both(&plain, set_attributes(user(OID)), &[], newer, &[(1, 9)]), [b"newer".to_vec()]);
    }
}

/// If setting an attribute fails after the work, the work stays done, and the sense data reports
/// that.
#[test]
fn attribute_quota_failure_keeps_completed_work() {
    let plain = Plain::with_object(Generation::Osd2);
    plain.set(user(OID), 2, 1, &100u64.to_be_bytes());
    let write = Command::Write(Extent { object: user(OID), start: 0, length: 4 });
    let set = [(AttributeId::new(1, 0x82), 101u64.to_be_bytes().to_vec())];
    let (cdb, out) = plain.with_lists(write, b"done", &set, &[AttributeId::new(1, 1)]);
    let sense = plain.sense(&cdb, &out);
    assert_eq!(triple(&sense), (7, 0x5507));
    let osd = sense.osd.unwrap();
    assert!(osd.completed.contains(Functions::COMMAND) && !osd.completed.contains(Functions::SET_ATTRIBUTES));
    assert!(osd.not_initiated.contains(Functions::GET_ATTRIBUTES));
    assert!(!osd.not_initiated.contains(Functions::SET_ATTRIBUTES));
    assert_eq!((osd.partition, osd.object), (PID, OID));
    assert_eq!(plain.get(user(OID), 1, 0x82), 4u64.to_be_bytes());
}

/// The Current Command page of each command, in both generations.
#[test]
fn the_current_command_page_is_about_the_command() {
    for generation in BOTH {
        let plain = Plain::with_object(generation);
        let page = |command, data: &[u8]| {
            let cdb = plain.with_page(command, 0xFFFF_FFFE, 4096);
            let reply = plain.good(&cdb, data);
            plain.attributes(&cdb, &reply).to_vec()
        };
        // After the check value: type, partition, object, append start.
        let at = 8 + generation.icv_len();
        let split = |bytes: &[u8]| {
            let number = |from: usize| u64::from_be_bytes(bytes[from..from + 8].try_into().unwrap());
            (bytes[at], number(at + 4), number(at + 12), number(at + 20))
        };
        let written = page(Command::Write(Extent { object: user(OID), start: 0, length: 5 }), b"hello");
        assert_eq!(written.len(), generation.select([8 + 0x30, 8 + 0x44]));
        assert_eq!(written[..8], [0xFF, 0xFF, 0xFF, 0xFE, 0, 0, 0, generation.select([0x30, 0x44])]);
        assert_eq!(written[8..at], vec![0; generation.icv_len()][..], "no check value without security");
        assert_eq!(split(&written), (0x80, PID, OID, 0));
        let append = Command::Append(Append { object: user(OID), length: 2 });
        assert_eq!(split(&page(append, b"ab")), (0x80, PID, OID, 5));
        assert_eq!(split(&page(create(0, 5), &[])), (0x80, PID, OID + 5, 0), "the highest id");
        assert_eq!(split(&page(get_attributes(ObjectId::of_partition(PID)), &[])), (0x02, PID, 0, 0));
        assert_eq!(split(&page(get_attributes(ObjectId::ROOT), &[])), (0x01, 0, 0, 0));
        let partition = Command::CreatePartition(CreatePartition { partition: 0 });
        assert_eq!(split(&page(partition, &[])), (0x02, PID + 1, 0, 0));
        // In page format nothing else can be retrieved from several objects at once.
        let cdb = plain.with_page(create(0, 2), 3, 4096);
        assert_eq!(triple(&plain.sense(&cdb, &[])), (5, 0x1A00));
    }
}
