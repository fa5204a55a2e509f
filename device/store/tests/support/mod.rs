//! What the tests share: small stores on the simulated disk.
#![allow(dead_code)] // no test uses all of it

use std::sync::Arc;

use sealstone_store::sim::SimMedium;
use sealstone_store::{DiskStore, FormatError, FormatOptions, Options, format};

/// Small caches, so that they turn over.
pub(crate) fn options() -> Options {
    Options { record_cache: 8 << 10, index_cache: 0, discard_blocks_min: 4, ..Options::default() }
}

/// Small segments, so that objects lie in several.
pub(crate) fn format_options(capacity: u64) -> FormatOptions {
    FormatOptions { segment: Some(1 << 20), ..FormatOptions::new(capacity, *b"0123456789abcdef") }
}

pub(crate) fn open(medium: &SimMedium) -> Result<DiskStore, FormatError> {
    DiskStore::open(Arc::new(medium.clone()), options())
}

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
