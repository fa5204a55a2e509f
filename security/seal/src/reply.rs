//! The device's side of a reply: response and data-in check values.
//!
//! Does: computes and places them.
//! Does not: know the content of the reply.
//! Contract: seal exactly what is sent, as the last step; a changed byte of status, sense or data
//! breaks the seal.
//! Source of truth: docs/design/security.md 3.2, 5.1, 5.4.

use alloc::sync::Arc;
use alloc::vec::Vec;

use sealstone_digest::{CoveredDigests, DataDirection, DigestCover, DigestValue, Profile};
use sealstone_osd::{Generation, SecurityMethod};

use crate::Tag;
use crate::cache::ProvenCredential;
use crate::cover::{self, CoveredList, DataLocation, ObjectBounds, gather};
use crate::icv::{DataInCounts, total};
use crate::nonce::Nonce;
use crate::provider::Provider;
use crate::sense;

/// Status byte of GOOD.
const GOOD: u8 = 0;

/// Seals the reply to one command, as its method requires.
pub struct ReplySeal<P: Provider>(Option<SealState<P>>);

struct SealState<P: Provider> {
    proven: Arc<ProvenCredential<P>>,
    generation: Generation,
    method: SecurityMethod,
    nonce: Nonce,
    origin: DataLocation,
}

/// The device's information about an object whose bytes it sends. Used only by algorithms that
/// cover digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredObject<'a> {
    /// Its length when they were read, and its generation.
    pub place: ObjectBounds,
    /// The digests of the bytes sent, as far as they are stored; `None`: compute them from the
    /// bytes. If they are given the device may not have checked the bytes: then nothing may be
    /// computed from those.
    pub covered: Option<&'a CoveredDigests>,
    /// The digest of the page that the retrieved attributes are ([`cover::whole_page`]), in the
    /// digest of the algorithm; `None`: it is computed from the list.
    pub page: Option<DigestValue>,
}

impl<P: Provider> Clone for ReplySeal<P> {
    fn clone(&self) -> Self {
        Self(self.0.as_ref().map(|sealed| SealState { proven: Arc::clone(&sealed.proven), ..*sealed }))
    }
}

impl<P: Provider> ReplySeal<P> {
    /// Returns the seal of a command without proof: it does nothing.
    pub(crate) const fn open() -> Self {
        Self(None)
    }

    pub(crate) const fn sealed(
        proven: Arc<ProvenCredential<P>>,
        generation: Generation,
        method: SecurityMethod,
        nonce: Nonce,
        origin: DataLocation,
    ) -> Self {
        Self(Some(SealState { proven, generation, method, nonce, origin }))
    }

    /// Returns the method of the command; NOSEC if nothing was proven.
    #[must_use]
    pub fn method(&self) -> SecurityMethod {
        self.0.as_ref().map_or(SecurityMethod::NoSec, |sealed| sealed.method)
    }

    /// Whether data-in must end in integrity information.
    #[must_use]
    pub fn seals_data(&self) -> bool {
        self.method() >= SecurityMethod::AllData
    }

    pub(crate) fn keys(&self) -> Option<(&ProvenCredential<P>, &Nonce)> {
        self.0.as_ref().map(|sealed| (&*sealed.proven, &sealed.nonce))
    }

    /// Returns the sense data to send: with the response check value appended under CMDRSP and
    /// ALLDATA. With GOOD the sense data is created for it, and `sense` must be empty. Unchanged
    /// under the weaker methods.
    #[must_use]
    pub fn sense(&self, status: u8, sense: &[u8]) -> Vec<u8> {
        let Some(sealed) = self.responding() else { return sense.to_vec() };
        let given = if status == GOOD { &[] } else { sense };
        let (mut out, field) = sense::with_room(given, sealed.generation.icv_len());
        let covered = if status == GOOD { &[][..] } else { &out };
        let tag = sealed.proven.keys.response(&sealed.nonce, status, covered);
        let placed = sense::place(&mut out, field, &tag);
        debug_assert!(placed, "the gate admits no algorithm whose tags do not fit the generation");
        out
    }

    /// Returns the response check value of GOOD, for attribute 1 of the Current Command page; as
    /// wide as the generation's fields. `None` under the weaker methods.
    #[must_use]
    pub fn good(&self) -> Option<Vec<u8>> {
        let sealed = self.responding()?;
        field(sealed.generation, &sealed.proven.keys.response(&sealed.nonce, GOOD, &[]))
    }

