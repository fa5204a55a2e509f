//! Stored digests at work: what stands for data and attributes in check values that cover digests.
//!
//! Does: take the digests of what is read from the store where they fit the algorithm, count what had to be hashed.
//! Does not: compute check values; `sealstone_seal` does, and computes digests itself where none are given.
//! Contract: the caller holds the object's lock, so that bytes and digests are of one moment.
//! Truth: docs/design/security.md 5.1, 5.4; docs/standards/security.md, "Hash and MAC".

use core::sync::atomic::{AtomicU64, Ordering};

use sealstone_digest::{Covered, Part, Profile, Value};
use sealstone_osd::attribute::list::Values;
use sealstone_osd::{Generation, ObjectId};
use sealstone_seal::cover;
use sealstone_store::Checked;

use crate::commands::collections;
use crate::device::Device;
use crate::failure::Failure;

/// What protected commands took from the store, and what was hashed for them.
#[derive(Debug, Default)]
pub(crate) struct Hashing {
    hashed_bytes: AtomicU64,
    stored_units: AtomicU64,
    stored_pages: AtomicU64,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashingCount {
    /// Bytes of data that were hashed for check values of reads: edges, and units without a stored digest.
    pub hashed_bytes: u64,
    /// Units of reads whose stored digest was used: not a byte of them was hashed.
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

    fn add(&self, covered: &Covered, stored: u64) {
        let unit = covered.cover().profile().unit_bytes();
        let (mut edges, mut whole, mut whole_bytes) = (0, 0, 0);
        for part in covered.cover().parts() {
            let length = part.range().end - part.range().start;
            match part {
                Part::Edge { .. } => edges += length,
                Part::Whole { .. } => {
                    whole += 1;
                    whole_bytes += length;
                }
            }
        }
        // Which of the units were stored is not told; all but the last have the same length.
        let computed = if stored >= whole { 0 } else { ((whole - stored) * unit).min(whole_bytes) };
        self.hashed_bytes.fetch_add(edges + computed, Ordering::Relaxed);
        self.stored_units.fetch_add(stored.min(whole), Ordering::Relaxed);
    }

    fn add_bytes(&self, bytes: u64) {
        self.hashed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Reads bytes of one object, and their digests if the check value of the reply is over `wanted` and the partition
/// keeps those. Without digests seal computes them from the bytes, which is slower and as good. With them the bytes may
/// not have been compared with anything: the client does that, and asks again with FUA (`look`) where they are wrong.
pub(crate) fn read(
    device: &Device,
    id: ObjectId,
    at: u64,
    into: &mut [u8],
    wanted: Option<Profile>,
    look: bool,
) -> Result<(usize, Option<Covered>), Failure> {
    let Some(profile) = wanted else { return Ok((device.store.read(id, at, into)?, None)) };
    if kept(device, id) != Some(profile) {
        device.hashing.add_bytes(into.len() as u64);
        return Ok((device.store.read(id, at, into)?, None));
    }
    let checked = if look { Checked::ByStore } else { Checked::ByReceiver };
    let read = device.store.read_digested(id, at, into, checked)?;
    match &read.covered {
        Some(covered) => device.hashing.add(covered, read.stored),
        None => device.hashing.add_bytes(read.count as u64),
    }
    Ok((read.count, read.covered))
}

/// The digest of the page that a retrieved list is all of; `None` if the list is cut.
pub(crate) fn page(
    device: &Device,
    id: ObjectId,
    profile: Profile,
    page: u32,
    generation: Generation,
    list: &[u8],
) -> Result<Option<Value>, Failure> {
    let whole = Values::parse_retrieved(generation, list)
        .is_ok_and(|list_of| list_of.full_len() == list.len() as u64);
    if !whole {
        return Ok(None);
    }
    // The collection that no store has, has no page that is stored.
    if kept(device, id) == Some(profile)
        && !collections::is_everything(id)
        && let Some(value) = device.store.page_digest(id, page)?
    {
        device.hashing.stored_pages.fetch_add(1, Ordering::Relaxed);
        return Ok(Some(value));
    }
    Ok(cover::page_value(profile, generation, page, list))
}

/// The values that the partition of an object keeps.
pub(crate) fn kept(device: &Device, id: ObjectId) -> Option<Profile> {
    device.store.profile(id.partition).map(Profile::values)
}
