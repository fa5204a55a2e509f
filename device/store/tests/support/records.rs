//! Records that no store would write, on intact pages.

use sealstone_osd::ObjectId;
use sealstone_store::sim::SimMedium;

use super::{Engine, TABLE};

/// Returns the key of a record.
pub(crate) fn record_key(tag: u8, id: ObjectId, sub: u64) -> [u8; 25] {
    let mut key = [0; 25];
    key[0] = tag;
    key[1..9].copy_from_slice(&id.partition.to_be_bytes());
    key[9..17].copy_from_slice(&id.object.to_be_bytes());
    key[17..].copy_from_slice(&sub.to_be_bytes());
    key
}

/// Replaces or removes a record. No store has the medium open.
pub(crate) fn edit_record(
    medium: &SimMedium,
    key: [u8; 25],
    change: impl FnOnce(Option<Vec<u8>>) -> Option<Vec<u8>>,
) {
    let engine = redb::Builder::new().create_with_backend(Engine::on(medium)).unwrap();
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
