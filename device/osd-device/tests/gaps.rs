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
