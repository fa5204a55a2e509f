//! The device's side of a reply: response and data-in check values.
//!
//! Does: compute and place them. Does not: know what the reply says.
//! Contract: seal what is really sent, last of all; a changed byte of status, sense or data breaks it.
//! Truth: docs/design/security.md 3.2.

use alloc::sync::Arc;
use alloc::vec::Vec;

use sealstone_osd::{Generation, SecurityMethod};

use crate::Tag;
use crate::cache::Proven;
use crate::icv::DataInCounts;
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
    ) -> Self {
        Self(Some(Sealed { proven, generation, method, nonce }))
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

    /// Data-in integrity information for the command data and the retrieved attributes that are sent: 36 or 48
    /// bytes for the place that the CDB names. `None` under the weaker methods.
    #[must_use]
    pub fn data_in(&self, data: &[&[u8]], attributes: &[u8]) -> Option<Vec<u8>> {
        let sealed = self.0.as_ref().filter(|sealed| sealed.method >= SecurityMethod::AllData)?;
        let tag = sealed.proven.keys.data_in(&sealed.nonce, data, attributes);
        let count = data.iter().map(|piece| piece.len() as u64).sum();
        let counts = DataInCounts { data: count, attributes: attributes.len() as u64 };
        let mut block = Vec::with_capacity(DataInCounts::LEN + sealed.generation.icv_len());
        block.extend_from_slice(&counts.encode());
        block.extend_from_slice(&field(sealed.generation, &tag)?);
        Some(block)
    }

    fn responding(&self) -> Option<&Sealed<P>> {
        self.0.as_ref().filter(|sealed| sealed.method >= SecurityMethod::CmdRsp)
    }
}

/// A tag in a field of the generation's width.
fn field(generation: Generation, tag: &Tag) -> Option<Vec<u8>> {
    let mut field = alloc::vec![0; generation.icv_len()];
    tag.place(&mut field).then_some(field)
}
