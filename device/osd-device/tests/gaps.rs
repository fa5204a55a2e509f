//! A store that lost a page of its index: every incomplete list reports that.

use std::sync::Arc;

use crate::faulty::Faulty;
use crate::support::{Answer, Bench, ListPair, PID};
use sealstone_osd::cdb::{Create, List};
use sealstone_osd::{Command, Generation, ObjectId, listing::Listing};
use sealstone_osd_device::OsdConfig;
use sealstone_store::ObjectStore;

const OID: u64 = 0x10000;
/// MEDIUM ERROR, UNRECOVERED READ ERROR.
const UNRECOVERED: (u8, u16) = (3, 0x1100);

fn list(bench: &Bench, initial: u64) -> Answer {
    let object = ObjectId::of_partition(PID);
    let command =
        Command::List(List { object, list_id: 0, allocation: 4096, initial, with_attributes: false });
    bench.run(command, ListPair::default(), &[])
}

fn page(bench: &Bench, initial: u64) -> (Vec<u64>, u64) {
    let answer = list(bench, initial).good();
    let page = Listing::parse(Generation::Osd2, &answer.data).unwrap();
    (page.ids().collect(), page.next)
}

#[test]
fn list_returns_entries_before_gap_then_error() {
    let store = Arc::new(Faulty::new());
    let bench = Bench::with(OsdConfig::default(), Arc::clone(&store) as Arc<dyn ObjectStore>);
    bench.create_partition(PID);
    let create = Command::Create(Create { object: ObjectId::new(PID, 0), count: 10 });
    bench.run(create, ListPair::default(), &[]).good();
    assert_eq!(page(&bench, 0), ((OID..OID + 10).collect(), 0));
    store.lose(ObjectId::new(PID, OID + 4), ObjectId::new(PID, OID + 6));
    assert_eq!(page(&bench, 0), ((OID..OID + 4).collect(), OID + 4), "continues at the gap");
    assert_eq!(list(&bench, OID + 4).sense(), UNRECOVERED);
    assert_eq!(list(&bench, OID + 6).sense(), UNRECOVERED);
    assert_eq!(page(&bench, OID + 7), ((OID + 7..OID + 10).collect(), 0), "behind the gap");
    store.lose(ObjectId::new(PID, 1), ObjectId::new(PID, OID + 6));
    assert_eq!(list(&bench, 0).sense(), UNRECOVERED, "no entry before the gap");
    store.lose(ObjectId::new(PID + 1, 0), ObjectId::new(PID + 9, 0));
    assert_eq!(page(&bench, 0), ((OID..OID + 10).collect(), 0), "that is another partition's");
}

/// Damaged records of an object and of a partition stop neither the device nor anything else.
#[test]
fn damaged_records_stop_neither_device_nor_others() {
    let store = Arc::new(Faulty::new());
    let shared = || Arc::clone(&store) as Arc<dyn ObjectStore>;
    let bench = Bench::with(OsdConfig::default(), shared());
    for partition in [PID, PID + 1] {
        bench.create_partition(partition);
        let create = Command::Create(Create { object: ObjectId::new(partition, 0), count: 3 });
        bench.run(create, ListPair::default(), &[]).good();
    }
    drop(bench);
    store.spoil(&[ObjectId::new(PID, OID + 1), ObjectId::of_partition(PID + 1)]);
    let bench = Bench::try_start(shared(), 2, 0).expect("it starts");
    let add_keys = |bench: &Bench| {
        [PID, PID + 1].iter().for_each(|id| bench.keys.lock().add_partition(*id).unwrap());
    };
    add_keys(&bench);
    assert_eq!(page(&bench, 0), ((OID..OID + 3).collect(), 0));
    let of = |object, initial| List { object, list_id: 0, allocation: 4096, initial, with_attributes: false };
    let refused = bench.run(Command::List(of(ObjectId::of_partition(PID + 1), 0)), ListPair::default(), &[]);
    assert_eq!(refused.sense(), (5, 0x2400), "a partition that does not exist");
    drop(bench);
    // Restored records are used after the next start.
    store.spoil(&[]);
    let bench = Bench::try_start(shared(), 3, 0).expect("it starts");
    add_keys(&bench);
    let restored = bench.run(Command::List(of(ObjectId::of_partition(PID + 1), 0)), ListPair::default(), &[]);
    assert_eq!(Listing::parse(Generation::Osd2, &restored.good().data).unwrap().ids().count(), 3);
}
