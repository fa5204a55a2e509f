//! The device's side of a reply: response and data-in check values.
//!
//! Does: compute and place them. Does not: know what the reply says.
//! Contract: seal what is really sent, last of all; a changed byte of status, sense or data breaks it.
//! Truth: docs/design/security.md 3.2, 5.1, 5.4.

use alloc::sync::Arc;
use alloc::vec::Vec;

use sealstone_digest::{Cover, Covered, Direction, Profile, Value};
use sealstone_osd::{Generation, SecurityMethod};

use crate::Tag;
use crate::cache::Proven;
use crate::cover::{self, List, Origin, Place, gather};
use crate::icv::{DataInCounts, total};
use crate::nonce::Nonce;
use crate::provider::Provider;
use crate::sense;

/// Status byte of GOOD.
const GOOD: u8 = 0;

/// Seals the reply to one command, as its method asks.
pub struct ReplySeal<P: Provider>(Option<Sealed<P>>);

struct Sealed<P: Provider> {
    proven: Arc<Proven<P>>,
    generation: Generation,
    method: SecurityMethod,
    nonce: Nonce,
    origin: Origin,
}

/// What a device knows of an object whose bytes it sends. Looked at only by algorithms that cover digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored<'a> {
    /// Its length when they were read, and its generation.
    pub place: Place,
    /// The digests of the bytes sent, as far as they are stored; `None`: compute them from the bytes. Where they are
    /// given the device may not have looked at the bytes: nothing is ever computed from those then.
    pub covered: Option<&'a Covered>,
    /// The digest of the page that the retrieved attributes are ([`cover::whole_page`]), in the digest of the algorithm;
    /// `None`: theirs is computed.
    pub page: Option<Value>,
}

impl<P: Provider> Clone for ReplySeal<P> {
    fn clone(&self) -> Self {
        Self(self.0.as_ref().map(|sealed| Sealed { proven: Arc::clone(&sealed.proven), ..*sealed }))
    }
}

impl<P: Provider> ReplySeal<P> {
    /// For a command without proof: does nothing.
    pub(crate) const fn open() -> Self {
        Self(None)
    }

    pub(crate) const fn sealed(
        proven: Arc<Proven<P>>,
        generation: Generation,
        method: SecurityMethod,
        nonce: Nonce,
        origin: Origin,
    ) -> Self {
        Self(Some(Sealed { proven, generation, method, nonce, origin }))
    }

    /// The method of the command; NOSEC if nothing was proven.
    #[must_use]
    pub fn method(&self) -> SecurityMethod {
        self.0.as_ref().map_or(SecurityMethod::NoSec, |sealed| sealed.method)
    }

    /// Must data-in end in integrity information?
    #[must_use]
    pub fn seals_data(&self) -> bool {
        self.method() >= SecurityMethod::AllData
    }

    pub(crate) fn keys(&self) -> Option<(&Proven<P>, &Nonce)> {
        self.0.as_ref().map(|sealed| (&*sealed.proven, &sealed.nonce))
    }

    /// The sense data to send: with the response check value appended under CMDRSP and ALLDATA, even with GOOD,
    /// where the sense data is made for it and `sense` must be empty. Unchanged under the weaker methods.
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

    /// The response check value of GOOD, for attribute 1 of the Current Command page; as wide as the generation's
    /// fields. `None` under the weaker methods.
    #[must_use]
    pub fn good(&self) -> Option<Vec<u8>> {
        let sealed = self.responding()?;
        field(sealed.generation, &sealed.proven.keys.response(&sealed.nonce, GOOD, &[]))
    }

    /// What stands for the data that go to the client in their check value, and where they begin in the object: a
    /// device may have the values. `None` if the check value covers bytes, or the data are no range of an object.
    #[must_use]
    pub fn digest(&self) -> Option<(Profile, u64)> {
        self.profile().zip(self.0.as_ref()?.origin.start)
    }

    /// What stands for data and lists in their check value; `None` if their bytes do, or no value covers them.
    #[must_use]
    pub fn profile(&self) -> Option<Profile> {
        let sealed = self.0.as_ref().filter(|sealed| sealed.method >= SecurityMethod::AllData)?;
        sealed.proven.keys.digest()
    }

    /// Bytes of data-in integrity information; 0 under the weaker methods.
    pub(crate) fn data_in_len(&self) -> usize {
        let sealed = self.0.as_ref().filter(|sealed| sealed.method >= SecurityMethod::AllData);
        sealed.map_or(0, |sealed| {
            let place = if sealed.proven.keys.digest().is_some() { Place::LEN } else { 0 };
            DataInCounts::LEN + place + sealed.generation.icv_len()
        })
    }

    /// Data-in integrity information for the command data and the retrieved attributes that are sent, for the place that
    /// the CDB names; the object is taken to end where the data end. `None` under the weaker methods.
    #[must_use]
    pub fn data_in(&self, data: &[&[u8]], attributes: &[u8]) -> Option<Vec<u8>> {
        self.data_in_of(data, attributes, None)
    }

    /// The same, with what the device knows of the object that the data are a range of. `None` also if the digests that
    /// it has are not those of the data's range.
    #[must_use]
    pub fn data_in_of(
        &self,
        data: &[&[u8]],
        attributes: &[u8],
        stored: Option<&Stored<'_>>,
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

    fn responding(&self) -> Option<&Sealed<P>> {
        self.0.as_ref().filter(|sealed| sealed.method >= SecurityMethod::CmdRsp)
    }
}

impl<P: Provider> Sealed<P> {
    /// Place and check value; `None` if the cover is not one of these bytes, in the digest of the algorithm: a check value
    /// made from bytes that nobody compared with their checksums would vouch for whatever the medium gave.
    fn over_digests(
        &self,
        profile: Profile,
        data: &[&[u8]],
        attributes: &[u8],
        stored: Option<&Stored<'_>>,
    ) -> Option<(Place, Tag)> {
        let computed;
        let (place, covered) = match (stored, self.origin.start) {
            (Some(stored), Some(start)) => {
                let place = stored.place.reaching(start.saturating_add(total(data)));
                let cover = Cover::new(profile, start, total(data), place.object_length);
                match stored.covered {
                    Some(covered) if *covered.cover() == cover => (place, covered),
                    Some(_) => return None,
                    None => {
                        computed = Covered::of(cover, &gather(data));
                        (place, &computed)
                    }
                }
            }
            (Some(Stored { covered: Some(_), .. }), None) => return None,
            _ => {
                let place = Place::NONE.reaching(self.origin.start.unwrap_or(0).saturating_add(total(data)));
                let start = self.origin.start.unwrap_or(0);
                computed =
                    Covered::of(Cover::new(profile, start, total(data), place.object_length), &gather(data));
                (place, &computed)
            }
        };
        let list = List { bytes: attributes, page: stored.and_then(|stored| stored.page) };
        let (keys, lists) = (&self.proven.keys, [List::default(), list]);
        Some((place, cover::tag(keys, Direction::In, &self.nonce, &self.origin, place, covered, lists)))
    }
}

/// A tag in a field of the generation's width.
fn field(generation: Generation, tag: &Tag) -> Option<Vec<u8>> {
    let mut field = alloc::vec![0; generation.icv_len()];
    tag.place(&mut field).then_some(field)
}
