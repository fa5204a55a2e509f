//! Reuse of stored digests: check values cover them instead of the data and attributes.
//!
//! Does: take digests of read data from the store where they fit the algorithm; count what had to
//! be hashed.
//! Does not: compute check values; `sealstone_seal` does, and computes missing digests itself.
//! Contract: the caller has the object's lock, so that bytes and digests match.
//! Truth: docs/design/security.md 5.1, 5.4; docs/standards/security.md, "Hash and MAC".

use sealstone_digest::{CoveredDigests, DigestValue, Profile};
use sealstone_osd::attribute::list::Values;
use sealstone_osd::{Generation, ObjectId};
use sealstone_seal::cover;
use sealstone_store::DigestCheck;

use crate::commands::collections;
use crate::device::OsdDevice;
use crate::failure::OsdFailure;

/// Reads bytes of one object, with their digests if the check value of the reply covers `wanted`
/// and the partition keeps that profile. Without digests `seal` computes them from the bytes, which
/// is slower and equivalent. With digests the store may not have verified the bytes: the client
/// does, and repeats the read with FUA, as `verify` here, if they are wrong.
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
        device.hashing.add_page();
        return Ok(Some(value));
    }
    Ok(cover::page_value(profile, generation, page, list))
}

/// Returns the digest profile that the partition of an object keeps.
pub(crate) fn kept(device: &OsdDevice, id: ObjectId) -> Option<Profile> {
    device.store.profile(id.partition).map(Profile::values)
}
