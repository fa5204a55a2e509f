//! Records that no store would write, on pages that are sound.

use std::sync::Arc;

use sealstone_osd::ObjectId;
use sealstone_store::sim::SimMedium;
use sealstone_store::{Medium as _, MediumFile};

/// The engine on the simulated disk.
struct Engine(Arc<dyn MediumFile>);

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Engine")
    }
}

impl redb::StorageBackend for Engine {
    fn len(&self) -> std::io::Result<u64> {
        self.0.length()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, out)
    }
    fn set_len(&self, length: u64) -> std::io::Result<()> {
        self.0.set_len(length)
    }
    fn sync_data(&self) -> std::io::Result<()> {
        self.0.sync()
    }
    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write_at(offset, data)
    }
}

/// The key of a record.
pub(crate) fn record_key(tag: u8, id: ObjectId, sub: u64) -> [u8; 25] {
    let mut key = [0; 25];
    key[0] = tag;
    key[1..9].copy_from_slice(&id.partition.to_be_bytes());
    key[9..17].copy_from_slice(&id.object.to_be_bytes());
    key[17..].copy_from_slice(&sub.to_be_bytes());
    key
}

/// Puts something else in the place of a record, or takes it away. No store has the medium open.
pub(crate) fn edit_record(
    medium: &SimMedium,
    key: [u8; 25],
    change: impl FnOnce(Option<Vec<u8>>) -> Option<Vec<u8>>,
) {
    const TABLE: redb::TableDefinition<'static, &[u8; 25], &[u8]> = redb::TableDefinition::new("sealstone");
    let file = medium.open("index.redb", false).unwrap();
    let engine = redb::Builder::new().create_with_backend(Engine(file)).unwrap();
    let transaction = engine.begin_write().unwrap();
    {
        let mut table = transaction.open_table(TABLE).unwrap();
        let old = table.remove(&key).unwrap().map(|value| value.value().to_vec());
        if let Some(new) = change(old) {
            table.insert(&key, &new[..]).unwrap();
        }
    }
    transaction.commit().unwrap();
}
