//! Reuse of stored digests: check values cover them instead of the data and attributes.
//!
//! Does: take digests of read data from the store where they fit the algorithm; count what had to
//! be hashed.
//! Does not: compute check values; `sealstone_seal` does, and computes missing digests itself.
//! Contract: the caller has the object's lock, so that bytes and digests match.
//! Truth: docs/design/security.md 5.1, 5.4; docs/standards/security.md, "Hash and MAC".

use core::sync::atomic::{AtomicU64, Ordering};

use sealstone_digest::{CoverPart, CoveredDigests, DigestValue, Profile};
use sealstone_osd::attribute::list::Values;
use sealstone_osd::{Generation, ObjectId};
use sealstone_seal::cover;
use sealstone_store::DigestCheck;

use crate::commands::collections;
use crate::device::OsdDevice;
use crate::failure::OsdFailure;

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

    fn add(&self, covered: &CoveredDigests, stored: u64) {
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

    fn add_bytes(&self, bytes: u64) {
        self.hashed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Reads bytes of one object, with their digests if the check value of the reply covers `wanted`
/// and the partition keeps that profile. Without digests `seal` computes them from the bytes, which
/// is slower and equivalent. With digests the store may not have verified the bytes: the client
/// does, and repeats the read with FUA (`look`) if they are wrong.
pub(crate) fn read(
    device: &OsdDevice,
    id: ObjectId,
    at: u64,
    into: &mut [u8],
    wanted: Option<Profile>,
    verify: bool,
) -> Result<(usize, Option<CoveredDigests>), OsdFailure> {
    let Some(profile) = wanted else { return Ok((device.store.read(id, at, into)?, None)) };
    if kept(device, id) != Some(profile) {
        device.hashing.add_bytes(into.len() as u64);
        return Ok((device.store.read(id, at, into)?, None));
    }
    let checked = if verify { DigestCheck::ByStore } else { DigestCheck::ByReceiver };
    let read = device.store.read_digested(id, at, into, checked)?;
    match &read.covered {
        Some(covered) => device.hashing.add(covered, read.stored),
        None => device.hashing.add_bytes(read.count as u64),
    }
    Ok((read.count, read.covered))
}

/// Returns the digest of the page that a retrieved list consists of; `None` if the list is
/// truncated.
pub(crate) fn page(
    device: &OsdDevice,
    id: ObjectId,
    profile: Profile,
    page: u32,
    generation: Generation,
    list: &[u8],
) -> Result<Option<DigestValue>, OsdFailure> {
    let whole = Values::parse_retrieved(generation, list)
        .is_ok_and(|list_of| list_of.full_len() == list.len() as u64);
    if !whole {
        return Ok(None);
    }
    // The spontaneous collection has no stored page.
    if kept(device, id) == Some(profile)
        && !collections::is_everything(id)
        && let Some(value) = device.store.page_digest(id, page)?
    {
        device.hashing.stored_pages.fetch_add(1, Ordering::Relaxed);
        return Ok(Some(value));
    }
    Ok(cover::page_value(profile, generation, page, list))
}

/// Returns the digest profile that the partition of an object keeps.
pub(crate) fn kept(device: &OsdDevice, id: ObjectId) -> Option<Profile> {
    device.store.profile(id.partition).map(Profile::values)
}
