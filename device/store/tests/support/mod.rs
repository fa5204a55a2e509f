//! Shared helpers of the tests: small stores on the simulated disk.
#![allow(dead_code)] // no test uses all of it

pub(crate) mod records;

use std::sync::Arc;

use sealstone_digest::Profile;
use sealstone_osd::{ObjectId, ObjectType};
use sealstone_store::contract::SeededRandom;
use sealstone_store::sim::SimMedium;
use sealstone_store::{
    DEVICE_MIN, DeviceMedium, DigestStore as _, DiskStore, FormatError, FormatOptions, Medium, MediumFile,
    ObjectStore as _, StoreOptions, format,
};

/// Small caches, so that entries are evicted, and space in the index for some small objects.
pub(crate) fn options() -> StoreOptions {
    StoreOptions {
        record_cache: 8 << 10,
        index_cache: 0,
        discard_blocks_min: 4,
        inline_bytes_max: Some(3 << 10),
        ..StoreOptions::default()
    }
}

/// Small segments, so that objects span several.
pub(crate) fn format_options(capacity: u64) -> FormatOptions {
    FormatOptions { segment: Some(1 << 20), ..FormatOptions::new(capacity, *b"0123456789abcdef") }
}

/// The one file of a simulated disk that serves as a raw device.
const DEVICE: &str = "device";

/// Opens the store on a simulated disk: in its files, or on its raw device.
pub(crate) fn open(medium: &SimMedium) -> Result<DiskStore, FormatError> {
    match medium.open(DEVICE, false) {
        Ok(device) => DiskStore::open(Arc::new(DeviceMedium::open(device)?), options()),
        Err(_) => DiskStore::open(Arc::new(medium.clone()), options()),
    }
}

/// Creates a store on a raw device that had other content before.
pub(crate) fn fresh_device(seed: u64, capacity: u64) -> (SimMedium, DiskStore) {
    let disk = SimMedium::new(seed);
    let device = disk.open(DEVICE, true).unwrap();
    device.set_len(DEVICE_MIN + capacity).unwrap();
    device.write_at(3 << 20, &vec![0xDB; 1 << 20]).unwrap();
    device.sync().unwrap();
    disk.sync_names().unwrap();
    let medium = DeviceMedium::format(device, [7; 16], true).unwrap();
    format(&medium, &format_options(capacity)).expect("format");
    drop(medium);
    let store = open(&disk).expect("open");
    (disk, store)
}

/// Creates a store on a simulated disk.
pub(crate) type Fresh = fn(u64, u64) -> (SimMedium, DiskStore);
/// In files, and on a raw device.
pub(crate) const MEDIA: [Fresh; 2] = [fresh, fresh_device];

pub(crate) fn fresh(seed: u64, capacity: u64) -> (SimMedium, DiskStore) {
    let medium = SimMedium::new(seed);
    format(&medium, &format_options(capacity)).expect("format");
    let store = open(&medium).expect("open");
    (medium, store)
}

/// Returns the seeds to try; `SEALSTONE_SEEDS` multiplies their number, `SEALSTONE_SEED` replays
/// one.
pub(crate) fn seeds(usual: u64) -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    match number("SEALSTONE_SEED") {
        Some(seed) => vec![seed],
        None => (1..=usual * number("SEALSTONE_SEEDS").unwrap_or(1)).collect(),
    }
}

/// The index file.
pub(crate) const INDEX: &str = "index.redb";
/// The only table of the index.
pub(crate) const TABLE: redb::TableDefinition<'static, &[u8; 25], &[u8]> =
    redb::TableDefinition::new("sealstone");

/// Bytes of an index page.
const PAGE: u64 = 4096;

/// The engine on the simulated disk, to write records that no store would write.
pub(crate) struct Engine(Arc<dyn MediumFile>);

impl Engine {
    pub(crate) fn on(medium: &SimMedium) -> Self {
        Self(medium.open(INDEX, false).unwrap())
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Engine")
    }
}

impl redb::StorageBackend for Engine {
    fn len(&self) -> std::io::Result<u64> {
        // The last page is the store's copy of the header.
        Ok(self.0.length()? - PAGE)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, out)
    }
    fn set_len(&self, length: u64) -> std::io::Result<()> {
        self.0.set_len(length + PAGE)?;
        self.0.write_at(length, &[0; PAGE as usize])
    }
    fn sync_data(&self) -> std::io::Result<()> {
        self.0.sync()
    }
    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write_at(offset, data)
    }
}

/// Creates an object in a partition with this profile.
pub(crate) fn object_of(store: &DiskStore, partition: u64, profile: Option<Profile>) -> ObjectId {
    store.create(ObjectId::of_partition(partition), ObjectType::Partition).unwrap();
    store.set_profile(partition, profile).unwrap();
    let id = ObjectId::new(partition, 0x1_0000);
    store.create(id, ObjectType::User).unwrap();
    id
}

/// Returns arbitrary bytes, determined by the seed.
pub(crate) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut random = SeededRandom::new(seed);
    (0..length).map(|_| random.next() as u8).collect()
}
