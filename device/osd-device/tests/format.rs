//! FORMAT OSD: status of other commands meanwhile, remaining state, and removed state.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::plain::{Plain, create, create_partition, get_attributes, triple, values};
use crate::support::{PID, user};
use sealstone_osd::cdb::{CreatePartition, Extent, FormatOsd, List};
use sealstone_osd::listing::Listing;
use sealstone_osd::{AttributeId, Command, Generation, ObjectId, ObjectType};
use sealstone_scsi::lu::NexusId;
use sealstone_scsi::{Sense, Status};
use sealstone_store::{MemoryStore, ObjectStore as _};

const OID: u64 = 0x10000;
const OTHER: NexusId = NexusId(2);

fn format(capacity: u64) -> Command {
    Command::FormatOsd(FormatOsd { capacity })
}

fn list(object: ObjectId) -> Command {
    Command::List(List { object, list_id: 0, allocation: 4096, initial: 0, with_attributes: false })
}

#[test]
fn format_in_progress_reported_until_done() {
    let plain = Plain::with_object(Generation::Osd2);
    plain.bench.login(OTHER);
    plain.good(&plain.cdb(create(0, 0xFFFF)), &[]);
    let read = plain.cdb(Command::Read(Extent { object: user(OID), start: 0, length: 0 })).encode().unwrap();
    let in_progress = Some((2, 0x0404));
    let [begun, seen, over] = [false; 3].map(AtomicBool::new);
    let [reported, read_told]: [BTreeSet<Option<(u8, u16)>>; 2] = std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let ask = |cdb: &[u8]| loop {
                let reply = plain.bench.raw(OTHER, cdb, &[], 0);
                // BUSY: the command waited for the lock of the next format.
                if reply.status != Status::Busy {
                    return Sense::parse(&reply.sense).ok().map(|sense| triple(&sense));
                }
            };
            let mut received = [BTreeSet::new(), BTreeSet::new()];
            while !over.load(Ordering::SeqCst) {
                let ready = ask(&[0; 6]);
                received[0].insert(ready);
                if ready.is_some() {
                    received[1].insert(ask(&read));
                }
                seen.store(received[1].contains(&in_progress), Ordering::SeqCst);
                begun.store(true, Ordering::SeqCst);
            }
            received
        });
        while !begun.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // A format may end before another command runs.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !seen.load(Ordering::SeqCst) && Instant::now() < deadline {
            plain.good(&plain.cdb(format(0)), &[]);
        }
        over.store(true, Ordering::SeqCst);
        others.join().unwrap()
    });
    assert_eq!(reported, BTreeSet::from([None, in_progress]));
    assert!(read_told.contains(&in_progress), "{read_told:?}");
    // The last command may run after the end of the format: the object is removed.
    assert!(read_told.iter().all(|one| [in_progress, Some((5, 0x2400))].contains(one)), "{read_told:?}");
    assert!(plain.bench.raw(OTHER, &[0; 6], &[], 0).sense.is_empty(), "ready again");
}

