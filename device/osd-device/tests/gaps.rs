//! A store that lost a page of its index: every incomplete list reports that.

use std::sync::Arc;

use crate::faulty::Faulty;
use crate::support::{Answer, Bench, ListPair, PID};
use parking_lot::Mutex;
use sealstone_osd::cdb::{Create, CreatePartition, List};
use sealstone_osd::{Command, Generation, ObjectId, listing::Listing};
use sealstone_osd_device::{KeyRecord, KeyStore, OsdConfig, ProvisionError};
use sealstone_store::ObjectStore;
use zeroize::Zeroizing;

const OID: u64 = 0x10000;
/// ILLEGAL REQUEST, INVALID FIELD IN CDB.
const INVALID_FIELD: (u8, u16) = (5, 0x2400);
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

/// Keys that survive a restart.
#[derive(Clone, Default)]
struct StoredKeys(Arc<Mutex<Vec<u8>>>);

impl KeyStore for StoredKeys {
    fn persist_keys(&self, keys: &[u8]) -> Result<(), ProvisionError> {
        *self.0.lock() = keys.to_vec();
        Ok(())
    }
}

/// A device whose store can be damaged between two starts.
struct DamagedDevice {
    store: Arc<Faulty>,
    keys: StoredKeys,
    starts: u16,
}

impl DamagedDevice {
    /// Creates partitions with keys that were set, of which the first two have objects.
    fn new() -> (Self, Bench) {
        let mut device = Self { store: Arc::new(Faulty::new()), keys: StoredKeys::default(), starts: 0 };
        let bench = device.start(None);
        for partition in PID..PID + 3 {
            bench.create_partition(partition);
            bench.renew_keys(partition);
        }
        for partition in [PID, PID + 1] {
            let create = Command::Create(Create { object: ObjectId::new(partition, 0), count: 3 });
            bench.run(create, ListPair::default(), &[]).good();
        }
        (device, bench)
    }

    /// Starts the device again, for a client with the keys of `before`.
    fn start(&mut self, before: Option<Bench>) -> Bench {
        let client = before.map(|bench| bench.keys.lock().clone());
        self.starts += 1;
        let stored = client.is_some().then(|| Zeroizing::new(self.keys.0.lock().clone()));
        let keys = KeyRecord { stored, store: Box::new(self.keys.clone()) };
        let store = Arc::clone(&self.store) as Arc<dyn ObjectStore>;
        let bench = Bench::start_with(OsdConfig::default(), store, self.starts, 0, keys);
        if let Some(keys) = client {
            *bench.keys.lock() = keys;
        }
        bench
    }
}

fn list_partition(bench: &Bench, partition: u64) -> Answer {
    let object = ObjectId::of_partition(partition);
    let list = List { object, list_id: 0, allocation: 4096, initial: 0, with_attributes: false };
    bench.run(Command::List(list), ListPair::default(), &[])
}

fn create_partition(bench: &Bench, partition: u64) -> Answer {
    bench.run(Command::CreatePartition(CreatePartition { partition }), ListPair::default(), &[])
}

/// Damaged records of an object and of partitions stop neither the device nor anything else, and
/// the numbers and keys of these partitions are kept.
#[test]
fn damaged_records_stop_neither_device_nor_others() {
    let (mut device, bench) = DamagedDevice::new();
    let partitions = [PID + 1, PID + 2];
    let [first, second] = partitions.map(ObjectId::of_partition);
    device.store.spoil(&[ObjectId::new(PID, OID + 1), first, second]);
    let bench = device.start(Some(bench));
    assert_eq!(page(&bench, 0), ((OID..OID + 3).collect(), 0));
    for partition in partitions {
        assert_eq!(list_partition(&bench, partition).sense(), INVALID_FIELD, "it does not exist");
        assert_eq!(create_partition(&bench, partition).sense(), INVALID_FIELD, "its number is in use");
    }
    create_partition(&bench, 0).good();
    // Restored records are used after the next start.
    device.store.restore();
    let bench = device.start(Some(bench));
    let found = partitions.map(|partition| {
        let listed = list_partition(&bench, partition).good();
        Listing::parse(Generation::Osd2, &listed.data).unwrap().ids().count()
    });
    assert_eq!(found, [3, 0]);
}

/// A partition on a lost page of the index is not listed, and may be restored with this page.
#[test]
fn lost_index_page_leaves_keys_of_its_partitions() {
    let (mut device, bench) = DamagedDevice::new();
    device.store.lose(ObjectId::of_partition(PID + 1), ObjectId::new(PID + 1, u64::MAX));
    let bench = device.start(Some(bench));
    assert_eq!(list_partition(&bench, PID + 1).sense(), INVALID_FIELD);
    device.store.restore();
    let bench = device.start(Some(bench));
    list_partition(&bench, PID + 1).good();
}