    /// Returns the digest profile that covers data-in, and the offset of the data in the object,
    /// for which a device may have stored digests. `None` if the check value covers bytes, or the
    /// data are no range of the object.
    #[must_use]
    pub fn digest(&self) -> Option<(Profile, u64)> {
        self.profile().zip(self.0.as_ref()?.origin.start)
    }

    /// Returns the digest profile that covers data and lists; `None` if their bytes are covered, or
    /// no value covers them.
    #[must_use]
    pub fn profile(&self) -> Option<Profile> {
        let sealed = self.0.as_ref().filter(|sealed| sealed.method >= SecurityMethod::AllData)?;
        sealed.proven.keys.digest()
    }

    /// Returns the bytes of data-in integrity information; 0 under the weaker methods.
    pub(crate) fn data_in_len(&self) -> usize {
        let sealed = self.0.as_ref().filter(|sealed| sealed.method >= SecurityMethod::AllData);
        sealed.map_or(0, |sealed| {
            let place = if sealed.proven.keys.digest().is_some() { ObjectBounds::LEN } else { 0 };
            DataInCounts::LEN + place + sealed.generation.icv_len()
        })
    }

    /// Returns the data-in integrity information for the sent command data and retrieved
    /// attributes, to be placed where the CDB says; the object is assumed to end where the data
    /// end. `None` under the weaker methods.
    #[must_use]
    pub fn data_in(&self, data: &[&[u8]], attributes: &[u8]) -> Option<Vec<u8>> {
        self.data_in_of(data, attributes, None)
    }

    /// Like `data_in`, with what the device knows of the object that the data are a range of.
    /// `None` also if its digests are not those of the data's range.
    #[must_use]
    pub fn data_in_of(
        &self,
        data: &[&[u8]],
        attributes: &[u8],
        stored: Option<&StoredObject<'_>>,
    ) -> Option<Vec<u8>> {
        let sealed = self.0.as_ref().filter(|sealed| sealed.method >= SecurityMethod::AllData)?;
        let counts = DataInCounts { data: total(data), attributes: attributes.len() as u64 };
        let mut block = Vec::with_capacity(self.data_in_len());
        block.extend_from_slice(&counts.encode());
        let tag = match sealed.proven.keys.digest() {
            None => sealed.proven.keys.data_in(&sealed.nonce, data, attributes),
            Some(profile) => {
                let (place, tag) = sealed.over_digests(profile, data, attributes, stored)?;
                block.extend_from_slice(&place.encode());
                tag
            }
        };
        block.extend_from_slice(&field(sealed.generation, &tag)?);
        Some(block)
    }

    fn responding(&self) -> Option<&SealState<P>> {
        self.0.as_ref().filter(|sealed| sealed.method >= SecurityMethod::CmdRsp)
    }
}

impl<P: Provider> SealState<P> {
    /// Returns place and check value; `None` if the cover does not match these bytes and the
    /// algorithm's digest. A check value computed from bytes that were not compared with their
    /// checksums would vouch for whatever the medium returned.
    fn over_digests(
        &self,
        profile: Profile,
        data: &[&[u8]],
        attributes: &[u8],
        stored: Option<&StoredObject<'_>>,
    ) -> Option<(ObjectBounds, Tag)> {
        let computed;
        let (place, covered) = match (stored, self.origin.start) {
            (Some(stored), Some(start)) => {
                let place = stored.place.reaching(start.saturating_add(total(data)));
                let cover = DigestCover::new(profile, start, total(data), place.object_length);
                match stored.covered {
                    Some(covered) if *covered.cover() == cover => (place, covered),
                    Some(_) => return None,
                    None => {
                        computed = CoveredDigests::of(cover, &gather(data));
                        (place, &computed)
                    }
                }
            }
            (Some(StoredObject { covered: Some(_), .. }), None) => return None,
            _ => {
                let place =
                    ObjectBounds::NONE.reaching(self.origin.start.unwrap_or(0).saturating_add(total(data)));
                let start = self.origin.start.unwrap_or(0);
                computed = CoveredDigests::of(
                    DigestCover::new(profile, start, total(data), place.object_length),
                    &gather(data),
                );
                (place, &computed)
            }
        };
        let list = CoveredList { bytes: attributes, page: stored.and_then(|stored| stored.page) };
        let (keys, lists) = (&self.proven.keys, [CoveredList::default(), list]);
        Some((place, cover::tag(keys, DataDirection::In, &self.nonce, &self.origin, place, covered, lists)))
    }
}

/// Returns a tag in a field of the generation's width.
fn field(generation: Generation, tag: &Tag) -> Option<Vec<u8>> {
    let mut field = alloc::vec![0; generation.icv_len()];
    tag.place(&mut field).then_some(field)
}