#[test]
fn format_removes_partitions_and_resets_root() {
    for generation in [Generation::Osd1, Generation::Osd2] {
        let plain = Plain::with_object(generation);
        let extent = Extent { object: user(OID), start: 0, length: 5 };
        plain.good(&plain.cdb(Command::Write(extent)), b"hello");
        plain.set(ObjectId::ROOT, 0x9000_0001, 9, b"old name");
        plain.set(ObjectId::ROOT, 0x9000_0002, 0x20002, &7u64.to_be_bytes());
        plain.set(ObjectId::ROOT, 0x9001_0000, 1, b"an application's");
        // Set and get in the same command, as mkexofs does.
        let name = AttributeId::new(0x9000_0001, 9);
        let used = AttributeId::new(0x9000_0001, 0x81);
        let (cdb, out) = plain.with_lists(format(0), &[], &[(name, b"new name".to_vec())], &[name, used]);
        let reply = plain.good(&cdb, &out);
        let got = values(generation, plain.attributes(&cdb, &reply));
        assert_eq!((got[0].1.as_slice(), got[1].1.as_slice()), (&b"new name"[..], &[0; 8][..]));
        assert_eq!(plain.get(ObjectId::ROOT, 0x9000_0002, 0x20002), [0xFF; 8]);
        assert_eq!(plain.get(ObjectId::ROOT, 0x9001_0000, 1), []);
        assert_eq!(plain.get(ObjectId::ROOT, 0x9000_0001, 0xC0), [0; 8]);
        let listed = plain.good(&plain.cdb(list(ObjectId::ROOT)), &[]);
        assert_eq!(Listing::parse(generation, &listed.data_in).unwrap().ids().count(), 0);
        assert_eq!(plain.bench.store.list(ObjectId::of_partition(1), 9).unwrap(), []);
        // A recreated partition is a different one.
        plain.good(&plain.cdb(create_partition(PID)), &[]);
        let listed = plain.good(&plain.cdb(list(ObjectId::of_partition(PID))), &[]);
        assert_eq!(Listing::parse(generation, &listed.data_in).unwrap().ids().count(), 0);
    }
}

#[test]
fn formatted_capacity_is_usable() {
    let plain = Plain::with_object(Generation::Osd2);
    let total = u64::from_be_bytes(plain.get(ObjectId::ROOT, 0x9000_0001, 0x80).try_into().unwrap());
    let sense = plain.sense(&plain.cdb(format(total + 1)), &[]);
    assert_eq!((triple(&sense), sense.field.unwrap().byte), ((5, 0x2400), 32));
    assert_eq!(plain.get(user(OID), 1, 2), OID.to_be_bytes(), "nothing was formatted");
    plain.good(&plain.cdb(format(16384)), &[]);
    assert_eq!(plain.get(ObjectId::ROOT, 0x9000_0001, 0x80), 16384u64.to_be_bytes());
    plain.good(&plain.cdb(create_partition(PID)), &[]);
    plain.good(&plain.cdb(create(OID, 1)), &[]);
    let write = |length: u64| Command::Write(Extent { object: user(OID), start: 0, length });
    assert_eq!(triple(&plain.sense(&plain.cdb(write(16385)), &[1; 16385])), (7, 0x5507));
    plain.good(&plain.cdb(write(16384)), &[1; 16384]);
    plain.good(&plain.cdb(format(0)), &[]);
    assert_eq!(plain.get(ObjectId::ROOT, 0x9000_0001, 0x80), total.to_be_bytes());
    // OSD-1 has the capacity in another field.
    let plain = Plain { generation: Generation::Osd1, ..plain };
    let sense = plain.sense(&plain.cdb(format(total + 1)), &[]);
    assert_eq!(sense.field.unwrap().byte, 36);
}

/// Objects without a partition, due to damage or an old crash, never appear in a new partition with
/// that id.
#[test]
fn orphan_objects_stay_out_of_new_partitions() {
    let store = Arc::new(MemoryStore::new(1 << 20));
    store.create(user(OID), ObjectType::User).unwrap();
    store.write(user(OID), 0, b"somebody's").unwrap();
    let plain = Plain::on(Generation::Osd2, store);
    let sense = plain.sense(&plain.cdb(create_partition(PID)), &[]);
    assert_eq!((triple(&sense), sense.field.unwrap().byte), ((5, 0x2400), 16));
    let id = AttributeId::new(0xFFFF_FFFE, 3);
    let any = Command::CreatePartition(CreatePartition { partition: 0 });
    let (cdb, out) = plain.with_lists(any, &[], &[], &[id]);
    let reply = plain.good(&cdb, &out);
    assert_eq!(values(Generation::Osd2, plain.attributes(&cdb, &reply))[0].1, (PID + 1).to_be_bytes());
    plain.good(&plain.cdb(format(0)), &[]);
    plain.good(&plain.cdb(create_partition(PID)), &[]);
    let missing = plain.sense(&plain.cdb(get_attributes(user(OID))), &[]);
    assert_eq!(triple(&missing), (5, 0x2400));
}
