//! Counters of bytes that were hashed for reads, and of stored digests that were used instead.

use core::sync::atomic::{AtomicU64, Ordering};

use sealstone_digest::{CoverPart, CoveredDigests};

/// Counters of stored digests that were used, and of bytes that were hashed instead.
#[derive(Debug, Default)]
pub(crate) struct Hashing {
    hashed_bytes: AtomicU64,
    stored_units: AtomicU64,
    stored_pages: AtomicU64,
}

/// Values of these counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashingCount {
    /// Bytes hashed for check values of reads: edges, and units without a stored digest.
    pub hashed_bytes: u64,
    /// Units of reads whose stored digest was used, so that they were not hashed.
    pub stored_units: u64,
    /// Attribute pages whose stored digest was used.
    pub stored_pages: u64,
}

impl Hashing {
    pub(crate) fn count(&self) -> HashingCount {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        HashingCount {
            hashed_bytes: load(&self.hashed_bytes),
            stored_units: load(&self.stored_units),
            stored_pages: load(&self.stored_pages),
        }
    }

    pub(crate) fn add(&self, covered: &CoveredDigests, stored: u64) {
        let unit = covered.cover().profile().unit_bytes();
        let (mut edges, mut whole, mut whole_bytes) = (0, 0, 0);
        for part in covered.cover().parts() {
            let length = part.range().end - part.range().start;
            match part {
                CoverPart::Edge { .. } => edges += length,
                CoverPart::Whole { .. } => {
                    whole += 1;
                    whole_bytes += length;
                }
            }
        }
        // The store does not report which units have digests. All but the last have the same
        // length.
        let computed = if stored >= whole { 0 } else { ((whole - stored) * unit).min(whole_bytes) };
        self.hashed_bytes.fetch_add(edges + computed, Ordering::Relaxed);
        self.stored_units.fetch_add(stored.min(whole), Ordering::Relaxed);
    }

    /// Counts an attribute page whose stored digest was used.
    pub(crate) fn add_page(&self) {
        self.stored_pages.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.hashed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
