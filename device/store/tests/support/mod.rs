//! What the tests share: small stores on the simulated disk.
#![allow(dead_code)] // no test uses all of it

pub(crate) mod records;

use std::sync::Arc;

use sealstone_store::sim::SimMedium;
use sealstone_store::{
    DEVICE_MIN, DeviceMedium, DiskStore, FormatError, FormatOptions, Medium, Options, format,
};

/// Small caches, so that they turn over.
pub(crate) fn options() -> Options {
    Options { record_cache: 8 << 10, index_cache: 0, discard_blocks_min: 4, ..Options::default() }
}

/// Small segments, so that objects lie in several.
pub(crate) fn format_options(capacity: u64) -> FormatOptions {
    FormatOptions { segment: Some(1 << 20), ..FormatOptions::new(capacity, *b"0123456789abcdef") }
}

/// The one file of a simulated disk that stands for a raw device.
const DEVICE: &str = "device";

/// Opens the store on a simulated disk: in its files, or on the raw device that it holds.
pub(crate) fn open(medium: &SimMedium) -> Result<DiskStore, FormatError> {
    match medium.open(DEVICE, false) {
        Ok(device) => DiskStore::open(Arc::new(DeviceMedium::open(device)?), options()),
        Err(_) => DiskStore::open(Arc::new(medium.clone()), options()),
    }
}

/// A store on a raw device that carried something else before.
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

/// How a store is made on a simulated disk.
pub(crate) type Fresh = fn(u64, u64) -> (SimMedium, DiskStore);
/// In files, and on a raw device.
pub(crate) const MEDIA: [Fresh; 2] = [fresh, fresh_device];

pub(crate) fn fresh(seed: u64, capacity: u64) -> (SimMedium, DiskStore) {
    let medium = SimMedium::new(seed);
    format(&medium, &format_options(capacity)).expect("format");
    let store = open(&medium).expect("open");
    (medium, store)
}

/// How many seeds to try; `SEALSTONE_SEEDS` multiplies, `SEALSTONE_SEED` replays one.
pub(crate) fn seeds(usual: u64) -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    match number("SEALSTONE_SEED") {
        Some(seed) => vec![seed],
        None => (1..=usual * number("SEALSTONE_SEEDS").unwrap_or(1)).collect(),
    }
}
